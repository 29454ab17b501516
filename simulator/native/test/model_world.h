/* SPDX-License-Identifier: Apache-2.0
 *
 * For the tests of the model: a card whose hooks write down what happens.
 */
#ifndef QGPU_SIM_MODEL_WORLD_H
#define QGPU_SIM_MODEL_WORLD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_model.h"

#define MS 1000000ull
#define US 1000ull
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: expected %s\n", __func__, __LINE__, #condition);               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct piece {
    uint32_t ctx, stream, flags, op;
    uint64_t seq, t0, t1;
};

struct world {
    struct model_card card;
    struct piece pieces[65536];
    unsigned npieces;
    struct {
        uint32_t ctx, op;
        uint64_t seq, t;
    } done[65536];
    unsigned ndone;
    uint64_t seqs[8];
};

static void on_done(void *arg, struct model_ctx *ctx, const struct model_op *op, uint64_t t)
{
    struct world *w = arg;
    w->done[w->ndone].ctx = ctx->id;
    w->done[w->ndone].op = op->op;
    w->done[w->ndone].seq = op->seq;
    w->done[w->ndone++].t = t;
}

static void on_piece(void *arg, struct model_ctx *ctx, const struct model_op *op, uint64_t t0,
                     uint64_t t1, uint32_t flags)
{
    struct world *w = arg;
    w->pieces[w->npieces++] = (struct piece){ctx->id, op->stream, flags, op->op, op->seq, t0, t1};
}

static struct world *make_with(struct model_params params)
{
    struct world *w = calloc(1, sizeof *w);
    struct model_hooks hooks = {.done = on_done, .piece = on_piece};
    model_init(&w->card, &params, &hooks, w, 0);
    return w;
}

static inline struct world *make(uint64_t slice, uint64_t change)
{
    return make_with((struct model_params){.slice_ns = slice, .switch_ns = change});
}

static void destroy(struct world *w)
{
    while (w->card.ctxs)
        model_ctx_destroy(w->card.ctxs);
    free(w);
}

static uint64_t put(struct world *w, struct model_ctx *ctx, uint32_t op, uint32_t stream,
                    uint64_t at, uint64_t ns)
{
    struct sim_cmd cmd = {.op = op, .stream = stream, .t_submit = at, .a = ns};
    EXPECT(model_submit(ctx, &cmd, ++w->seqs[ctx->id], ns));
    return w->seqs[ctx->id];
}

static uint64_t done_at(const struct world *w, uint32_t ctx, uint64_t seq)
{
    for (unsigned i = 0; i < w->ndone; i++)
        if (w->done[i].ctx == ctx && w->done[i].seq == seq)
            return w->done[i].t;
    return 0;
}

#endif
