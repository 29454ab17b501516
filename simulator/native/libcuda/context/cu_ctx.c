/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts and the stack of current contexts of each thread.
 */
#include "cu_alloc.h"
#include "cu_context.h"
#include "cu_stream.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static __thread CUcontext stack[CU_MAX_STACK];
static __thread int depth;

CUresult cu_sticky(CUcontext ctx)
{
    return (CUresult)__atomic_load_n(&ctx->shm->sticky, __ATOMIC_ACQUIRE);
}

/* The context that does the work for this one: a green one's is the primary one. */
static CUresult whole(CUcontext ctx, CUcontext *out)
{
    *out = ctx;
    if (ctx->green)
        CU_TRY(cu_green_primary(ctx->green, out));
    return cu_sticky(*out);
}

CUresult cu_current_in(const char *function, CUcontext *ctx)
{
    CU_TRY(cu_ready_in(function));
    if (!depth || !stack[depth - 1])
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!cu_handle_ok(CU_CTX, stack[depth - 1]))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return whole(stack[depth - 1], ctx);
}

CUgreenCtx cu_green_current(void)
{
    return depth && cu_handle_ok(CU_CTX, stack[depth - 1]) ? stack[depth - 1]->green : NULL;
}

static CUresult push(CUcontext ctx)
{
    if (depth == CU_MAX_STACK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

static CUresult map_shared(CUcontext ctx, struct cu_device *device)
{
    struct sim_rep rep;
    int fds[2] = {-1, -1};
    CU_TRY(cu_request(SIM_REQ_CTX_CREATE, device->info.index, 0, &rep, sizeof rep, fds, 2));
    ctx->id = (uint32_t)rep.a;
    ctx->bell = fds[1];
    void *map = fds[0] < 0 ? MAP_FAILED
                           : mmap(NULL, sizeof(struct sim_shared), PROT_READ | PROT_WRITE,
                                  MAP_SHARED, fds[0], 0);
    if (fds[0] >= 0)
        close(fds[0]);
    if (map == MAP_FAILED) {
        cu_request(SIM_REQ_CTX_DESTROY, ctx->id, 0, &rep, sizeof rep, NULL, 0);
        if (fds[1] >= 0)
            close(fds[1]);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    ctx->shm = map;
    return CUDA_SUCCESS;
}

/* The mapping stays: a thread may still read a destroyed context. */
static CUresult remove_from_card(CUcontext ctx)
{
    struct sim_rep rep;
    CUresult status = cu_request(SIM_REQ_CTX_DESTROY, ctx->id, 0, &rep, sizeof rep, NULL, 0);
    cu_rm_context_gone(ctx);
    close(ctx->bell);
    return status;
}

static CUresult start(CUcontext ctx, unsigned flags, struct cu_device *device)
{
    CUresult status = map_shared(ctx, device);
    if (status != CUDA_SUCCESS)
        return status;
    ctx->device = device;
    ctx->flags = flags;
    pthread_mutex_init(&ctx->ring_lock, NULL);
    cu_stream_setup(&ctx->legacy, ctx, 0, 0);
    cu_stream_setup(&ctx->all, ctx, SIM_STREAM_ALL, CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < SIM_STREAM_PT_N; i++)
        cu_stream_setup(&ctx->per_thread[i], ctx, SIM_STREAM_PT + i, 0);
    ctx->next_stream = SIM_STREAM_USER;
    cu_limits_start(ctx);
    status = cu_rm_context(ctx);
    if (status != CUDA_SUCCESS)
        remove_from_card(ctx);
    return status;
}

CUresult cu_context_start(CUcontext ctx, unsigned flags, struct cu_device *device)
{
    cu_gate_begin();
    CUresult status = start(ctx, flags, device);
    cu_gate_end();
    return status;
}

CUresult cu_context_end(CUcontext ctx)
{
    cu_storage_end(ctx);
    cu_stream_sync(&ctx->all);
    cu_gate_begin();
    CUresult status = remove_from_card(ctx);
    cu_gate_end();
    cu_memory_forget(ctx); /* needs locks whose holders may wait at the gate */
    return status;
}

/* A context, or the handle of a primary one that is not active now: it can be made current, and is
 * refused by what needs a context. */
static bool may_be_current(CUcontext ctx)
{
    return cu_handle_ok(CU_CTX, ctx) || cu_primary_of(ctx);
}

static CUresult create_current(CUcontext *out, unsigned flags, CUdevice dev)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (depth == CU_MAX_STACK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUcontext ctx = cu_handle_new(CU_CTX);
    if (!ctx)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = cu_context_start(ctx, flags, device);
    if (status != CUDA_SUCCESS) {
        cu_handle_free(CU_CTX, ctx);
        return status;
    }
    *out = ctx;
    return push(ctx);
}

CUresult CUDAAPI cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
    return create_current(ctx, flags, dev);
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
    return create_current(ctx, flags, dev);
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *affinity, int n,
                                unsigned int flags, CUdevice dev)
{
    (void)affinity;
    return n ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create_current(ctx, flags, dev);
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned int flags,
                                CUdevice dev)
{
    if (params && params->numExecAffinityParams)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create_current(ctx, flags, dev);
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_CTX, ctx) || ctx->is_primary || ctx->green)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth && stack[depth - 1] == ctx)
        depth--;
    CUresult status = cu_context_end(ctx);
    cu_handle_free(CU_CTX, ctx);
    return status;
}

CUresult CUDAAPI cuCtxDestroy(CUcontext ctx)
{
    return cuCtxDestroy_v2(ctx);
}

CUresult CUDAAPI cuCtxAttach(CUcontext *out, unsigned int flags)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (ctx->is_primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    ctx->more++;
    *out = ctx;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxDetach(CUcontext ctx)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_CTX, ctx) || ctx->is_primary || ctx->green || !depth ||
        stack[depth - 1] != ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (ctx->more) {
        ctx->more--;
        return CUDA_SUCCESS;
    }
    return cuCtxDestroy_v2(ctx);
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext ctx)
{
    CU_TRY(cu_ready());
    return may_be_current(ctx) ? push(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext ctx)
{
    return cuCtxPushCurrent_v2(ctx);
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *ctx)
{
    CU_TRY(cu_ready());
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (ctx)
        *ctx = stack[depth];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *ctx)
{
    return cuCtxPopCurrent_v2(ctx);
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx)
{
    CU_TRY(cu_ready());
    if (ctx && !may_be_current(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!ctx) {
        depth -= depth > 0;
        return CUDA_SUCCESS;
    }
    if (!depth)
        return push(ctx);
    stack[depth - 1] = ctx;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *ctx)
{
    CU_TRY(cu_ready());
    if (!ctx)
        return CUDA_ERROR_INVALID_VALUE;
    *ctx = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice *dev)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (!dev)
        return CUDA_ERROR_INVALID_VALUE;
    *dev = (CUdevice)(ctx->device - cu.devices);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *dev, CUcontext ctx)
{
    if (!ctx)
        return cuCtxGetDevice(dev);
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_CTX, ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    *dev = (CUdevice)(ctx->device - cu.devices);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    return cu_stream_sync(&ctx->all);
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx)
{
    if (!ctx)
        return cuCtxSynchronize();
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_CTX, ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    CU_TRY(whole(ctx, &ctx));
    return cu_stream_sync(&ctx->all);
}

CUresult CUDAAPI cuCtxGetFlags(unsigned int *flags)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = ctx->flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetFlags(unsigned int flags)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    ctx->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    CU_TRY(cu_ready());
    if (ctx ? !cu_handle_ok(CU_CTX, ctx) : !depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
    if (ctx)
        CU_TRY(cu_ready());
    else
        CU_TRY(cu_current(&ctx));
    if (!cu_handle_ok(CU_CTX, ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    *id = ctx->id;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config)
{
    CUcontext ctx;
    (void)config;
    return cu_current(&ctx);
}
