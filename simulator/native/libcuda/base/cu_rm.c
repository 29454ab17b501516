/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's calls of the control device, in the order and layouts of the real one as far as
 * those are published. A process makes a client, and a device per card; a context makes an address
 * space, a group of compute channels and two of copy channels. The calls go through libc's ioctl,
 * found as any other symbol: an interposed ioctl sees all of them. Without a control device nothing
 * happens here.
 */
#include "cu.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "qgpu_rm.h"

#define HANDLE_BASE       0x5c000000u
#define COMPUTE_CHANNELS  8u
#define CLASS_CHANNEL     0xc86fu
#define CLASS_SPACE       0x90f1u
#define CLASS_COMPUTE     0xcbc0u
#define CLASS_COPY        0xc8b5u
#define CLASS_UNHEARD_OF  0x83deu /* a debugger's; this driver has none */
#define ESC_REGISTER_FD   201u
#define ESC_CHECK_VERSION 210u
#define ESC_SYS_PARAMS    214u

static atomic_uint handles = HANDLE_BASE;

/* ---- calls ---- */

static int call(unsigned long number, void *data)
{
    int done;
    do
        done = ioctl(cu.rm.fd, number, data);
    while (done < 0 && errno == EINTR);
    return done;
}

static CUresult verdict(int done, uint32_t status)
{
    if (done < 0)
        return errno == ENODEV || errno == ENOTCONN || errno == ECONNABORTED
                   ? CUDA_ERROR_DEVICE_UNAVAILABLE
                   : CUDA_ERROR_OPERATING_SYSTEM;
    return status == RM_OK             ? CUDA_SUCCESS
           : status == RM_NO_RESOURCES ? CUDA_ERROR_OUT_OF_MEMORY
                                       : CUDA_ERROR_UNKNOWN;
}

static CUresult make_client(uint32_t *handle)
{
    struct rm_alloc root = {.class_id = RM_CLASS_ROOT_CLIENT};
    int done = call(RM_ALLOC, &root);
    *handle = root.object;
    return verdict(done, root.status);
}

/* A handle of the program's choice, as the real library does it. */
static CUresult make(uint32_t client, uint32_t parent, uint32_t class_id, void *params,
                     uint32_t size, uint32_t *handle)
{
    struct rm_alloc64 alloc = {.client = client,
                               .parent = parent,
                               .object = atomic_fetch_add(&handles, 1),
                               .class_id = class_id,
                               .params = (uint64_t)(uintptr_t)params,
                               .params_size = size};
    int done = call(RM_ALLOC64, &alloc);
    *handle = alloc.object;
    return verdict(done, alloc.status);
}

static CUresult command(uint32_t client, uint32_t object, uint32_t cmd, void *params, uint32_t size)
{
    struct rm_control control = {.client = client,
                                 .object = object,
                                 .cmd = cmd,
                                 .params = (uint64_t)(uintptr_t)params,
                                 .params_size = size};
    int done = call(RM_CONTROL, &control);
    return verdict(done, control.status);
}

static void release(uint32_t client, uint32_t parent, uint32_t *object)
{
    struct rm_free gone = {.client = client, .parent = parent, .object = *object};
    if (*object)
        call(RM_FREE, &gone);
    *object = 0;
}

/* ---- the process ---- */

/* Calls that mean nothing here, like many of the real library: a watcher has to let them pass. */
static void say_hello(void)
{
    struct {
        uint32_t command, reply;
        char version[64];
    } version = {.command = '2', .reply = 0};
    uint64_t block = 0;
    int fd = cu.rm.fd;
    uint32_t ignored;
    call(_IOWR(RM_MAGIC, ESC_CHECK_VERSION, version), &version);
    call(_IOWR(RM_MAGIC, ESC_SYS_PARAMS, block), &block);
    /* EINVAL: for files of cards */
    call(_IOWR(RM_MAGIC, ESC_REGISTER_FD, fd), &fd);
    make(cu.rm.client, cu.rm.client, CLASS_UNHEARD_OF, NULL, 0, &ignored); /* is refused */
}

void cu_rm_close(void)
{
    if (cu.rm.fd >= 0)
        close(cu.rm.fd);
    cu.rm.fd = -1;
}

CUresult cu_rm_open(void)
{
    struct sim_rep rep;
    cu.rm.fd = -1;
    CUresult status = cu_request(SIM_REQ_CONTROL_FILE, 0, 0, &rep, sizeof rep, &cu.rm.fd, 1);
    if (cu.rm.fd < 0)
        return status == CUDA_ERROR_DEVICE_UNAVAILABLE ? status : CUDA_SUCCESS;
    status = make_client(&cu.rm.client);
    if (status == CUDA_SUCCESS)
        status = make_client(&cu.rm.memory_client);
    if (status != CUDA_SUCCESS) {
        cu_rm_close();
        return status;
    }
    say_hello();
    return CUDA_SUCCESS;
}

/* What is made of a client goes with it, also where another process has the file. */
void cu_rm_leave(void)
{
    if (cu.rm.fd < 0)
        return;
    release(cu.rm.memory_client, cu.rm.memory_client, &cu.rm.memory_client);
    release(cu.rm.client, cu.rm.client, &cu.rm.client);
    for (int i = 0; i < cu.ndevices; i++)
        cu.devices[i].rm = (struct cu_rm_place){0};
    cu_rm_close();
}

/* ---- cards ---- */

static CUresult make_device(uint32_t client, const struct cu_device *device, uint32_t *handle)
{
    struct rm_device_params params = {.device = device->info.index};
    return make(client, client, RM_CLASS_DEVICE, &params, sizeof params, handle);
}

static CUresult open_place(const struct cu_device *device, uint32_t client,
                           struct cu_rm_place *place)
{
    struct rm_gid gid = {.flags = RM_GID_BINARY};
    place->client = client;
    CU_TRY(make_device(client, device, &place->device));
    CU_TRY(make(client, place->device, RM_CLASS_SUBDEVICE, NULL, 0, &place->subdevice));
    CU_TRY(make_device(cu.rm.memory_client, device, &place->memory_device));
    return command(client, place->subdevice, RM_SUBDEVICE_GET_GID, &gid, sizeof gid);
}

/* The process's objects of the card, made at its first context; or, as some versions of the library
 * do, the context's own client with objects of the card. */
static CUresult find_place(CUcontext ctx)
{
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
    struct cu_rm_place *shared = &ctx->device->rm;
    CUresult status = CUDA_SUCCESS;
    uint32_t client;
    if (cu.page->options & SIM_OPTION_CLIENT_PER_CONTEXT) {
        CU_TRY(make_client(&client));
        ctx->rm.own_client = true;
        return open_place(ctx->device, client, &ctx->rm.place);
    }
    pthread_mutex_lock(&opening);
    if (!shared->client) {
        status = open_place(ctx->device, cu.rm.client, shared);
        if (status != CUDA_SUCCESS)
            *shared = (struct cu_rm_place){0};
    }
    ctx->rm.place = *shared;
    pthread_mutex_unlock(&opening);
    return status;
}

/* ---- contexts ---- */

static CUresult make_channels(uint32_t client, uint32_t group, unsigned count,
                              uint32_t object_class)
{
    uint32_t channel, object;
    for (unsigned i = 0; i < count; i++) {
        CU_TRY(make(client, group, CLASS_CHANNEL, NULL, 0, &channel));
        CU_TRY(make(client, channel, object_class, NULL, 0, &object));
    }
    return CUDA_SUCCESS;
}

static CUresult make_group(CUcontext ctx, uint32_t engine, uint32_t *group)
{
    struct rm_group_params params = {.va_space = ctx->rm.space, .engine = engine};
    const struct cu_rm_place *place = &ctx->rm.place;
    bool compute = engine == RM_ENGINE_GRAPHICS;
    CU_TRY(make(place->client, place->device, RM_CLASS_GROUP, &params, sizeof params, group));
    return make_channels(place->client, *group, compute ? COMPUTE_CHANNELS : 1,
                         compute ? CLASS_COMPUTE : CLASS_COPY);
}

static CUresult make_space(CUcontext ctx)
{
    const struct cu_rm_place *place = &ctx->rm.place;
    CU_TRY(make(place->client, place->device, CLASS_SPACE, NULL, 0, &ctx->rm.space));
    struct rm_dup dup = {.client = cu.rm.memory_client,
                         .parent = place->memory_device,
                         .client_from = place->client,
                         .object_from = ctx->rm.space};
    int done = call(RM_DUP, &dup);
    ctx->rm.memory_space = dup.object;
    return verdict(done, dup.status);
}

CUresult cu_rm_context(CUcontext ctx)
{
    struct rm_schedule on = {.enable = 1};
    uint32_t *groups = ctx->rm.groups;
    memset(&ctx->rm, 0, sizeof ctx->rm);
    if (cu.rm.fd < 0)
        return CUDA_SUCCESS;
    CU_TRY(find_place(ctx));
    CU_TRY(make_space(ctx));
    CU_TRY(make_group(ctx, RM_ENGINE_GRAPHICS, &groups[0]));
    CU_TRY(make_group(ctx, RM_ENGINE_COPY0, &groups[1]));
    CU_TRY(make_group(ctx, RM_ENGINE_COPY0 + 1, &groups[2]));
    CU_TRY(cu_bind_groups(ctx->id, ctx->rm.place.client, groups));
    for (unsigned i = 0; i < CU_GROUPS; i++)
        CU_TRY(command(ctx->rm.place.client, groups[i], RM_GROUP_SCHEDULE, &on, sizeof on));
    return CUDA_SUCCESS;
}

/* The context is gone from the card, nothing runs in its groups any more. */
void cu_rm_context_gone(CUcontext ctx)
{
    struct cu_rm_place *place = &ctx->rm.place;
    if (cu.rm.fd < 0)
        return;
    for (unsigned i = 0; i < CU_GROUPS; i++)
        release(place->client, place->device, &ctx->rm.groups[i]);
    release(cu.rm.memory_client, place->memory_device, &ctx->rm.memory_space);
    release(place->client, place->device, &ctx->rm.space);
    if (ctx->rm.own_client) {
        release(cu.rm.memory_client, cu.rm.memory_client, &place->memory_device);
        release(place->client, place->client, &place->client);
    }
}
