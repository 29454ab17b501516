/* SPDX-License-Identifier: Apache-2.0
 *
 * Events. Their times are the model's, not the time when any CPU thread woke.
 */
#include "cu_capture.h"
#include "cu_context.h"
#include "cu_stream.h"

static uint32_t take_slot(CUcontext ctx)
{
    uint32_t found = SIM_EVENTS;
    pthread_mutex_lock(&ctx->ring_lock);
    for (uint32_t tries = 0; tries < SIM_EVENTS && found == SIM_EVENTS; tries++) {
        uint32_t slot = ctx->next_event++ % SIM_EVENTS;
        if (!ctx->event_used[slot]) {
            ctx->event_used[slot] = 1;
            found = slot;
        }
    }
    pthread_mutex_unlock(&ctx->ring_lock);
    return found;
}

#define get(event) get_in(__func__, event)
static CUresult get_in(const char *function, CUevent event)
{
    CU_TRY(cu_ready_in(function));
    if (!cu_handle_ok(CU_EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    return cu_context_lives(event->ctx, event->ctx_id) ? cu_sticky(event->ctx)
                                                       : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult CUDAAPI cuEventCreate(CUevent *out, unsigned int flags)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (!out || flags & ~7u ||
        (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t slot = take_slot(ctx);
    CUevent event = slot < SIM_EVENTS ? cu_handle_new(CU_EVENT) : NULL;
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->ctx = ctx;
    event->ctx_id = ctx->id;
    event->slot = slot;
    event->flags = flags;
    *out = event;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent event)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (cu_context_lives(event->ctx, event->ctx_id)) {
        pthread_mutex_lock(&event->ctx->ring_lock);
        event->ctx->event_used[event->slot] = 0;
        pthread_mutex_unlock(&event->ctx->ring_lock);
    }
    cu_front_drop(&event->front);
    cu_ipc_end(&event->ipc);
    cu_handle_free(CU_EVENT, event);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy(CUevent event)
{
    return cuEventDestroy_v2(event);
}

static CUresult record(CUevent event, CUstream handle, bool pt)
{
    CUstream stream;
    uint64_t seq = 0;
    CU_TRY(get(event));
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (stream->ctx != event->ctx)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture)
        return cu_capture_record(event, stream);
    event->capture = NULL;
    struct sim_cmd cmd = {.op = SIM_OP_EVENT, .a = event->slot};
    CU_TRY(cu_push(stream, &cmd, true, &seq));
    event->rec_stream = stream->slot;
    event->rec_seq = seq;
    if (event->ipc)
        cu_ipc_record(event, stream->slot, seq);
    return CUDA_SUCCESS;
}
CU_BOTH(cuEventRecord, cuEventRecord_ptsz, record, (CUevent event, CUstream stream), event, stream)

static CUresult record_flags(CUevent event, CUstream stream, unsigned flags, bool pt)
{
    return flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL ? CUDA_ERROR_INVALID_VALUE
                                                       : record(event, stream, pt);
}
CU_BOTH(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz, record_flags,
        (CUevent event, CUstream stream, unsigned int flags), event, stream, flags)

static bool done(CUevent event)
{
    return __atomic_load_n(&event->ctx->shm->events[event->slot].done_seq, __ATOMIC_ACQUIRE) >=
           event->rec_seq;
}

CUresult CUDAAPI cuEventQuery(CUevent event)
{
    CU_TRY(get(event));
    if (event->capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    CU_TRY(cu_capture_unsafe());
    if (cu.lost)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (event->ipc)
        return cu_ipc_query(event);
    return !event->rec_seq || done(event) ? CUDA_SUCCESS : cu_not_ready();
}

CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
    CU_TRY(get(event));
    if (event->capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    CU_TRY(cu_capture_unsafe());
    if (event->ipc)
        return cu_ipc_synchronize(event);
    return event->rec_seq ? cu_wait_event(event->ctx, event->slot, event->rec_seq) : CUDA_SUCCESS;
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
    CU_TRY(get(start));
    CU_TRY(get(end));
    if (!ms)
        return CUDA_ERROR_INVALID_VALUE;
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || !start->rec_seq || !end->rec_seq)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!done(start) || !done(end))
        return CUDA_ERROR_NOT_READY;
    const struct sim_event_word *from = &start->ctx->shm->events[start->slot],
                                *to = &end->ctx->shm->events[end->slot];
    *ms = (float)((double)(int64_t)(to->done_ns - from->done_ns) / 1e6);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    return elapsed(ms, start, end);
}
CUresult CUDAAPI cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
    return elapsed(ms, start, end);
}

static CUresult wait_event(CUstream handle, CUevent event, unsigned flags, bool pt)
{
    CUstream stream;
    CU_TRY(get(event));
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (flags & ~1u)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture || event->capture)
        return cu_capture_wait(stream, event);
    if (event->ipc)
        return cu_ipc_wait(stream, event);
    if (!event->rec_seq)
        return CUDA_SUCCESS;
    struct sim_cmd cmd = {
        .op = SIM_OP_WAIT, .a = event->ctx->id, .b = event->rec_stream, .c = event->rec_seq};
    return cu_push(stream, &cmd, event->ctx != stream->ctx, NULL);
}
CU_BOTH(cuStreamWaitEvent, cuStreamWaitEvent_ptsz, wait_event,
        (CUstream stream, CUevent event, unsigned int flags), stream, event, flags)
