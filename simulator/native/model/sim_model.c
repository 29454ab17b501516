/* SPDX-License-Identifier: Apache-2.0
 *
 * The queues of the model: contexts, streams, submission, and taking a finished command out.
 */
#include "sim_model.h"

#include <stdlib.h>
#include <string.h>

void model_init(struct model_card *card, const struct model_params *params,
                const struct model_hooks *hooks, void *arg, uint64_t now)
{
    *card = (struct model_card){.params = *params, .hooks = *hooks, .arg = arg, .t = now};
}

struct model_ctx *model_ctx_create(struct model_card *card, uint32_t id, void *owner)
{
    struct model_ctx *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return NULL;
    ctx->id = id;
    ctx->owner = owner;
    model_ctx_join(ctx, card);
    return ctx;
}

void model_ctx_join(struct model_ctx *ctx, struct model_card *card)
{
    struct model_ctx **end = &card->ctxs;
    while (*end)
        end = &(*end)->next;
    ctx->card = card;
    ctx->next = NULL;
    *end = ctx;
}

void model_stop_piece(struct model_card *card, unsigned engine, uint32_t flags)
{
    struct model_engine *eng = &card->engines[engine];
    if (!eng->executing)
        return;
    eng->executing = false;
    if (card->t > eng->piece_start && card->hooks.piece)
        card->hooks.piece(card->arg, eng->cur, model_at(eng->cur, eng->cur->running[engine]),
                          eng->piece_start, card->t, flags);
}

static void leave_engines(struct model_ctx *ctx)
{
    struct model_card *card = ctx->card;
    for (unsigned e = 0; e < MODEL_ENGINES; e++)
        if (card->engines[e].cur == ctx) {
            model_stop_piece(card, e, SIM_TRACE_CUT | SIM_TRACE_LAST);
            card->engines[e].cur = NULL;
            card->engines[e].switch_left = 0;
        }
}

void model_ctx_abort(struct model_ctx *ctx)
{
    leave_engines(ctx);
    while (ctx->nactive) {
        struct model_stream *stream = &ctx->streams[ctx->active[--ctx->nactive]];
        stream->head = stream->tail = stream->active = 0;
    }
    memset(ctx->running, 0, sizeof ctx->running);
    ctx->nops = ctx->nhost = ctx->ncopies = 0;
    ctx->free_op = ctx->fresh = 0;
}

void model_ctx_leave(struct model_ctx *ctx)
{
    struct model_ctx **link = &ctx->card->ctxs;
    model_ctx_abort(ctx);
    while (*link != ctx)
        link = &(*link)->next;
    *link = ctx->next;
    ctx->card = NULL;
    ctx->next_launch = 0;
    memset(ctx->held, 0, sizeof ctx->held);
    memset(ctx->busy_ns, 0, sizeof ctx->busy_ns);
}

void model_ctx_destroy(struct model_ctx *ctx)
{
    if (ctx->card)
        model_ctx_leave(ctx);
    free(ctx);
}

static unsigned engine_for(uint32_t op)
{
    return op == SIM_OP_HTOD                        ? ENG_HTOD
           : op == SIM_OP_DTOH || op == SIM_OP_PEER ? ENG_DTOH
                                                    : ENG_COMPUTE;
}

static bool for_host(uint32_t op)
{
    return op == SIM_OP_FENCE || op == SIM_OP_HOST || op == SIM_OP_FREE;
}

static bool is_copy(const struct model_op *op)
{
    return model_timed(op->op) && op->engine != ENG_COMPUTE;
}

static uint16_t take_op(struct model_ctx *ctx)
{
    uint16_t link = ctx->free_op;
    if (link)
        ctx->free_op = model_at(ctx, link)->next;
    else if (ctx->fresh < MODEL_POOL)
        link = ++ctx->fresh;
    return link;
}

static void append(struct model_ctx *ctx, struct model_stream *stream, uint32_t slot, uint16_t link)
{
    if (stream->tail)
        model_at(ctx, stream->tail)->next = link;
    else
        stream->head = link;
    stream->tail = link;
    if (!stream->active) {
        ctx->active[ctx->nactive++] = (uint16_t)slot;
        stream->active = (uint16_t)ctx->nactive;
    }
}

bool model_submit(struct model_ctx *ctx, const struct sim_cmd *cmd, uint64_t seq, uint64_t duration)
{
    uint16_t link = cmd->stream < SIM_STREAMS ? take_op(ctx) : 0;
    if (!link)
        return false;
    struct model_stream *stream = &ctx->streams[cmd->stream];
    struct model_op *op = model_at(ctx, link);
    bool launch = cmd->op == SIM_OP_KERNEL && !(cmd->flags & SIM_CMD_NODE);
    *op =
        (struct model_op){.op = cmd->op,
                          .stream = cmd->stream,
                          .flags = cmd->flags,
                          .seq = seq,
                          .t_submit = cmd->t_submit,
                          .not_before = cmd->t_submit + (launch ? ctx->card->params.launch_ns : 0),
                          .left = duration,
                          .work = cmd->a,
                          .a = cmd->a,
                          .b = cmd->b,
                          .c = cmd->c};
    if (model_timed(cmd->op))
        stream->engine = (uint8_t)engine_for(cmd->op);
    op->engine = for_host(cmd->op) ? ENG_NONE : stream->engine;
    ctx->nhost += op->engine == ENG_NONE;
    ctx->ncopies += is_copy(op);
    append(ctx, stream, cmd->stream, link);
    ctx->nops++;
    return true;
}

void model_finish(struct model_ctx *ctx, uint16_t link)
{
    struct model_card *card = ctx->card;
    struct model_op *op = model_at(ctx, link);
    struct model_stream *stream = &ctx->streams[op->stream];
    stream->head = op->next;
    if (!stream->head) {
        stream->tail = 0;
        uint16_t last = ctx->active[--ctx->nactive];
        ctx->active[stream->active - 1] = last;
        ctx->streams[last].active = stream->active;
        stream->active = 0;
    }
    stream->done_seq = op->seq;
    ctx->ncopies -= is_copy(op);
    if (op->engine == ENG_NONE)
        ctx->nhost--;
    else if (ctx->running[op->engine] == link)
        ctx->running[op->engine] = 0;
    ctx->nops--;
    struct model_op copy = *op;
    op->next = ctx->free_op;
    ctx->free_op = link;
    if (card->hooks.done)
        card->hooks.done(card->arg, ctx, &copy, card->t);
}

void model_client_done(struct model_ctx *ctx, uint32_t stream, uint64_t seq)
{
    if (stream < SIM_STREAMS && seq > ctx->streams[stream].client_done)
        ctx->streams[stream].client_done = seq;
}

const struct model_op *model_head(const struct model_ctx *ctx, uint32_t stream)
{
    uint16_t head = stream < SIM_STREAMS ? ctx->streams[stream].head : 0;
    return head ? model_at(ctx, head) : NULL;
}

bool model_waits_for_client(const struct model_ctx *ctx)
{
    for (unsigned i = 0; i < ctx->nactive; i++) {
        uint32_t op = model_head(ctx, ctx->active[i])->op;
        if (op == SIM_OP_HOST || model_awaits_word(op))
            return true;
    }
    return false;
}
