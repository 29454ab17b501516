/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_model.h"

#include <stdlib.h>

void model_init(struct model_card *card, const struct model_params *params, const struct model_hooks *hooks, void *arg,
                uint64_t now)
{
    *card = (struct model_card){.params = *params, .hooks = *hooks, .arg = arg, .t = now};
}

struct model_ctx *model_ctx_create(struct model_card *card, uint32_t id, void *owner)
{
    struct model_ctx *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return NULL;
    ctx->card = card;
    ctx->id = id;
    ctx->owner = owner;
    for (unsigned i = 0; i < MODEL_POOL; i++)
        ctx->pool[i].next = i + 1 < MODEL_POOL ? (uint16_t)(i + 2) : 0;
    ctx->free_op = 1;
    struct model_ctx **end = &card->ctxs;
    while (*end)
        end = &(*end)->next;
    *end = ctx;
    return ctx;
}

static struct model_op *op_at(struct model_ctx *ctx, uint16_t link) { return &ctx->pool[link - 1]; }

static void stop_piece(struct model_card *card, uint32_t flags)
{
    struct model_ctx *ctx = card->cur;
    if (!card->executing)
        return;
    card->executing = false;
    if (card->t > card->piece_start && card->hooks.piece)
        card->hooks.piece(card->arg, ctx, op_at(ctx, ctx->running), card->piece_start, card->t, flags);
}

void model_ctx_destroy(struct model_ctx *ctx)
{
    struct model_card *card = ctx->card;
    if (card->cur == ctx) {
        stop_piece(card, SIM_TRACE_CUT | SIM_TRACE_LAST);
        card->cur = NULL;
        card->switch_left = 0;
    }
    struct model_ctx **link = &card->ctxs;
    while (*link != ctx)
        link = &(*link)->next;
    *link = ctx->next;
    free(ctx);
}

bool model_submit(struct model_ctx *ctx, const struct sim_cmd *cmd, uint64_t seq, uint64_t duration)
{
    if (!ctx->free_op || cmd->stream >= SIM_STREAMS)
        return false;
    uint16_t link = ctx->free_op;
    struct model_op *op = op_at(ctx, link);
    struct model_stream *stream = &ctx->streams[cmd->stream];
    ctx->free_op = op->next;
    *op = (struct model_op){.op = cmd->op, .stream = cmd->stream, .flags = cmd->flags, .seq = seq,
                            .t_submit = cmd->t_submit, .left = duration, .work = cmd->a,
                            .a = cmd->a, .b = cmd->b, .c = cmd->c};
    if (stream->tail)
        op_at(ctx, stream->tail)->next = link;
    else
        stream->head = link;
    stream->tail = link;
    if (!stream->active) {
        ctx->active[ctx->nactive++] = (uint16_t)cmd->stream;
        stream->active = (uint16_t)ctx->nactive;
    }
    ctx->nops++;
    return true;
}

void model_client_done(struct model_ctx *ctx, uint32_t stream, uint64_t seq)
{
    if (stream < SIM_STREAMS && seq > ctx->streams[stream].client_done)
        ctx->streams[stream].client_done = seq;
}

const struct model_op *model_head(const struct model_ctx *ctx, uint32_t stream)
{
    uint16_t head = stream < SIM_STREAMS ? ctx->streams[stream].head : 0;
    return head ? &ctx->pool[head - 1] : NULL;
}

/* The legacy default stream (slot 0) is ordered with all streams that are not NON_BLOCKING, slot ALL with every one. */
static bool behind_others(struct model_ctx *ctx, const struct model_op *op)
{
    bool all = op->stream == SIM_STREAM_ALL, legacy = op->stream == 0;
    if (op->flags & SIM_CMD_NONBLOCKING && !all)
        return false;
    if (!all && !legacy) {
        uint16_t head = ctx->streams[0].head;
        return head && op_at(ctx, head)->seq < op->seq;
    }
    for (unsigned i = 0; i < ctx->nactive; i++) {
        const struct model_op *head = op_at(ctx, ctx->streams[ctx->active[i]].head);
        bool free_runner = head->flags & SIM_CMD_NONBLOCKING && !all;
        if (head->stream != op->stream && head->stream != SIM_STREAM_ALL && !free_runner && head->seq < op->seq)
            return true;
    }
    return false;
}

static bool wait_over(struct model_ctx *ctx, const struct model_op *op)
{
    struct model_card *card = ctx->card;
    struct model_ctx *other = op->a == ctx->id ? ctx : card->hooks.find ? card->hooks.find(card->arg, (uint32_t)op->a) : NULL;
    return !other || op->b >= SIM_STREAMS || other->streams[op->b].done_seq >= op->c;
}

/* May this stream head proceed at card->t? */
static bool ready(struct model_ctx *ctx, const struct model_op *op)
{
    if (op->t_submit > ctx->card->t || behind_others(ctx, op))
        return false;
    switch (op->op) {
    case SIM_OP_WAIT:
        return wait_over(ctx, op);
    case SIM_OP_WAIT32:
    case SIM_OP_HOST:
        return ctx->streams[op->stream].client_done >= op->seq;
    default:
        return true;
    }
}

/* The ready stream head with the smallest sequence number; 0 if none. *soonest: earliest later submission of a head. */
static uint16_t pick_op(struct model_ctx *ctx, uint64_t *soonest)
{
    uint16_t best = 0;
    if (ctx->running)
        return ctx->running;
    for (unsigned i = 0; i < ctx->nactive; i++) {
        uint16_t head = ctx->streams[ctx->active[i]].head;
        struct model_op *op = op_at(ctx, head);
        if (best && op_at(ctx, best)->seq < op->seq)
            continue;
        if (ready(ctx, op))
            best = head;
        else if (op->t_submit > ctx->card->t && op->t_submit < *soonest)
            *soonest = op->t_submit;
    }
    return best;
}

static uint16_t pick_refilled(struct model_ctx *ctx, uint64_t *soonest)
{
    struct model_card *card = ctx->card;
    uint16_t link;
    while (!(link = pick_op(ctx, soonest)))
        if (ctx->nops >= MODEL_POOL || !card->hooks.refill || !card->hooks.refill(card->arg, ctx))
            return 0;
    return link;
}

static void finish(struct model_ctx *ctx, uint16_t link)
{
    struct model_card *card = ctx->card;
    struct model_op *op = op_at(ctx, link);
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
    if (ctx->running == link)
        ctx->running = 0;
    ctx->nops--;
    struct model_op copy = *op;
    op->next = ctx->free_op;
    ctx->free_op = link;
    if (card->hooks.done)
        card->hooks.done(card->arg, ctx, &copy, card->t);
}

static struct model_ctx *next_ctx(struct model_card *card, struct model_ctx *after, uint64_t *soonest)
{
    struct model_ctx *start = after && after->next ? after->next : card->ctxs;
    struct model_ctx *ctx = start;
    if (!ctx)
        return NULL;
    do {
        if (ctx != after && pick_refilled(ctx, soonest))
            return ctx;
        ctx = ctx->next ? ctx->next : card->ctxs;
    } while (ctx != start);
    return NULL;
}

static void switch_to(struct model_card *card, struct model_ctx *ctx)
{
    stop_piece(card, 0);
    card->cur = ctx;
    card->switch_left = card->last_id && card->last_id != ctx->id ? card->params.switch_ns : 0;
    card->last_id = ctx->id;
    card->slice_end = card->t + card->switch_left + card->params.slice_ns;
}

/* Decides who is on the card at card->t. Returns the command to run, 0 if nothing is ready. */
static uint16_t schedule(struct model_card *card, uint64_t *soonest)
{
    struct model_ctx *cur = card->cur, *other;
    uint16_t link = cur ? pick_refilled(cur, soonest) : 0;
    if (link && (card->t < card->slice_end || card->switch_left))
        return link;
    card->switch_left = 0;
    other = next_ctx(card, cur, soonest);
    if (other) {
        switch_to(card, other);
        return pick_refilled(other, soonest);
    }
    if (link)
        card->slice_end = card->t + card->params.slice_ns;
    return link;
}

/* Commands that take no time run beside a kernel of their context, in order of submission where several are ready.
 * 0: none is; *soonest as in pick_op. */
static uint16_t pick_timeless(struct model_ctx *ctx, uint64_t *soonest)
{
    uint16_t best = 0;
    for (unsigned i = 0; i < ctx->nactive; i++) {
        uint16_t head = ctx->streams[ctx->active[i]].head;
        const struct model_op *op = op_at(ctx, head);
        if (model_timed(op->op) || (best && op_at(ctx, best)->seq < op->seq))
            continue;
        if (ready(ctx, op))
            best = head;
        else if (op->t_submit > ctx->card->t && op->t_submit < *soonest)
            *soonest = op->t_submit;
    }
    return best;
}

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Executes op until it ends, the slice ends, or now. */
static void execute(struct model_card *card, uint16_t link, uint64_t now)
{
    struct model_ctx *ctx = card->cur;
    struct model_op *op = op_at(ctx, link);
    if (!card->executing) {
        card->executing = true;
        card->piece_start = card->t;
        ctx->running = link;
    }
    uint64_t step = min64(min64(card->t + op->left, card->slice_end), now) - card->t;
    op->left -= step;
    ctx->busy_ns += step;
    card->busy_ns += step;
    card->t += step;
    if (op->left == 0) {
        stop_piece(card, SIM_TRACE_LAST);
        finish(ctx, link);
    }
}

void model_advance(struct model_card *card, uint64_t now)
{
    while (card->t < now) {
        uint64_t soonest = MODEL_NEVER;
        uint16_t link = schedule(card, &soonest);
        if (!link) {
            card->t = min64(soonest, now);
            continue;
        }
        if (card->switch_left) {
            uint64_t step = min64(card->switch_left, now - card->t);
            card->switch_left -= step;
            card->t += step;
            continue;
        }
        uint64_t beside = MODEL_NEVER;
        uint16_t timeless = pick_timeless(card->cur, &beside);
        if (timeless)
            finish(card->cur, timeless);
        else if (op_at(card->cur, link)->left)
            execute(card, link, min64(now, beside));
        else
            finish(card->cur, link);
    }
}

static bool observable(uint32_t op) { return !model_timed(op) && op != SIM_OP_WAIT; }

static bool client_side(uint32_t op) { return op == SIM_OP_HOST || op == SIM_OP_WAIT32; }

/* Work of one stream that comes before sequence number seq. */
static uint64_t work_before(const struct model_ctx *ctx, uint32_t stream, uint64_t seq)
{
    uint64_t sum = 0;
    for (uint16_t link = ctx->streams[stream].head; link; link = ctx->pool[link - 1].next) {
        if (ctx->pool[link - 1].seq >= seq)
            break;
        sum += ctx->pool[link - 1].left;
    }
    return sum;
}

/* Work before seq of the streams that are ordered with the default stream (of all streams if all), not of except. */
static uint64_t work_of_others(const struct model_ctx *ctx, uint32_t except, bool all, uint64_t seq)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < ctx->nactive; i++) {
        const struct model_op *head = model_head(ctx, ctx->active[i]);
        if (head->stream != except && (all || !(head->flags & SIM_CMD_NONBLOCKING)))
            sum += work_before(ctx, head->stream, seq);
    }
    return sum;
}

/* Work of other streams that has to end before op may (see behind_others and wait_over). */
static uint64_t work_ahead(const struct model_ctx *ctx, const struct model_op *op)
{
    bool all = op->stream == SIM_STREAM_ALL;
    uint64_t legacy = 0;
    if (op->op == SIM_OP_WAIT)
        return op->a == ctx->id && op->b < SIM_STREAMS && op->b != op->stream ?
            work_before(ctx, (uint32_t)op->b, op->c + 1) : 0;
    if (op->flags & SIM_CMD_NONBLOCKING && !all)
        return 0;
    if (all || op->stream == 0)
        return work_of_others(ctx, op->stream, all, op->seq);
    /* Behind the default stream, and with it behind everything that its newest earlier command waits for. */
    for (uint16_t link = ctx->streams[0].head; link && ctx->pool[link - 1].seq < op->seq; link = ctx->pool[link - 1].next)
        legacy = ctx->pool[link - 1].seq;
    return legacy ? work_before(ctx, 0, op->seq) + work_of_others(ctx, op->stream, false, legacy) : 0;
}

/* Earliest end of the stream's first observable command if the context had the card from t on. *sum: its work. */
static uint64_t stream_wake(const struct model_ctx *ctx, uint16_t link, uint64_t t, uint64_t *sum)
{
    uint64_t at = t, ahead = 0;
    bool first = true;
    *sum = 0;
    for (; link; link = ctx->pool[link - 1].next, first = false) {
        const struct model_op *op = &ctx->pool[link - 1];
        if (op->t_submit > at)
            at = op->t_submit;
        at += op->left;
        *sum += op->left;
        if (first && client_side(op->op) && ctx->streams[op->stream].client_done < op->seq)
            return MODEL_NEVER; /* waits for the client, not for time */
        if (op->op == SIM_OP_WAIT)
            ahead += work_ahead(ctx, op);
        if (observable(op->op))
            return at + ahead + work_ahead(ctx, op);
    }
    return MODEL_NEVER;
}

/* The same for the whole context; with space also the time when a quarter of its work is done. */
static uint64_t ctx_wake(const struct model_ctx *ctx, uint64_t t, bool space)
{
    uint64_t best = MODEL_NEVER, total = 0, sum;
    for (unsigned i = 0; i < ctx->nactive; i++) {
        best = min64(best, stream_wake(ctx, ctx->streams[ctx->active[i]].head, t, &sum));
        total += sum;
    }
    return space && ctx->nactive ? min64(best, t + total / 4) : best;
}

/* Other contexts can have the card no earlier than this. */
static uint64_t cur_yields(const struct model_card *card)
{
    const struct model_ctx *cur = card->cur;
    if (!cur || !cur->running || card->t >= card->slice_end)
        return card->t;
    uint64_t t = card->t + card->switch_left;
    for (uint16_t link = cur->running; link && t < card->slice_end; link = cur->pool[link - 1].next) {
        const struct model_op *op = &cur->pool[link - 1];
        if (!model_timed(op->op) && op->op != SIM_OP_EVENT && op->op != SIM_OP_WRITE32)
            break;
        if (op->t_submit > t)
            break;
        t += op->left;
    }
    return min64(t, card->slice_end);
}

uint64_t model_next_wake(const struct model_card *card, bool (*space)(const struct model_ctx *ctx))
{
    uint64_t best = MODEL_NEVER, later = cur_yields(card) + card->params.switch_ns;
    for (const struct model_ctx *ctx = card->ctxs; ctx; ctx = ctx->next)
        if (ctx->nops)
            best = min64(best, ctx_wake(ctx, ctx == card->cur || !card->cur ? card->t : later, space && space(ctx)));
    return best;
}

bool model_waits_for_client(const struct model_ctx *ctx)
{
    for (unsigned i = 0; i < ctx->nactive; i++)
        if (client_side(model_head(ctx, ctx->active[i])->op))
            return true;
    return false;
}
