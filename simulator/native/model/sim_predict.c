/* SPDX-License-Identifier: Apache-2.0
 *
 * When the device side has to wake up next: a lower bound, computed from the commands that are
 * known. Too early costs a look that finds nothing, too late would be a completion that the program
 * learns late.
 */
#include "sim_model.h"

static uint64_t min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > MODEL_NEVER - b ? MODEL_NEVER : a + b;
}

/* Work of one stream that comes before sequence number seq. */
static uint64_t work_before(const struct model_ctx *ctx, uint32_t stream, uint64_t seq)
{
    uint64_t sum = 0;
    for (uint16_t link = ctx->streams[stream].head; link; link = model_at(ctx, link)->next) {
        if (model_at(ctx, link)->seq >= seq)
            break;
        sum = add(sum, model_at(ctx, link)->left);
    }
    return sum;
}

static uint64_t max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Two pieces of work that both have to end: one after the other on one engine, perhaps at the same
 * time on several. */
static uint64_t both(const struct model_ctx *ctx, uint64_t a, uint64_t b)
{
    return ctx->ncopies ? max64(a, b) : add(a, b);
}

/* Work before seq of the streams that are ordered with the default stream (of all streams if all),
 * not of except. */
static uint64_t work_of_others(const struct model_ctx *ctx, uint32_t except, bool all, uint64_t seq)
{
    uint64_t work = 0;
    for (unsigned i = 0; i < ctx->nactive; i++) {
        const struct model_op *head = model_head(ctx, ctx->active[i]);
        if (head->stream != except && (all || !(head->flags & SIM_CMD_NONBLOCKING)))
            work = both(ctx, work, work_before(ctx, head->stream, seq));
    }
    return work;
}

/* Work of other streams that has to end before op may (behind_others and wait_over in sim_sched.c).
 */
static uint64_t work_ahead(const struct model_ctx *ctx, const struct model_op *op)
{
    bool all = op->stream == SIM_STREAM_ALL;
    uint64_t legacy = 0;
    if (op->op == SIM_OP_WAIT)
        return op->a == ctx->id && op->b < SIM_STREAMS && op->b != op->stream
                   ? work_before(ctx, (uint32_t)op->b, op->c + 1)
                   : 0;
    if (op->flags & SIM_CMD_NONBLOCKING && !all)
        return 0;
    if (all || op->stream == 0)
        return work_of_others(ctx, op->stream, all, op->seq);
    /* Behind the default stream, and with it behind everything that its newest earlier command
     * waits for. */
    for (uint16_t link = ctx->streams[0].head; link && model_at(ctx, link)->seq < op->seq;
         link = model_at(ctx, link)->next)
        legacy = model_at(ctx, link)->seq;
    return legacy ? both(ctx, work_before(ctx, 0, op->seq),
                         work_of_others(ctx, op->stream, false, legacy))
                  : 0;
}

static bool waits_for_client(const struct model_ctx *ctx, const struct model_op *op)
{
    return (op->op == SIM_OP_HOST || model_awaits_word(op->op)) &&
           ctx->streams[op->stream].client_done < op->seq;
}

/* The engine does nothing for the context until that is let go. */
static bool held(const struct model_ctx *ctx, unsigned engine)
{
    return engine < MODEL_ENGINES && ctx->held[engine] &&
           !(ctx->card->engines[engine].cur == ctx && model_leaving(ctx->card, engine));
}

/* Earliest end of the stream's first observable command if the context had the compute engine from
 * t on. *sum: its work. */
static uint64_t stream_wake(const struct model_ctx *ctx, uint16_t link, uint64_t t, uint64_t *sum)
{
    uint64_t at = ctx->card->t, ahead = 0;
    bool first = true;
    *sum = 0;
    for (; link; link = model_at(ctx, link)->next, first = false) {
        const struct model_op *op = model_at(ctx, link);
        uint64_t from = op->engine == ENG_COMPUTE && op->not_before < t ? t : op->not_before;
        at = add(from > at ? from : at, op->left);
        *sum = add(*sum, held(ctx, op->engine) ? 0 : op->left);
        if (first && waits_for_client(ctx, op))
            return MODEL_NEVER; /* not for time */
        if (held(ctx, op->engine))
            return MODEL_NEVER;
        if (op->op == SIM_OP_WAIT || model_observable(op->op))
            /* what two of them wait for may be the same work */
            ahead = max64(ahead, work_ahead(ctx, op));
        if (!model_observable(op->op))
            continue;
        ahead = both(ctx, *sum, ahead);
        return ahead ? max64(at, add(ctx->ncopies ? ctx->card->t : t, ahead)) : at;
    }
    return MODEL_NEVER;
}

/* The same for the whole context; with space also the time when about a quarter of its work is
 * done. */
static uint64_t ctx_wake(const struct model_ctx *ctx, uint64_t t, bool space)
{
    uint64_t best = MODEL_NEVER, total = 0, sum;
    for (unsigned i = 0; i < ctx->nactive; i++) {
        best = min64(best, stream_wake(ctx, ctx->streams[ctx->active[i]].head, t, &sum));
        total = add(total, sum);
    }
    return space && total ? min64(best, add(t, total / (ctx->nops < 16 ? 16 : 4))) : best;
}

/* Other contexts can have the compute engine no earlier than this. */
static uint64_t cur_yields(const struct model_card *card)
{
    const struct model_engine *eng = &card->engines[ENG_COMPUTE];
    const struct model_ctx *cur = eng->cur;
    uint16_t link = cur && !held(cur, ENG_COMPUTE) ? cur->running[ENG_COMPUTE] : 0;
    if (!link)
        return card->t;
    if (model_leaving(card, ENG_COMPUTE))
        return min64(eng->stop_at, add(card->t, model_at(cur, link)->left));
    uint64_t t = add(card->t, eng->switch_left);
    if (card->params.run_to_end)
        return add(t, model_at(cur, link)->left);
    if (cur->ncopies) /* what follows may have to wait for a copy, and the turn be given away */
        return card->t >= eng->slice_end ? card->t
                                         : min64(add(t, model_at(cur, link)->left), eng->slice_end);
    for (; link && t < eng->slice_end; link = model_at(cur, link)->next) {
        const struct model_op *op = model_at(cur, link);
        bool passes = model_timed(op->op) || op->op == SIM_OP_EVENT || op->op == SIM_OP_WRITE32 ||
                      op->op == SIM_OP_WRITE64;
        if (!passes || op->not_before > t)
            break;
        t = add(t, op->left);
    }
    return card->t >= eng->slice_end ? card->t : min64(t, eng->slice_end);
}

uint64_t model_next_wake(const struct model_card *card, bool (*space)(const struct model_ctx *ctx))
{
    const struct model_ctx *cur = card->engines[ENG_COMPUTE].cur;
    uint64_t best = MODEL_NEVER, later = add(cur_yields(card), card->params.switch_ns);
    for (const struct model_ctx *ctx = card->ctxs; ctx; ctx = ctx->next)
        if (ctx->nops)
            best = min64(best,
                         ctx_wake(ctx, ctx == cur || !cur ? card->t : later, space && space(ctx)));
    return best != MODEL_NEVER && best < card->stall_end ? card->stall_end : best;
}
