/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams.
 */
#include "cu_context.h"
#include "cu_stream.h"

void cu_stream_setup(CUstream stream, CUcontext ctx, uint32_t slot, unsigned flags)
{
    *stream =
        (struct CUstream_st){.magic = CU_STREAM,
                             .ctx = ctx,
                             .ctx_id = ctx->id,
                             .slot = slot,
                             .flags = flags,
                             .cmd_flags = flags & CU_STREAM_NON_BLOCKING ? SIM_CMD_NONBLOCKING : 0};
}

/* Threads share the per-thread slots round robin once there are more than 16 of them. */
static CUstream mine(CUcontext ctx)
{
    static _Atomic unsigned threads;
    static __thread unsigned me;
    if (!me)
        me = 1 + atomic_fetch_add(&threads, 1) % SIM_STREAM_PT_N;
    return &ctx->per_thread[me - 1];
}

CUresult cu_stream_get(CUstream handle, bool per_thread, CUstream *stream)
{
    CUcontext ctx;
    if (handle > CU_STREAM_PER_THREAD) {
        CU_TRY(cu_ready());
        if (!cu_handle_ok(CU_STREAM, handle))
            return CUDA_ERROR_INVALID_HANDLE;
        *stream = handle;
        if (handle->green && !cu_green_ok(handle->green))
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        return cu_context_lives(handle->ctx, handle->ctx_id) ? cu_sticky(handle->ctx)
                                                             : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    CU_TRY(cu_current(&ctx));
    per_thread = handle == CU_STREAM_PER_THREAD || (per_thread && !handle);
    *stream = per_thread ? mine(ctx) : &ctx->legacy;
    return CUDA_SUCCESS;
}

static uint32_t take_slot(CUcontext ctx)
{
    pthread_mutex_lock(&ctx->ring_lock);
    for (uint32_t tries = SIM_STREAM_USER; tries < SIM_STREAM_ALL; tries++) {
        uint32_t slot = ctx->next_stream++;
        if (ctx->next_stream >= SIM_STREAM_ALL)
            ctx->next_stream = SIM_STREAM_USER;
        if (!ctx->stream_used[slot]) {
            ctx->stream_used[slot] = 1;
            pthread_mutex_unlock(&ctx->ring_lock);
            return slot;
        }
    }
    pthread_mutex_unlock(&ctx->ring_lock);
    return 0;
}

CUresult cu_stream_new(CUcontext ctx, unsigned flags, CUstream *out)
{
    uint32_t slot = take_slot(ctx);
    CUstream stream = slot ? cu_handle_new(CU_STREAM) : NULL;
    if (!stream) {
        if (slot)
            ctx->stream_used[slot] = 0;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    cu_stream_setup(stream, ctx, slot, flags);
    *out = stream;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (!out || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    CUstream stream;
    CU_TRY(cu_stream_new(ctx, flags, &stream));
    stream->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    stream->green = cu_green_current();
    *out = stream;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCreate(CUstream *out, unsigned int flags)
{
    CU_TRY(cu_enter(__func__));
    return cuStreamCreateWithPriority(out, flags, 0);
}

/* Work in flight goes on: a later stream in the same slot queues behind it. */
CUresult CUDAAPI cuStreamDestroy_v2(CUstream handle)
{
    CU_TRY(cu_ready());
    if (handle <= CU_STREAM_PER_THREAD || !cu_handle_ok(CU_STREAM, handle))
        return CUDA_ERROR_INVALID_HANDLE;
    if (cu_context_lives(handle->ctx, handle->ctx_id)) {
        pthread_mutex_lock(&handle->ctx->ring_lock);
        handle->ctx->stream_used[handle->slot] = 0;
        pthread_mutex_unlock(&handle->ctx->ring_lock);
    }
    cu_handle_free(CU_STREAM, handle);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamDestroy(CUstream handle)
{
    return cuStreamDestroy_v2(handle);
}

static CUresult synchronize(CUstream handle, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    return stream->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : cu_stream_sync(stream);
}
CU_BOTH(cuStreamSynchronize, cuStreamSynchronize_ptsz, synchronize, (CUstream stream), stream)

/* The device publishes what it passes when it wakes; a fence behind unfinished work makes it wake
 * in time. */
static CUresult query(CUstream handle, bool pt)
{
    CUstream stream;
    uint64_t seq;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (cu_seq_done(stream->ctx, stream->slot, stream->last_seq))
        return CUDA_SUCCESS;
    if (stream->fence_seq != stream->last_seq)
        CU_TRY(cu_fence(stream, &seq));
    if (cu.lost)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return cu_seq_done(stream->ctx, stream->slot, stream->last_seq) ? CUDA_SUCCESS : cu_not_ready();
}
CU_BOTH(cuStreamQuery, cuStreamQuery_ptsz, query, (CUstream stream), stream)

static CUresult get_flags(CUstream handle, unsigned *flags, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamGetFlags, cuStreamGetFlags_ptsz, get_flags, (CUstream stream, unsigned int *flags),
        stream, flags)

static CUresult get_priority(CUstream handle, int *priority, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!priority)
        return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamGetPriority, cuStreamGetPriority_ptsz, get_priority,
        (CUstream stream, int *priority), stream, priority)

static CUresult get_ctx_green(CUstream handle, CUcontext *ctx, CUgreenCtx *green, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!ctx)
        return CUDA_ERROR_INVALID_VALUE;
    *ctx = stream->ctx;
    if (green)
        *green = handle > CU_STREAM_PER_THREAD ? stream->green : cu_green_current();
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz, get_ctx_green,
        (CUstream stream, CUcontext *ctx, CUgreenCtx *green), stream, ctx, green)

static CUresult get_ctx(CUstream stream, CUcontext *ctx, bool pt)
{
    CUgreenCtx green;
    CU_TRY(get_ctx_green(stream, ctx, &green, pt));
    if (green)
        *ctx = cu_green_context(green);
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamGetCtx, cuStreamGetCtx_ptsz, get_ctx, (CUstream stream, CUcontext *ctx), stream,
        ctx)

static CUresult get_id(CUstream handle, unsigned long long *id, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = (unsigned long long)stream->ctx->id << 32 | stream->slot;
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamGetId, cuStreamGetId_ptsz, get_id, (CUstream stream, unsigned long long *id),
        stream, id)

static CUresult get_device(CUstream handle, CUdevice *dev, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!dev)
        return CUDA_ERROR_INVALID_VALUE;
    *dev = (CUdevice)(stream->ctx->device - cu.devices);
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamGetDevice, cuStreamGetDevice_ptsz, get_device, (CUstream stream, CUdevice *dev),
        stream, dev)
