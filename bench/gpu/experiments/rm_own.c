/* SPDX-License-Identifier: Apache-2.0
 *
 * rm_own.h. The executable exports `ioctl`, so that libcuda's own calls pass through here and tell
 * the handles.
 */
#include "rm_own.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CHANNEL_SCHEDULE 0xa06f0103u /* the same command for one channel */

struct handle own_seen[4096];
unsigned own_count, own_calls[256], own_other_sizes;
bool own_quiet;
const char *const own_method_names[OWN_METHODS] = {"schedule",  "disable",    "disable-scheduling",
                                                   "timeslice", "timeslice0", "preempt"};

static FILE *record;
static uint64_t record_began, slice_before[64];

uint64_t own_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void own_record_open(void)
{
    const char *path = getenv("QGPU_OWN_RECORD");
    record = path ? fopen(path, "we") : NULL;
    record_began = own_now();
}

static struct handle *find(uint32_t client, uint32_t object)
{
    for (unsigned i = 0; i < own_count; i++)
        if (own_seen[i].client == client && own_seen[i].object == object && !own_seen[i].freed)
            return &own_seen[i];
    return NULL;
}

static void say(const char *call, uint32_t client, const char *name, uint32_t value)
{
    fprintf(
        record,
        "{\"t_us\": %.1f, \"pid\": %d, \"call\": \"%s\", \"client\": \"0x%x\", \"%s\": \"0x%x\"",
        (double)(own_now() - record_began) / 1e3, (int)getpid(), call, client, name, value);
}

static void record_alloc(bool wide, const struct rm_alloc *a, uint32_t params_size, uint32_t status,
                         uint32_t engine)
{
    if (!record)
        return;
    say(wide ? "alloc64" : "alloc", a->client, "object", a->object);
    fprintf(
        record,
        ", \"parent\": \"0x%x\", \"class\": \"0x%x\", \"params_size\": %u, \"status\": \"0x%x\"",
        a->parent, a->class_id, params_size, status);
    if (a->class_id == RM_CLASS_GROUP)
        fprintf(record, ", \"engine\": %u", engine);
    fputs("}\n", record);
}

static void note(int fd, bool wide, void *arg)
{
    const struct rm_alloc *a = arg; /* both begin alike; what follows is at another place */
    const struct rm_alloc64 *b = arg;
    uint32_t status = wide ? b->status : a->status, size = wide ? b->params_size : a->params_size;
    struct handle h = {.client = a->client,
                       .parent = a->parent,
                       .object = a->object,
                       .class_id = a->class_id,
                       .fd = fd};
    if (a->class_id == RM_CLASS_ROOT || a->class_id == RM_CLASS_ROOT_NON_PRIV ||
        a->class_id == RM_CLASS_ROOT_CLIENT)
        h.client = a->object;
    if (a->class_id == RM_CLASS_GROUP && a->params)
        h.engine = ((const struct rm_group_params *)(uintptr_t)a->params)->engine;
    record_alloc(wide, a, size, status, h.engine);
    if (status == 0 && own_count < sizeof own_seen / sizeof *own_seen)
        own_seen[own_count++] = h;
}

static void note_control(const struct rm_control *c)
{
    const struct rm_schedule *schedule = (const void *)(uintptr_t)c->params;
    struct handle *h = find(c->client, c->object);
    if (h && c->cmd == CHANNEL_SCHEDULE)
        h = find(c->client, h->parent);
    if (h && (c->cmd == RM_GROUP_SCHEDULE || c->cmd == CHANNEL_SCHEDULE) && c->status == 0 &&
        schedule)
        h->scheduled = schedule->enable;
    if (!record)
        return;
    say("control", c->client, "object", c->object);
    fprintf(record, ", \"cmd\": \"0x%x\", \"params_size\": %u, \"status\": \"0x%x\"}\n", c->cmd,
            c->params_size, c->status);
}

static void note_free(const struct rm_free *f)
{
    struct handle *h = find(f->client, f->object);
    if (h && f->status == 0)
        h->freed = true;
    if (!record)
        return;
    say("free", f->client, "object", f->object);
    fprintf(record, ", \"parent\": \"0x%x\", \"status\": \"0x%x\"}\n", f->parent, f->status);
}

static void note_dup(const struct rm_dup *d)
{
    if (!record)
        return;
    say("dup", d->client, "object", d->object);
    fprintf(record, ", \"parent\": \"0x%x\", \"status\": \"0x%x\"}\n", d->parent, d->status);
}

static void watch(int fd, unsigned long request, void *arg)
{
    unsigned number = request & 0xff, size = request >> 16 & 0x3fff;
    if ((request >> 8 & 0xff) != RM_MAGIC)
        return;
    own_calls[number]++;
    if (request == RM_ALLOC || request == RM_ALLOC64)
        note(fd, request == RM_ALLOC64, arg);
    else if (request == RM_CONTROL)
        note_control(arg);
    else if (request == RM_FREE)
        note_free(arg);
    else if (request == RM_DUP)
        note_dup(arg);
    else if (number == RM_ESC_ALLOC || number == RM_ESC_CONTROL || number == RM_ESC_FREE ||
             number == RM_ESC_DUP)
        own_other_sizes++;
    else if (record)
        fprintf(
            record,
            "{\"t_us\": %.1f, \"pid\": %d, \"call\": \"other\", \"number\": %u, \"size\": %u}\n",
            (double)(own_now() - record_began) / 1e3, (int)getpid(), number, size);
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
    va_list list;
    va_start(list, request);
    void *arg = va_arg(list, void *);
    va_end(list);
    int result = (int)syscall(SYS_ioctl, fd, request, arg);
    int error = errno;
    if (result == 0 && !own_quiet)
        watch(fd, request, arg);
    errno = error;
    return result;
}

uint32_t own_control(int fd, uint32_t client, uint32_t object, uint32_t cmd, void *params,
                     uint32_t size, uint64_t *took)
{
    struct rm_control c = {.client = client,
                           .object = object,
                           .cmd = cmd,
                           .params = (uintptr_t)params,
                           .params_size = size};
    uint64_t start = own_now();
    long result = syscall(SYS_ioctl, fd, RM_CONTROL, &c);
    if (took)
        *took = own_now() - start;
    return result ? 0xffff0000u + (uint32_t)errno : c.status;
}

int own_groups(struct handle **found, int room)
{
    int n = 0;
    for (int pass = 0; pass < 2 && n == 0; pass++)
        for (unsigned i = 0; i < own_count && n < room; i++)
            if (own_seen[i].class_id == RM_CLASS_GROUP && !own_seen[i].freed &&
                (pass || own_seen[i].scheduled))
                found[n++] = &own_seen[i];
    return n;
}

static uint32_t ask(const struct handle *h, uint32_t cmd, void *params, uint32_t size)
{
    return own_control(h->fd, h->client, h->object, cmd, params, size, NULL);
}

static const struct handle *subdevice_of(uint32_t client)
{
    for (unsigned i = 0; i < own_count; i++)
        if (own_seen[i].class_id == RM_CLASS_SUBDEVICE && own_seen[i].client == client &&
            !own_seen[i].freed)
            return &own_seen[i];
    return NULL;
}

/* All own channels that belong to one of the groups, by the subdevice of their client. */
static uint32_t disable(struct handle **group, int n, bool off, bool only_scheduling)
{
    struct rm_disable_channels p = {.disable = off, .only_scheduling = only_scheduling};
    const struct handle *subdevice = n ? subdevice_of(group[0]->client) : NULL;
    for (unsigned i = 0; i < own_count && p.count < RM_MAX_DISABLED; i++)
        for (int g = 0; g < n; g++)
            if (RM_IS_CHANNEL(own_seen[i].class_id) && !own_seen[i].freed &&
                own_seen[i].client == group[0]->client && group[g]->client == own_seen[i].client &&
                own_seen[i].parent == group[g]->object) {
                p.clients[p.count] = own_seen[i].client;
                p.channels[p.count++] = own_seen[i].object;
            }
    return subdevice && p.count ? ask(subdevice, RM_SUBDEVICE_DISABLE_CHANNELS, &p, sizeof p)
                                : RM_NOT_FOUND;
}

static uint32_t set_slice(struct handle *group, int at, uint64_t us)
{
    struct rm_timeslice before = {0}, wanted = {us};
    uint32_t status = ask(group, RM_GROUP_GET_TIMESLICE, &before, sizeof before);
    if (status)
        return status; /* never set what cannot be read, and so not be put back */
    if (!slice_before[at])
        slice_before[at] = before.us;
    return ask(group, RM_GROUP_SET_TIMESLICE, &wanted, sizeof wanted);
}

static uint32_t preempt(struct handle *group)
{
    struct rm_preempt p = {.wait = 1, .manual_timeout = 1, .timeout_us = 500000};
    return ask(group, RM_GROUP_PREEMPT, &p, sizeof p);
}

static uint32_t schedule(struct handle *group, bool on)
{
    struct rm_schedule p = {.enable = on};
    return ask(group, RM_GROUP_SCHEDULE, &p, sizeof p);
}

static uint32_t stop_one(struct handle *group, int at, enum own_method method)
{
    uint32_t status;
    switch (method) {
    case OWN_SCHEDULE:
        status = schedule(group, false);
        return status ? status : preempt(group);
    case OWN_TIMESLICE_1:
    case OWN_TIMESLICE_0:
        return set_slice(group, at, method == OWN_TIMESLICE_1);
    default:
        return preempt(group);
    }
}

uint32_t own_stop(enum own_method method)
{
    struct handle *group[64];
    int n = own_groups(group, 64);
    uint32_t first = n ? 0 : RM_NOT_FOUND;
    if (method == OWN_DISABLE || method == OWN_DISABLE_SCHEDULING)
        return disable(group, n, true, method == OWN_DISABLE_SCHEDULING);
    for (int i = 0; i < n; i++) {
        uint32_t status = stop_one(group[i], i, method);
        first = first ? first : status;
    }
    return first;
}

uint32_t own_continue(enum own_method method)
{
    struct handle *group[64];
    int n = own_groups(group, 64);
    uint32_t first = 0;
    if (method == OWN_DISABLE || method == OWN_DISABLE_SCHEDULING)
        return disable(group, n, false, method == OWN_DISABLE_SCHEDULING);
    for (int i = 0; i < n && method != OWN_PREEMPT; i++) {
        struct rm_timeslice back = {slice_before[i]};
        uint32_t status = method == OWN_SCHEDULE ? schedule(group[i], true)
                          : slice_before[i]
                              ? ask(group[i], RM_GROUP_SET_TIMESLICE, &back, sizeof back)
                              : 0;
        slice_before[i] = 0;
        first = first ? first : status;
    }
    return first;
}

uint32_t own_slice(uint64_t us)
{
    struct handle *group[64];
    int n = own_groups(group, 64);
    uint32_t first = n ? 0 : RM_NOT_FOUND;
    for (int i = 0; i < n; i++) {
        uint32_t status = set_slice(group[i], i, us);
        first = first ? first : status;
    }
    return first;
}

uint32_t own_preemption_mode(uint32_t mode)
{
    struct { /* flags: 1 = the compute mode counts; no routing */
        uint32_t flags, channel, graphics, compute, route_flags, pad;
        uint64_t route;
    } p;
    uint32_t first = RM_NOT_FOUND;
    for (unsigned i = 0; i < own_count; i++) {
        struct handle *h = &own_seen[i], *group = find(h->client, h->parent);
        const struct handle *subdevice = subdevice_of(h->client);
        if (!RM_IS_CHANNEL(h->class_id) || h->freed || !subdevice || !group ||
            group->engine > RM_ENGINE_GRAPHICS_LAST)
            continue;
        memset(&p, 0, sizeof p);
        p.flags = 1, p.channel = h->object, p.compute = mode;
        uint32_t status = ask(subdevice, RM_SUBDEVICE_SET_PREEMPTION_MODE, &p, sizeof p);
        first = first == RM_NOT_FOUND ? status : first ? first : status;
    }
    return first;
}
