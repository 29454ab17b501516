/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the card: what each context holds, and whether there is room.
 */
#include <cuda.h>
#include <stdlib.h>

#include "gpu.h"

static uint64_t round_size(uint64_t bytes)
{
    uint64_t unit = bytes < (1u << 20) ? 4096 : 2u << 20;
    return (bytes + unit - 1) / unit * unit;
}

static bool room_for(struct gpu_ctx *ctx)
{
    if (ctx->nallocs < ctx->room)
        return true;
    uint32_t room = ctx->room ? ctx->room * 2 : 64;
    struct gpu_alloc *grown =
        room <= GPU_MAX_ALLOCS ? realloc(ctx->allocs, room * sizeof *grown) : NULL;
    if (!grown)
        return false;
    ctx->allocs = grown;
    ctx->room = room;
    return true;
}

bool gpu_has_room(struct gpu_conn *conn, struct gpu_card *card, uint64_t bytes)
{
    uint64_t total, used;
    return bytes <= gpu_limit_room(conn, card, &total, &used);
}

uint64_t gpu_conn_memory(const struct gpu_conn *conn, const struct gpu_card *card)
{
    uint64_t sum = gpu_held_by(conn, card);
    for (const struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
        sum += ctx->card == card ? ctx->mem : 0;
    return sum;
}

int gpu_ctx_alloc(struct gpu_ctx *ctx, uint64_t bytes, uint64_t *id)
{
    struct gpu_card *card = ctx->card;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > card->mem_total || !room_for(ctx))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t size = round_size(bytes);
    if (!gpu_has_room(ctx->conn, card, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *id = ++ctx->next_alloc;
    ctx->allocs[ctx->nallocs++] = (struct gpu_alloc){*id, size};
    ctx->mem += size;
    card->mem_used += size;
    return CUDA_SUCCESS;
}

int gpu_ctx_free(struct gpu_ctx *ctx, uint64_t id)
{
    /* the youngest first: programs free what they took last */
    for (uint32_t i = ctx->nallocs; i-- > 0;)
        if (ctx->allocs[i].id == id) {
            ctx->mem -= ctx->allocs[i].bytes;
            if (!gpu_held_on(ctx, id))
                ctx->card->mem_used -= ctx->allocs[i].bytes;
            ctx->allocs[i] = ctx->allocs[--ctx->nallocs];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}
