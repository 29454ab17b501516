/* SPDX-License-Identifier: Apache-2.0
 *
 * Time in the model: which command may run, who is on which engine, and moving on to the next change.
 */
#include "sim_model.h"

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- which command may run ------------------------------------------------------------------------------ */

/* The legacy default stream (slot 0) is ordered with all streams that are not NON_BLOCKING, slot ALL with every one. */
static bool behind_others(const struct model_ctx *ctx, const struct model_op *op)
{
    bool all = op->stream == SIM_STREAM_ALL, legacy = op->stream == 0;
    if (op->flags & SIM_CMD_NONBLOCKING && !all)
        return false;
    if (!all && !legacy) {
        uint16_t head = ctx->streams[0].head;
        return head && model_at(ctx, head)->seq < op->seq;
    }
    for (unsigned i = 0; i < ctx->nactive; i++) {
        const struct model_op *head = model_head(ctx, ctx->active[i]);
        bool free_runner = head->flags & SIM_CMD_NONBLOCKING && !all;
        if (head->stream != op->stream && head->stream != SIM_STREAM_ALL && !free_runner && head->seq < op->seq)
            return true;
    }
    return false;
}

static bool wait_over(const struct model_ctx *ctx, const struct model_op *op)
{
    const struct model_card *card = ctx->card;
    const struct model_ctx *other = op->a == ctx->id ? ctx :
        card->hooks.find ? card->hooks.find(card->arg, (uint32_t)op->a) : NULL;
    return !other || op->b >= SIM_STREAMS || other->streams[op->b].done_seq >= op->c;
}

/* May this stream head proceed at card->t? */
static bool ready(const struct model_ctx *ctx, const struct model_op *op)
{
    if (op->not_before > ctx->card->t || behind_others(ctx, op))
        return false;
    if (op->op == SIM_OP_WAIT)
        return wait_over(ctx, op);
    if (op->op == SIM_OP_HOST || model_awaits_word(op->op))
        return ctx->streams[op->stream].client_done >= op->seq;
    return true;
}

enum pick { PICK_ANY, PICK_TIMELESS };

/* The ready stream head of an engine with the smallest sequence number; 0 if none. *soonest: earliest later time at which
 * a head may become ready by itself. */
static uint16_t pick(const struct model_ctx *ctx, unsigned engine, enum pick what, uint64_t *soonest)
{
    uint16_t best = 0;
    for (unsigned i = 0; i < ctx->nactive; i++) {
        uint16_t head = ctx->streams[ctx->active[i]].head;
        const struct model_op *op = model_at(ctx, head);
        if (op->engine != engine || (what == PICK_TIMELESS && model_timed(op->op)) ||
            (best && model_at(ctx, best)->seq < op->seq))
            continue;
        if (ready(ctx, op))
            best = head;
        else if (op->not_before > ctx->card->t)
            *soonest = min64(*soonest, op->not_before);
    }
    return best;
}

static uint16_t pick_next(const struct model_ctx *ctx, unsigned engine, uint64_t *soonest)
{
    return ctx->running[engine] ? ctx->running[engine] : pick(ctx, engine, PICK_ANY, soonest);
}

/* ---- who is on an engine -------------------------------------------------------------------------------- */

static uint64_t slice_of(const struct model_card *card, const struct model_ctx *ctx)
{
    return ctx->slice_ns ? ctx->slice_ns : card->params.slice_ns;
}

static struct model_ctx *next_ctx(struct model_card *card, unsigned engine, struct model_ctx *after, uint64_t *soonest)
{
    struct model_ctx *start = after && after->next ? after->next : card->ctxs;
    struct model_ctx *ctx = start;
    if (!ctx)
        return NULL;
    do {
        if (ctx != after && ctx->nops && pick_next(ctx, engine, soonest))
            return ctx;
        ctx = ctx->next ? ctx->next : card->ctxs;
    } while (ctx != start);
    return NULL;
}

static void switch_to(struct model_card *card, unsigned engine, struct model_ctx *ctx)
{
    struct model_engine *eng = &card->engines[engine];
    model_stop_piece(card, engine, 0);
    bool costs = engine == ENG_COMPUTE && eng->last_id && eng->last_id != ctx->id;
    eng->cur = ctx;
    eng->switch_left = costs ? card->params.switch_ns : 0;
    eng->last_id = ctx->id;
    eng->slice_end = card->t + eng->switch_left + slice_of(card, ctx);
    card->switches += costs;
}

/* A kernel that began under run_to_end keeps the engine, however long its slice is over. */
static bool unstoppable(const struct model_card *card, unsigned engine)
{
    const struct model_ctx *cur = card->engines[engine].cur;
    return engine == ENG_COMPUTE && card->params.run_to_end && cur && cur->running[engine];
}

/* Decides who is on the engine at card->t. Returns the command to run, 0 if nothing is ready. */
static uint16_t schedule(struct model_card *card, unsigned engine, uint64_t *soonest)
{
    struct model_engine *eng = &card->engines[engine];
    struct model_ctx *cur = eng->cur, *other;
    uint16_t link = cur ? pick_next(cur, engine, soonest) : 0, timeless;
    if (link && (card->t < eng->slice_end || eng->switch_left || unstoppable(card, engine)))
        return link;
    /* What takes no time and is due belongs to the turn that ends here. */
    if (link && (timeless = pick(cur, engine, PICK_TIMELESS, soonest)))
        return timeless;
    eng->switch_left = 0;
    other = next_ctx(card, engine, cur, soonest);
    if (other) {
        switch_to(card, engine, other);
        return pick_next(other, engine, soonest);
    }
    if (link)
        eng->slice_end = card->t + slice_of(card, cur);
    return link;
}

/* ---- time ----------------------------------------------------------------------------------------------- */

/* Ends one command that needs no engine and is due. */
static bool finish_for_host(struct model_card *card, uint64_t *next)
{
    for (struct model_ctx *ctx = card->ctxs; ctx; ctx = ctx->next) {
        uint16_t link = ctx->nhost ? pick(ctx, ENG_NONE, PICK_TIMELESS, next) : 0;
        if (link) {
            model_finish(ctx, link);
            return true;
        }
    }
    return false;
}

/* A kernel goes to the engine when the front end has taken it: launches of a context are launch_ns apart. The engine
 * waits for it, the context has work. Returns when; card->t or earlier: now. */
static uint64_t start_time(const struct model_ctx *ctx, const struct model_op *op)
{
    return op->op == SIM_OP_KERNEL && !(op->flags & SIM_CMD_NODE) ? ctx->next_launch : 0;
}

static void start(struct model_card *card, unsigned engine, uint16_t link)
{
    struct model_engine *eng = &card->engines[engine];
    struct model_op *op = model_at(eng->cur, link);
    if (!eng->cur->running[engine] && op->op == SIM_OP_KERNEL && !(op->flags & SIM_CMD_NODE))
        eng->cur->next_launch = card->t + card->params.launch_ns;
    eng->executing = true;
    eng->piece_start = card->t;
    eng->cur->running[engine] = link;
}

/* What the engine does at card->t. True: something ended that takes no time; look again. *next: no later than its next
 * change. */
static bool settle_engine(struct model_card *card, unsigned engine, uint64_t *next)
{
    struct model_engine *eng = &card->engines[engine];
    uint64_t soonest = MODEL_NEVER;
    uint16_t link = schedule(card, engine, &soonest);
    if (!link || eng->switch_left) {
        *next = min64(*next, link ? card->t + eng->switch_left : soonest);
        return false;
    }
    /* Commands that take no time run beside a kernel of their context. */
    uint16_t timeless = pick(eng->cur, engine, PICK_TIMELESS, next);
    const struct model_op *op = model_at(eng->cur, link);
    if (timeless || !op->left) {
        model_finish(eng->cur, timeless ? timeless : link);
        return true;
    }
    uint64_t from = eng->cur->running[engine] ? 0 : start_time(eng->cur, op);
    if (!unstoppable(card, engine) || eng->slice_end > card->t)
        *next = min64(*next, eng->slice_end);
    if (from > card->t) {
        *next = min64(*next, from);
        return false;
    }
    if (!eng->executing)
        start(card, engine, link);
    *next = min64(*next, card->t + op->left);
    return false;
}

static void run_engine(struct model_card *card, unsigned engine, uint64_t step)
{
    struct model_engine *eng = &card->engines[engine];
    if (eng->switch_left) {
        eng->switch_left -= step;
        card->switch_ns += step;
        return;
    }
    if (!eng->executing)
        return;
    struct model_op *op = model_at(eng->cur, eng->cur->running[engine]);
    op->left -= step;
    eng->cur->busy_ns[engine] += step;
    card->busy_ns[engine] += step;
}

static void end_engine(struct model_card *card, unsigned engine)
{
    struct model_engine *eng = &card->engines[engine];
    uint16_t link = eng->executing ? eng->cur->running[engine] : 0;
    if (!link || model_at(eng->cur, link)->left)
        return;
    model_stop_piece(card, engine, SIM_TRACE_LAST);
    model_finish(eng->cur, link);
}

void model_advance(struct model_card *card, uint64_t now)
{
    while (card->t < now) {
        uint64_t next = now;
        bool again = false;
        if (card->t < card->stall_end) {
            card->t = min64(card->stall_end, now);
            continue;
        }
        again = finish_for_host(card, &next);
        for (unsigned e = 0; e < MODEL_ENGINES && !again; e++)
            again = settle_engine(card, e, &next);
        if (again)
            continue;
        for (unsigned e = 0; e < MODEL_ENGINES; e++)
            run_engine(card, e, next - card->t);
        card->t = next;
        for (unsigned e = 0; e < MODEL_ENGINES; e++)
            end_engine(card, e);
    }
}

void model_stall(struct model_card *card, uint64_t ns)
{
    for (unsigned e = 0; e < MODEL_ENGINES; e++) {
        model_stop_piece(card, e, 0);
        card->engines[e].slice_end += ns;
    }
    card->stall_end = card->t + ns;
}
