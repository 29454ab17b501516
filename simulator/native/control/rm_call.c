/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of the control device: from the ioctl to its answer, at once or when its time has come. The
 * outer structure comes and goes with the call; parameters are read from and written to the memory
 * of the caller, which waits in its ioctl.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "gpu.h"
#include "rm.h"

#define ESC_CHECK_VERSION 210u
#define ESC_SYS_PARAMS    214u

struct rm_version {          /* of the handshake between library and kernel module */
    uint32_t command, reply; /* reply: 1 = the versions fit */
    char version[64];
};
struct rm_sys_params {
    uint64_t block_size;
};

/* ---- the caller ---- */

static uint32_t process_of(pid_t tid)
{
    char name[64], line[128];
    unsigned pid = 0;
    snprintf(name, sizeof name, "/proc/%d/status", (int)tid);
    FILE *file = fopen(name, "re");
    while (file && !pid && fgets(line, sizeof line, file))
        if (sscanf(line, "Tgid: %u", &pid) != 1)
            pid = 0;
    if (file)
        fclose(file);
    return pid;
}

/* While the caller is held up here it cannot end, and its memory is found by its id. Not so for a
 * call that waits for its turn: it may be killed then, and its id reused. /proc/ID/mem
 * stays bound to the memory that it was opened for. */
static void keep_memory(struct rm_call *call)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/mem", (int)call->ioctl.tid);
    call->memory = open(name, O_RDWR | O_CLOEXEC);
}

static bool fetch(const struct rm_call *call, uint64_t address, void *to, uint32_t size)
{
    struct iovec here = {to, size}, there = {(void *)(uintptr_t)address, size};
    if (!size)
        return true;
    if (call->waited)
        return pread(call->memory, to, size, (off_t)address) == (ssize_t)size;
    return process_vm_readv(call->ioctl.tid, &here, 1, &there, 1, 0) == (ssize_t)size;
}

static bool store(const struct rm_call *call, uint64_t address, const void *from, uint32_t size)
{
    struct iovec here = {(void *)from, size}, there = {(void *)(uintptr_t)address, size};
    if (!size)
        return true;
    if (call->waited)
        return pwrite(call->memory, from, size, (off_t)address) == (ssize_t)size;
    return process_vm_writev(call->ioctl.tid, &here, 1, &there, 1, 0) == (ssize_t)size;
}

/* ---- the four calls ---- */

static struct rm_file *file_of(const struct gpu *gpu, uint64_t fh)
{
    struct rm_file *file = gpu->rm->files;
    while (file && file->fh != fh)
        file = file->next;
    return file;
}

static uint32_t alloc(struct gpu *gpu, struct rm_file *file, struct rm_call *call)
{
    struct rm_alloc64 *in = (void *)call->ioctl.data; /* begins like struct rm_alloc */
    const struct rm_alloc *old = (const void *)call->ioctl.data;
    bool wide = call->ioctl.size == sizeof *in;
    uint32_t size = wide ? in->params_size : old->params_size;
    if (in->class_id <= RM_CLASS_ROOT_NON_PRIV || in->class_id == RM_CLASS_ROOT_CLIENT) {
        in->class_id = RM_CLASS_ROOT_CLIENT;
        return rm_alloc_client(gpu, file, &in->object);
    }
    struct rm_client *client = rm_client_find(file, in->client);
    if (!client)
        return RM_BAD_CLIENT;
    if (!in->params)
        size = 0;
    else if (!size) /* older callers leave the size to the class */
        size = in->class_id == RM_CLASS_GROUP    ? sizeof(struct rm_group_params)
               : in->class_id == RM_CLASS_DEVICE ? sizeof(struct rm_device_params)
                                                 : 0;
    if (size > RM_PARAMS)
        return RM_BAD_PARAMS;
    if (!fetch(call, in->params, call->params, size))
        return RM_BAD_POINTER;
    call->params_size = size;
    return rm_alloc_object(gpu, client, in->parent, &in->object, in->class_id, call->params, size);
}

static uint32_t control(struct gpu *gpu, struct rm_file *file, struct rm_call *call)
{
    struct rm_control *in = (void *)call->ioctl.data;
    struct rm_client *client = rm_client_find(file, in->client);
    uint32_t size;
    if (!client)
        return RM_BAD_CLIENT;
    if (!rm_object_find(client, in->object))
        return RM_NOT_FOUND;
    if (!rm_known_size(in->cmd, &size))
        return RM_BAD_COMMAND;
    if (in->params_size != size)
        return RM_BAD_PARAMS;
    if (!in->params || !fetch(call, in->params, call->params, size))
        return RM_BAD_POINTER;
    call->params_size = size;
    uint32_t status = rm_control(gpu, client, in, call);
    if (!status && !store(call, in->params, call->params, size))
        status = RM_BAD_POINTER;
    return status;
}

/* Within one file only: its holder may use both clients anyway. There are no grants across files.
 */
static uint32_t duplicate(struct gpu *gpu, struct rm_file *file, struct rm_dup *in)
{
    struct rm_client *client = rm_client_find(file, in->client),
                     *from = rm_client_find(file, in->client_from);
    if (!client)
        return RM_BAD_CLIENT;
    if (!from)
        return rm_client_any(gpu, in->client_from) ? RM_NO_PERMISSION : RM_BAD_CLIENT;
    return rm_dup_object(client, in->parent, &in->object, from, in->object_from);
}

static uint32_t release(struct rm_file *file, const struct rm_free *in)
{
    struct rm_client *client = rm_client_find(file, in->client);
    return client ? rm_free_object(client, in->object) : RM_BAD_CLIENT;
}

static void check_version(const struct gpu *gpu, struct rm_version *in)
{
    const char *mine = gpu->config.driver;
    in->version[sizeof in->version - 1] = 0;
    in->reply = strcmp(in->version, mine) == 0;
    memset(in->version, 0, sizeof in->version);
    snprintf(in->version, sizeof in->version, "%s", mine);
}

/* An errno, or 0 and the status within the structure. What the kernel module does with sizes and
 * numbers that it does not know: EINVAL. */
static int execute(struct gpu *gpu, struct rm_file *file, struct rm_call *call, uint32_t *status)
{
    uint8_t *data = call->ioctl.data;
    uint32_t size = call->ioctl.size, nr = _IOC_NR(call->ioctl.cmd);
    *status = 0;
    if (nr == RM_ESC_ALLOC && size == sizeof(struct rm_alloc))
        ((struct rm_alloc *)(void *)data)->status = *status = alloc(gpu, file, call);
    else if (nr == RM_ESC_ALLOC && size == sizeof(struct rm_alloc64))
        ((struct rm_alloc64 *)(void *)data)->status = *status = alloc(gpu, file, call);
    else if (nr == RM_ESC_CONTROL && size == sizeof(struct rm_control))
        ((struct rm_control *)(void *)data)->status = *status = control(gpu, file, call);
    else if (nr == RM_ESC_DUP && size == sizeof(struct rm_dup))
        ((struct rm_dup *)(void *)data)->status = *status = duplicate(gpu, file, (void *)data);
    else if (nr == RM_ESC_FREE && size == sizeof(struct rm_free))
        ((struct rm_free *)(void *)data)->status = *status = release(file, (void *)data);
    else if (nr == ESC_CHECK_VERSION && size == sizeof(struct rm_version))
        check_version(gpu, (void *)data);
    else if (nr == ESC_SYS_PARAMS && size == sizeof(struct rm_sys_params))
        ((struct rm_sys_params *)(void *)data)->block_size = 128u << 20;
    else
        return EINVAL;
    return 0;
}

static void set_status(struct rm_call *call, uint32_t status)
{
    uint8_t *data = call->ioctl.data;
    uint32_t nr = _IOC_NR(call->ioctl.cmd), size = call->ioctl.size;
    size_t at = nr == RM_ESC_ALLOC && size == sizeof(struct rm_alloc64)
                    ? offsetof(struct rm_alloc64, status)
                : nr == RM_ESC_DUP  ? offsetof(struct rm_dup, status)
                : nr == RM_ESC_FREE ? offsetof(struct rm_free, status)
                                    : offsetof(struct rm_control, status);
    if (at + sizeof status <= size)
        memcpy(data + at, &status, sizeof status);
}

/* ---- waiting ---- */

static void answer(struct gpu *gpu, struct rm_call *call, int error, uint32_t status)
{
    rm_log(gpu->rm, call, status, error);
    gpu_fuse_answer(&gpu->rm->fuse, call->ioctl.unique, error, call->ioctl.data, call->ioctl.size);
    if (call->waited && call->memory >= 0)
        close(call->memory);
    free(call);
}

static void park(struct gpu *gpu, struct rm_call *call)
{
    struct rm_call **end = &gpu->rm->calls;
    while (*end)
        end = &(*end)->next;
    call->next = NULL;
    *end = call;
}

/* When the contexts that the call waits for have left their engines at the latest; 0: they have. */
static uint64_t still_there(const struct gpu *gpu, const struct rm_call *call)
{
    uint64_t until = call->until > gpu_now() ? call->until : 0;
    for (uint32_t i = 0; i < call->nwaits; i++) {
        struct gpu_ctx *ctx = gpu_ctx_find((struct gpu *)gpu, call->waits[i]);
        if (!ctx)
            continue;
        gpu_card_sync(ctx->card);
        for (unsigned e = 0; e < MODEL_ENGINES; e++) {
            uint64_t leaves = model_leaves(ctx->model, e);
            until = leaves > until ? leaves : until;
        }
    }
    return until;
}

/* Answers, or waits for the effect. */
static void finish(struct gpu *gpu, struct rm_call *call)
{
    uint64_t until = still_there(gpu, call);
    if (!until) {
        answer(gpu, call, 0, call->status);
    } else if (gpu_now() >= call->deadline) {
        set_status(call, RM_TIMEOUT);
        answer(gpu, call, 0, RM_TIMEOUT);
    } else {
        call->due = until < call->deadline ? until : call->deadline;
        park(gpu, call);
    }
}

static void carry_out(struct gpu *gpu, struct rm_call *call)
{
    struct rm_file *file = file_of(gpu, call->ioctl.fh);
    int error = file ? execute(gpu, file, call, &call->status) : ENODEV;
    call->phase = RM_EXECUTED;
    if (error)
        answer(gpu, call, error, 0);
    else
        finish(gpu, call);
}

uint64_t rm_next(const struct gpu *gpu)
{
    uint64_t next = MODEL_NEVER;
    for (const struct rm_call *call = gpu->rm->calls; call; call = call->next)
        next = !call->hangs && call->due < next ? call->due : next;
    return next;
}

void rm_settle(struct gpu *gpu, uint64_t now)
{
    struct rm_call *waiting = gpu->rm->calls;
    gpu->rm->calls = NULL;
    while (waiting) {
        struct rm_call *call = waiting;
        waiting = call->next;
        if (call->hangs || call->due > now)
            park(gpu, call);
        else if (call->phase == RM_ARRIVED)
            carry_out(gpu, call);
        else
            finish(gpu, call);
    }
}

/* ---- from the device ---- */

static void called(void *arg, const struct gpu_ioctl *ioctl)
{
    struct gpu *gpu = arg;
    const struct rm_file *file = file_of(gpu, ioctl->fh);
    const struct rm_control *in = (const void *)ioctl->data;
    struct rm_call *call =
        _IOC_TYPE(ioctl->cmd) == RM_MAGIC && file ? calloc(1, sizeof *call) : NULL;
    if (!call) {
        gpu_fuse_answer(&gpu->rm->fuse, ioctl->unique, file ? EINVAL : ENODEV, NULL, 0);
        return;
    }
    call->ioctl = *ioctl;
    call->caller = rm_wants_caller(gpu->rm) ? process_of(ioctl->tid) : 0;
    call->owner = file->conn ? (uint32_t)file->conn->pid : 0;
    bool slow = _IOC_NR(ioctl->cmd) == RM_ESC_CONTROL && ioctl->size == sizeof *in &&
                rm_reaches_card(in->cmd);
    call->due = slow && gpu->config.control_ns ? gpu_now() + gpu->config.control_ns : 0;
    const struct rm_fault *fault =
        rm_fault_take(gpu->rm, rm_call_name(ioctl), call->caller, call->owner);
    if (fault && fault->kind == RM_FAULT_ERRNO) {
        answer(gpu, call, (int)fault->value, 0);
        return;
    }
    if (fault && fault->kind == RM_FAULT_STATUS) {
        set_status(call, (uint32_t)fault->value);
        answer(gpu, call, 0, (uint32_t)fault->value);
        return;
    }
    call->hangs = fault && fault->kind == RM_FAULT_HANG;
    if (fault && fault->kind == RM_FAULT_DELAY)
        call->due = gpu_now() + fault->value * 1000;
    call->waited = call->due || call->hangs;
    if (call->waited) {
        keep_memory(call);
        park(gpu, call);
    } else {
        carry_out(gpu, call);
    }
}

/* A signal. Only what would hang for ever is given up: a call of a real driver is not interrupted
 * either, and ends. */
static void interrupted(void *arg, uint64_t unique)
{
    struct gpu *gpu = arg;
    for (struct rm_call **link = &gpu->rm->calls, *call; (call = *link); link = &call->next)
        if (call->ioctl.unique == unique && call->hangs) {
            *link = call->next;
            answer(gpu, call, EINTR, 0);
            return;
        }
}

static uint64_t opened(void *arg, bool by_opener)
{
    struct gpu *gpu = arg;
    struct rm_file *file = gpu->rm->nfiles < RM_MAX_FILES ? calloc(1, sizeof *file) : NULL;
    if (!file)
        return 0;
    file->fh = ++gpu->rm->next_fh;
    file->conn = by_opener ? gpu->rm->asked : NULL;
    if (file->conn)
        file->conn->control = file;
    file->next = gpu->rm->files;
    gpu->rm->files = file;
    gpu->rm->nfiles++;
    return file->fh;
}

static void closed(void *arg, uint64_t fh)
{
    struct gpu *gpu = arg;
    struct rm_file *file = file_of(gpu, fh);
    if (!file)
        return;
    if (file->conn)
        file->conn->control = NULL;
    rm_free_file(gpu, file);
}

/* ---- files for programs ---- */

/* One at a time, so that it is known whose file an open is for. */
static void ask_next(struct gpu *gpu)
{
    for (struct gpu_conn *conn = gpu->conns; conn && !gpu->rm->opening; conn = conn->next)
        if (conn->wants_control) {
            conn->wants_control = false;
            gpu->rm->opening = gpu_fuse_ask(&gpu->rm->fuse);
            if (gpu->rm->opening)
                gpu->rm->asked = conn;
            else
                gpu->rm->answer(conn, -1);
        }
}

static void handed(void *arg, int fd)
{
    struct gpu *gpu = arg;
    struct gpu_conn *conn = gpu->rm->asked;
    gpu->rm->asked = NULL;
    gpu->rm->opening = false;
    if (conn)
        gpu->rm->answer(conn, fd);
    if (fd >= 0)
        close(fd);
    ask_next(gpu);
}

void rm_request_file(struct gpu_conn *conn)
{
    struct gpu *gpu = conn->gpu;
    if (gpu->rm->fuse.device < 0 || conn->control || conn->wants_control ||
        gpu->rm->asked == conn) {
        gpu->rm->answer(conn, -1);
        return;
    }
    conn->wants_control = true;
    ask_next(gpu);
}

void rm_forget(struct gpu_conn *conn)
{
    struct rm *rm = conn->gpu->rm;
    if (conn->control)
        conn->control->conn = NULL;
    conn->control = NULL;
    conn->wants_control = false;
    if (rm->asked == conn)
        rm->asked = NULL;
}

/* ---- start and end ---- */

bool rm_open(struct gpu *gpu, void (*answer)(struct gpu_conn *conn, int fd))
{
    static const struct gpu_fuse_ops ops = {opened, called, interrupted, closed, handed};
    struct rm *rm = gpu->rm;
    rm->answer = answer;
    unsigned priority = gpu->config.realtime ? gpu->config.priority : 0;
    gpu->control_watch.source = SRC_CONTROL;
    gpu->opener_watch.source = SRC_OPENER;
    if (!gpu_fuse_open(&rm->fuse, &ops, gpu, priority, rm->why)) {
        fprintf(stderr, "qgpu-simgpu: there is no control device: %s\n", rm->why);
        return true;
    }
    return gpu_watch_fd(gpu, rm->fuse.device, EPOLLIN, &gpu->control_watch) &&
           gpu_watch_fd(gpu, rm->fuse.opener, EPOLLIN, &gpu->opener_watch);
}
