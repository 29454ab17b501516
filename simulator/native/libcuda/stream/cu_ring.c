/* SPDX-License-Identifier: Apache-2.0
 *
 * Submitting commands and waiting for them. A launch is one clock read and one ring slot. The
 * device side is woken only for commands whose end can be observed: its model replays the past
 * exactly.
 */
#include "cu_alloc.h"
#include "cu_capture.h"
#include "cu_context.h"
#include "cu_stream.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LONG_NS  100000000 /* the end of the device side is noticed that late */
#define SHORT_NS 10000000

static void futex_wait(uint32_t *word, uint32_t value, long ns)
{
    struct timespec limit = {.tv_nsec = ns};
    if (syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0) != 0 && errno == ETIMEDOUT)
        cu_server_alive();
}

static CUresult gone(const struct CUctx_st *ctx)
{
    if (cu.lost)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (__atomic_load_n(&ctx->shm->sticky, __ATOMIC_ACQUIRE))
        return (CUresult)ctx->shm->sticky;
    return __atomic_load_n(&ctx->shm->dead, __ATOMIC_ACQUIRE) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                              : CUDA_SUCCESS;
}

void cu_ring_bell(CUcontext ctx)
{
    uint64_t one = 1;
    if (__atomic_exchange_n(&ctx->shm->need_bell, 0, __ATOMIC_SEQ_CST) &&
        write(ctx->bell, &one, sizeof one) < 0)
        cu_server_alive();
}

bool cu_ring_full(CUcontext ctx)
{
    return ctx->head - __atomic_load_n(&ctx->shm->finished, __ATOMIC_SEQ_CST) >= ctx->shm->depth;
}

/* Blocks at the queue depth, as a real launch does. */
static CUresult wait_for_room(CUcontext ctx)
{
    CUresult status = CUDA_SUCCESS;
    uint64_t one = 1;
    __atomic_add_fetch(&ctx->shm->space_waiters, 1, __ATOMIC_SEQ_CST);
    for (;;) {
        uint32_t gen = __atomic_load_n(&ctx->shm->space_gen, __ATOMIC_SEQ_CST);
        if (!cu_ring_full(ctx) || (status = gone(ctx)) != CUDA_SUCCESS)
            break;
        if (write(ctx->bell, &one, sizeof one) < 0)
            cu_server_alive();
        futex_wait(&ctx->shm->space_gen, gen, LONG_NS);
    }
    __atomic_sub_fetch(&ctx->shm->space_waiters, 1, __ATOMIC_SEQ_CST);
    return status;
}

CUresult cu_push(CUstream stream, const struct sim_cmd *cmd, bool bell, uint64_t *seq)
{
    CUcontext ctx = stream->ctx;
    CUresult status = CUDA_SUCCESS;
    if (stream->capture)
        return cu_capture(stream, cmd);
    cu_gate_lock(&ctx->ring_lock);
    if (cu_ring_full(ctx))
        status = wait_for_room(ctx);
    if (status == CUDA_SUCCESS) {
        struct sim_cmd *slot = &ctx->shm->ring[ctx->head % SIM_RING];
        *slot = *cmd;
        slot->stream = stream->slot;
        slot->flags = stream->cmd_flags | (cmd->flags & SIM_CMD_NODE);
        slot->t_submit = cu_now();
        ctx->head++;
        atomic_store_explicit(&stream->last_seq, ctx->head, memory_order_relaxed);
        if (seq)
            *seq = ctx->head;
        __atomic_store_n(&ctx->shm->head, ctx->head, bell ? __ATOMIC_SEQ_CST : __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&ctx->ring_lock);
    if (bell && status == CUDA_SUCCESS)
        cu_ring_bell(ctx);
    return status;
}

bool cu_seq_done(CUcontext ctx, uint32_t slot, uint64_t seq)
{
    return __atomic_load_n(&ctx->shm->streams[slot].done_seq, __ATOMIC_ACQUIRE) >= seq;
}

static CUresult wait_word(CUcontext ctx, uint64_t *done, uint32_t *gen, uint32_t *waiters,
                          uint64_t seq)
{
    CUresult status = CUDA_SUCCESS;
    if (__atomic_load_n(done, __ATOMIC_ACQUIRE) >= seq)
        return cu_sticky(ctx);
    __atomic_add_fetch(waiters, 1, __ATOMIC_SEQ_CST);
    for (;;) {
        uint32_t seen = __atomic_load_n(gen, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(done, __ATOMIC_SEQ_CST) >= seq || (status = gone(ctx)) != CUDA_SUCCESS)
            break;
        futex_wait(gen, seen, LONG_NS);
    }
    __atomic_sub_fetch(waiters, 1, __ATOMIC_SEQ_CST);
    return status == CUDA_SUCCESS ? cu_sticky(ctx) : status; /* it may have ended in a fault */
}

CUresult cu_wait_work(CUcontext ctx, uint32_t slot, uint64_t seq)
{
    struct sim_stream_word *word = &ctx->shm->streams[slot];
    return wait_word(ctx, &word->done_seq, &word->gen, &word->waiters, seq);
}

CUresult cu_wait_seq(CUcontext ctx, uint32_t slot, uint64_t seq)
{
    CUresult status = cu_wait_work(ctx, slot, seq);
    cu_pool_settle();
    return status;
}

/* For a thread that has to look elsewhere, too. */
CUresult cu_wait_shortly(CUcontext ctx, uint32_t slot, uint64_t seq)
{
    struct sim_stream_word *word = &ctx->shm->streams[slot];
    __atomic_add_fetch(&word->waiters, 1, __ATOMIC_SEQ_CST);
    uint32_t seen = __atomic_load_n(&word->gen, __ATOMIC_SEQ_CST);
    if (!cu_seq_done(ctx, slot, seq) && gone(ctx) == CUDA_SUCCESS)
        futex_wait(&word->gen, seen, SHORT_NS);
    __atomic_sub_fetch(&word->waiters, 1, __ATOMIC_SEQ_CST);
    CUresult status = gone(ctx);
    return status == CUDA_SUCCESS && !cu_seq_done(ctx, slot, seq) ? CUDA_ERROR_NOT_READY : status;
}

CUresult cu_wait_event(CUcontext ctx, uint32_t slot, uint64_t seq)
{
    struct sim_event_word *word = &ctx->shm->events[slot];
    CUresult status = wait_word(ctx, &word->done_seq, &word->gen, &word->waiters, seq);
    cu_pool_settle();
    return status;
}

CUresult cu_fence(CUstream stream, uint64_t *seq)
{
    struct sim_cmd cmd = {.op = SIM_OP_FENCE};
    CU_TRY(cu_push(stream, &cmd, true, seq));
    atomic_store_explicit(&stream->fence_seq, *seq, memory_order_relaxed);
    return CUDA_SUCCESS;
}

CUresult cu_stream_sync(CUstream stream)
{
    uint64_t seq;
    CU_TRY(gone(stream->ctx));
    CU_TRY(cu_fence(stream, &seq));
    return cu_wait_seq(stream->ctx, stream->slot, seq);
}
