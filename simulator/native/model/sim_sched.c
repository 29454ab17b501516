/* SPDX-License-Identifier: Apache-2.0
 *
 * Time in the model: which command may run, which context has which engine, and the step to the
 * next change.
 */
#include "sim_model.h"

static uint64_t min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- which command may run ---- */

/* The legacy default stream (slot 0) is ordered with all streams that are not NON_BLOCKING, slot
 * ALL with every one. */
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
        if (head->stream != op->stream && head->stream != SIM_STREAM_ALL && !free_runner &&
            head->seq < op->seq)
            return true;
    }
    return false;
}

static bool wait_over(const struct model_ctx *ctx, const struct model_op *op)
{
    const struct model_card *card = ctx->card;
    const struct model_ctx *other = op->a == ctx->id ? ctx
                                    : card->hooks.find
                                        ? card->hooks.find(card->arg, (uint32_t)op->a)
                                        : NULL;
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

/* The ready stream head of an engine with the smallest sequence number; 0 if none. *soonest:
 * earliest later time at which a head may become ready by itself. */
static uint16_t pick(const struct model_ctx *ctx, unsigned engine, enum pick what,
                     uint64_t *soonest)
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
    if (ctx->held[engine])
        return ctx->card->engines[engine].cur == ctx && model_leaving(ctx->card, engine)
                   ? ctx->running[engine]
                   : 0;
    return ctx->running[engine] ? ctx->running[engine] : pick(ctx, engine, PICK_ANY, soonest);
}

/* ---- which context has an engine ---- */

static uint64_t slice_of(const struct model_card *card, const struct model_ctx *ctx,
                         unsigned engine)
{
    return ctx->slice_ns[engine] ? ctx->slice_ns[engine] : card->params.slice_ns;
}

static enum model_preempt preempts(const struct model_ctx *ctx, unsigned engine,
                                   const struct model_op *op)
{
    const struct model_params *params = &ctx->card->params;
    if (engine != ENG_COMPUTE)
        return PREEMPT_ANYWHERE;
    if (params->run_to_end)
        return PREEMPT_AT_END;
    enum model_preempt mode = ctx->preempt ? ctx->preempt : params->preempt;
    return op->op == SIM_OP_KERNEL && mode ? mode : PREEMPT_ANYWHERE;
}

/* Work of the running command up to the next place where it can be stopped; 0: here. */
static uint64_t to_stop(const struct model_ctx *ctx, unsigned engine)
{
    const struct model_op *op = model_at(ctx, ctx->running[engine]);
    enum model_preempt mode = preempts(ctx, engine, op);
    uint64_t block = op->c ? op->c : ctx->card->params.block_ns;
    if (mode == PREEMPT_ANYWHERE)
        return 0;
    return mode == PREEMPT_BLOCK && block ? op->left % block : op->left;
}

static struct model_ctx *next_ctx(struct model_card *card, unsigned engine, struct model_ctx *after,
                                  uint64_t *soonest)
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
    eng->stop_at = 0;
    eng->slice_end = card->t + eng->switch_left + slice_of(card, ctx, engine);
    card->switches += costs;
}

/* A kernel that can be stopped at its end only, or between its blocks, keeps the engine until then,
 * however long its slice is over. So does what has been told to leave and takes its time. */
static uint64_t unstoppable(const struct model_card *card, unsigned engine)
{
    const struct model_ctx *cur = card->engines[engine].cur;
    if (model_leaving(card, engine))
        return card->engines[engine].stop_at - card->t;
    return cur && cur->running[engine] ? to_stop(cur, engine) : 0;
}

/* Picks the context of the engine at card->t. Returns the command to run, 0 if none is ready. */
static uint16_t schedule(struct model_card *card, unsigned engine, uint64_t *soonest)
{
    struct model_engine *eng = &card->engines[engine];
    struct model_ctx *cur = eng->cur, *other;
    uint16_t link = cur ? pick_next(cur, engine, soonest) : 0, timeless;
    if (!link)
        model_stop_piece(card, engine, 0); /* it has been taken off */
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
        eng->slice_end = card->t + slice_of(card, cur, engine);
    return link;
}

/* ---- time ---- */

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

/* A kernel goes to the engine when the front end has taken it: launches of a context are launch_ns
 * apart. The engine waits for it, the context has work. Returns when; card->t or earlier: now. */
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

/* What the engine does at card->t. True: a command without duration ended, so call it again. *next:
 * no later than its next change. */
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
    uint16_t timeless = eng->cur->held[engine] ? 0 : pick(eng->cur, engine, PICK_TIMELESS, next);
    const struct model_op *op = model_at(eng->cur, link);
    if (timeless || !op->left) {
        model_finish(eng->cur, timeless ? timeless : link);
        return true;
    }
    uint64_t from = eng->cur->running[engine] ? 0 : start_time(eng->cur, op);
    uint64_t keeps = unstoppable(card, engine);
    *next = min64(*next, eng->slice_end > card->t && !eng->cur->held[engine] ? eng->slice_end
                                                                             : card->t + keeps);
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
        card->engines[e].stop_at += card->engines[e].stop_at ? ns : 0;
    }
    card->stall_end = card->t + ns;
}

/* ---- orders from outside ---- */

static uint64_t preempted_at(const struct model_ctx *ctx, unsigned engine)
{
    const struct model_op *op = model_at(ctx, ctx->running[engine]);
    bool anywhere = preempts(ctx, engine, op) == PREEMPT_ANYWHERE;
    return ctx->card->t + (anywhere ? ctx->card->params.preempt_ns : to_stop(ctx, engine));
}

void model_hold(struct model_ctx *ctx, unsigned engine, bool hold, bool lenient)
{
    struct model_card *card = ctx->card;
    struct model_engine *eng = &card->engines[engine];
    bool runs = eng->cur == ctx && eng->executing;
    if (hold && runs) {
        uint64_t at = preempted_at(ctx, engine);
        if (lenient && at < eng->slice_end)
            at = eng->slice_end;
        if (!ctx->held[engine] || at < eng->stop_at)
            eng->stop_at = at;
    }
    ctx->held[engine] = hold;
}

uint64_t model_expire(struct model_ctx *ctx, unsigned engine)
{
    struct model_engine *eng = &ctx->card->engines[engine];
    if (eng->cur != ctx || !eng->executing)
        return 0;
    uint64_t at = preempted_at(ctx, engine);
    eng->slice_end = min64(eng->slice_end, at);
    return min64(at, ctx->card->t + model_at(ctx, ctx->running[engine])->left);
}

void model_set_slice(struct model_ctx *ctx, unsigned engine, uint64_t ns)
{
    struct model_engine *eng = &ctx->card->engines[engine];
    ctx->slice_ns[engine] = ns;
    if (eng->cur == ctx)
        eng->slice_end = min64(eng->slice_end,
                               ctx->card->t + eng->switch_left + slice_of(ctx->card, ctx, engine));
}

uint64_t model_leaves(const struct model_ctx *ctx, unsigned engine)
{
    const struct model_engine *eng = &ctx->card->engines[engine];
    if (eng->cur != ctx || !eng->executing || !model_leaving(ctx->card, engine))
        return 0;
    return min64(eng->stop_at, ctx->card->t + model_at(ctx, ctx->running[engine])->left);
}
