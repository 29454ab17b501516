/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that other processes have opened. It stays on the card until the last of them has let go,
 * whatever becomes of its maker. NVML counts it for the maker while that has it, then for the first
 * process that still holds it.
 */
#include <stdlib.h>

#include "gpu.h"

struct gpu_hold {
    struct gpu_hold *next;
    struct gpu_conn *conn;
    struct gpu_card *card;
    uint32_t ctx; /* with the next: which memory */
    uint64_t alloc;
    uint64_t id, bytes;
    bool counts; /* the maker has let go, and this one stands for the bytes */
};

static struct gpu_hold *another(struct gpu *gpu, uint32_t ctx, uint64_t alloc)
{
    struct gpu_hold *hold = gpu->holds;
    while (hold && (hold->ctx != ctx || hold->alloc != alloc))
        hold = hold->next;
    return hold;
}

static uint64_t bytes_of(const struct gpu_ctx *ctx, uint64_t alloc)
{
    for (uint32_t i = 0; i < ctx->nallocs; i++)
        if (ctx->allocs[i].id == alloc)
            return ctx->allocs[i].bytes;
    return 0;
}

uint64_t gpu_hold(struct gpu_conn *conn, uint32_t id, uint64_t alloc)
{
    struct gpu *gpu = conn->gpu;
    struct gpu_ctx *ctx = gpu_ctx_find(gpu, id);
    const struct gpu_hold *like = another(gpu, id, alloc);
    struct gpu_hold hold = {.conn = conn, .ctx = id, .alloc = alloc};
    if (ctx && ctx->conn->uid == conn->uid) {
        hold.card = ctx->card;
        hold.bytes = bytes_of(ctx, alloc);
    }
    if (!hold.bytes && like && like->conn->uid == conn->uid) { /* its maker has let go */
        hold.card = like->card;
        hold.bytes = like->bytes;
    }
    struct gpu_hold *made = hold.bytes ? malloc(sizeof *made) : NULL;
    if (!made)
        return 0;
    hold.id = ++gpu->last_hold;
    hold.next = gpu->holds;
    *made = hold;
    gpu->holds = made;
    return made->id;
}

static void let_go(struct gpu *gpu, struct gpu_hold **link)
{
    struct gpu_hold *gone = *link, *heir;
    *link = gone->next;
    heir = gone->counts ? another(gpu, gone->ctx, gone->alloc) : NULL;
    if (heir)
        heir->counts = true;
    else if (gone->counts)
        gone->card->mem_used -= gone->bytes;
    free(gone);
}

void gpu_let_go(struct gpu_conn *conn, uint64_t id)
{
    struct gpu_hold **link = &conn->gpu->holds;
    while (*link && ((*link)->conn != conn || (*link)->id != id))
        link = &(*link)->next;
    if (*link)
        let_go(conn->gpu, link);
}

void gpu_let_all_go(struct gpu_conn *conn)
{
    struct gpu_hold **link = &conn->gpu->holds;
    while (*link)
        if ((*link)->conn == conn)
            let_go(conn->gpu, link);
        else
            link = &(*link)->next;
}

bool gpu_held_on(struct gpu_ctx *ctx, uint64_t alloc)
{
    struct gpu_hold *heir = another(ctx->conn->gpu, ctx->id, alloc);
    if (heir)
        heir->counts = true;
    return heir != NULL;
}

bool gpu_ctx_is_held(const struct gpu_ctx *ctx)
{
    const struct gpu_hold *hold = ctx->conn->gpu->holds;
    while (hold && hold->ctx != ctx->id)
        hold = hold->next;
    return hold != NULL;
}

void gpu_ctx_bequeath(struct gpu_ctx *ctx)
{
    for (const struct gpu_hold *hold = ctx->conn->gpu->holds; hold; hold = hold->next)
        if (hold->ctx == ctx->id && !hold->counts)
            gpu_ctx_free(ctx, hold->alloc); /* a second one finds it gone */
}

uint64_t gpu_held_by(const struct gpu_conn *conn, const struct gpu_card *card)
{
    uint64_t sum = 0;
    for (const struct gpu_hold *hold = conn->gpu->holds; hold; hold = hold->next)
        sum += hold->conn == conn && hold->card == card && hold->counts ? hold->bytes : 0;
    return sum;
}
