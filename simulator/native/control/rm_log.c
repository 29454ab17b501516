/* SPDX-License-Identifier: Apache-2.0
 *
 * A line of JSON per call of the control device, in the form of docs/specs/rm-recording.md.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"
#include "rm.h"

#define SHOWN 32u /* bytes of the parameters */

bool rm_log_open(struct rm *rm, const char *path)
{
    rm->log = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (rm->log >= 0)
        return true;
    fprintf(stderr, "qgpu-simgpu: cannot write %s: %s\n", path, strerror(errno));
    return false;
}

struct text {
    char line[4096];
    size_t len;
};

__attribute__((format(printf, 2, 3))) static void put(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int len = vsnprintf(text->line + text->len, sizeof text->line - text->len, format, args);
    va_end(args);
    if (len > 0 && text->len + (size_t)len < sizeof text->line)
        text->len += (size_t)len;
}

static void put_alloc(struct text *text, const struct rm_call *call)
{
    const struct rm_alloc64 *in = (const void *)call->ioctl.data;
    const struct rm_alloc *old = (const void *)call->ioctl.data;
    const struct rm_group_params *group = (const void *)call->params;
    bool wide = call->ioctl.size == sizeof *in;
    put(text,
        "\"call\": \"%s\", \"client\": \"0x%x\", \"parent\": \"0x%x\", \"object\": \"0x%x\", "
        "\"class\": \"0x%x\", \"params_size\": %u",
        wide ? "alloc64" : "alloc", in->client, in->parent, in->object, in->class_id,
        wide ? in->params_size : old->params_size);
    if (in->class_id == RM_CLASS_GROUP && call->params_size == sizeof *group)
        put(text, ", \"engine\": %u", group->engine);
}

static void put_control(struct text *text, const struct rm_call *call)
{
    const struct rm_control *control = (const void *)call->ioctl.data;
    const struct rm_disable_channels *list = (const void *)call->params;
    put(text,
        "\"call\": \"control\", \"client\": \"0x%x\", \"object\": \"0x%x\", \"cmd\": \"0x%x\", "
        "\"params_size\": %u",
        control->client, control->object, control->cmd, control->params_size);
    if (control->cmd != RM_SUBDEVICE_DISABLE_CHANNELS || call->params_size != sizeof *list ||
        list->count > RM_MAX_DISABLED)
        return;
    put(text, ", \"channels\": [");
    for (uint32_t i = 0; i < list->count; i++)
        put(text, "%s[\"0x%x\", \"0x%x\"]", i ? ", " : "", list->clients[i], list->channels[i]);
    put(text, "]");
}

static void put_what(struct text *text, const struct rm_call *call)
{
    const struct rm_dup *dup = (const void *)call->ioctl.data;
    const struct rm_free *gone = (const void *)call->ioctl.data;
    uint32_t nr = _IOC_NR(call->ioctl.cmd), size = call->ioctl.size;
    if (nr == RM_ESC_FREE && size == sizeof *gone)
        put(text,
            "\"call\": \"free\", \"client\": \"0x%x\", \"parent\": \"0x%x\", \"object\": \"0x%x\"",
            gone->client, gone->parent, gone->object);
    else if (nr == RM_ESC_ALLOC &&
             (size == sizeof(struct rm_alloc) || size == sizeof(struct rm_alloc64)))
        put_alloc(text, call);
    else if (nr == RM_ESC_DUP && size == sizeof *dup)
        put(text,
            "\"call\": \"dup\", \"client\": \"0x%x\", \"parent\": \"0x%x\", \"object\": \"0x%x\", "
            "\"client_from\": \"0x%x\", "
            "\"object_from\": \"0x%x\"",
            dup->client, dup->parent, dup->object, dup->client_from, dup->object_from);
    else if (nr == RM_ESC_CONTROL && size == sizeof(struct rm_control))
        put_control(text, call);
    else
        put(text, "\"call\": \"other\", \"number\": \"0x%x\"", call->ioctl.cmd);
}

/* One write per line: a concurrent reader sees whole lines. */
void rm_log(const struct rm *rm, const struct rm_call *call, uint32_t status, int error)
{
    struct text text = {.len = 0};
    if (rm->log < 0)
        return;
    put(&text, "{\"t_us\": %.3f, \"pid\": %u, \"file\": %llu, \"owner\": %u, ",
        (double)gpu_now() / 1e3, call->caller, (unsigned long long)call->ioctl.fh, call->owner);
    put_what(&text, call);
    if (error)
        put(&text, ", \"errno\": %d", error);
    else
        put(&text, ", \"status\": \"0x%x\"", status);
    if (call->params_size)
        put(&text, ", \"params\": \"");
    for (uint32_t i = 0; i < call->params_size && i < SHOWN; i++)
        put(&text, "%02x", call->params[i]);
    put(&text, call->params_size ? "\"}\n" : "}\n");
    if (write(rm->log, text.line, text.len) < 0)
        return; /* a full disk: the simulation goes on */
}
