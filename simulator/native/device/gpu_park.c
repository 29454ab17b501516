/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts of a checkpointed process. They keep their ids, their rings and the numbers of their
 * allocations, but they are on no card: nothing of them runs, counts or is listed.
 */
#include <cuda.h>

#include "gpu.h"

struct gpu_card *gpu_moved(struct gpu_card *card, uint32_t moves, uint64_t to)
{
    return moves >> card->index & 1 ? &card->gpu->cards[to >> card->index * 4 & 15] : card;
}

bool gpu_moves_bad(const struct gpu_conn *conn, uint32_t moves, uint64_t to)
{
    uint32_t cards = conn->gpu->config.cards, taken = 0;
    if (moves >> SIM_MAX_CARDS)
        return true;
    for (uint32_t i = 0; i < SIM_MAX_CARDS; i++) {
        uint32_t target = (uint32_t)(to >> i * 4 & 15);
        if (!(moves >> i & 1))
            continue;
        if (i >= cards || target >= cards || taken >> target & 1)
            return true;
        taken |= 1u << target;
    }
    for (const struct gpu_ctx *ctx = conn->parked; ctx && moves; ctx = ctx->next)
        if (!(moves >> ctx->card->index & 1))
            return true;
    return false;
}

static bool opened_by_others(const struct gpu_conn *conn)
{
    for (const struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
        if (gpu_ctx_is_held(ctx))
            return true;
    return false;
}

static void leave(struct gpu_ctx *ctx)
{
    struct gpu_conn *conn = ctx->conn;
    conn->past_busy[ctx->card->index] += ctx->model->busy_ns[ENG_COMPUTE];
    gpu_ctx_unbind(ctx);
    model_ctx_leave(ctx->model);
    /* as a new context has them: its groups were told otherwise, and those are gone */
    for (unsigned e = 0; e < MODEL_ENGINES; e++)
        ctx->model->slice_ns[e] = e == ENG_COMPUTE ? conn->slice_ns : 0;
    ctx->model->preempt = PREEMPT_AS_CARD;
    ctx->card->mem_used -= ctx->mem;
    conn->gpu->nctx--;
}

int gpu_park(struct gpu_conn *conn)
{
    if (opened_by_others(conn))
        return CUDA_ERROR_NOT_SUPPORTED;
    while (conn->ctxs) {
        struct gpu_ctx *ctx = conn->ctxs;
        gpu_card_sync(ctx->card);
        leave(ctx);
        conn->ctxs = ctx->next;
        ctx->next = conn->parked;
        conn->parked = ctx;
    }
    return CUDA_SUCCESS;
}

static bool room(struct gpu_conn *conn, uint32_t moves, uint64_t to)
{
    uint64_t needs[SIM_MAX_CARDS] = {0};
    for (struct gpu_ctx *ctx = conn->parked; ctx; ctx = ctx->next)
        needs[gpu_moved(ctx->card, moves, to)->index] += ctx->mem;
    for (unsigned i = 0; i < conn->gpu->config.cards; i++)
        if (needs[i] && !gpu_has_room(conn, &conn->gpu->cards[i], needs[i]))
            return false;
    return true;
}

int gpu_unpark(struct gpu_conn *conn, uint32_t moves, uint64_t to)
{
    for (struct gpu_ctx *ctx = conn->parked; ctx; ctx = ctx->next)
        gpu_card_sync(gpu_moved(ctx->card, moves, to)); /* frees that are due count */
    if (!room(conn, moves, to))
        return CUDA_ERROR_OUT_OF_MEMORY;
    while (conn->parked) {
        struct gpu_ctx *ctx = conn->parked;
        conn->parked = ctx->next;
        ctx->card = gpu_moved(ctx->card, moves, to);
        ctx->shm->card = ctx->card->index;
        ctx->card->mem_used += ctx->mem;
        model_ctx_join(ctx->model, &ctx->card->model);
        conn->gpu->nctx++;
        ctx->next = conn->ctxs;
        conn->ctxs = ctx;
    }
    return CUDA_SUCCESS;
}
