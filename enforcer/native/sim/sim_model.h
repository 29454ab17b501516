/* SPDX-License-Identifier: Apache-2.0
 *
 * The event model of one simulated card. Pure: no system calls, no clock, no allocation besides calloc at creation.
 * Time is what the caller says. Given the same submissions (each known before model_advance passes its t_submit)
 * the result does not depend on how often model_advance is called: a late wake-up replays the past exactly.
 *
 * The card executes one command at a time. Contexts with work take turns in slices, kernels are stopped in the
 * middle and resume; a context without ready work gives its turn away at once; a change of context costs switch_ns.
 * Within a context the ready stream head with the smallest sequence number runs next.
 */
#ifndef QGPU_SIM_MODEL_H
#define QGPU_SIM_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "sim_proto.h"

#define MODEL_POOL 1024u /* commands of one context that the model holds; a power of two */
#define MODEL_NEVER UINT64_MAX

struct model_op {
    uint32_t op, stream, flags;
    uint16_t next, used; /* pool links */
    uint64_t seq, t_submit, left, work, a, b, c;
};

struct model_stream {
    uint16_t head, tail; /* pool index + 1; 0 = empty */
    uint16_t active;     /* place in ctx->active + 1; 0 = not there */
    uint64_t done_seq;
    uint64_t client_done; /* last host function or awaited word of this stream that is over */
};

struct model_ctx {
    struct model_ctx *next; /* of the card, in order of creation */
    struct model_card *card;
    void *owner;
    uint32_t id;
    uint32_t nops, nactive;
    uint16_t free_op;   /* pool index + 1 */
    uint16_t running;   /* pool index + 1 of the command on the card or stopped in the middle */
    uint16_t active[SIM_STREAMS];
    uint64_t busy_ns;
    struct model_stream streams[SIM_STREAMS];
    struct model_op pool[MODEL_POOL];
};

struct model_params {
    uint64_t slice_ns, switch_ns;
};

struct model_hooks {
    /* A command ended at t. */
    void (*done)(void *arg, struct model_ctx *ctx, const struct model_op *op, uint64_t t);
    /* A piece [t0, t1) of op was executed; flags are SIM_TRACE_*. */
    void (*piece)(void *arg, struct model_ctx *ctx, const struct model_op *op, uint64_t t0, uint64_t t1, uint32_t flags);
    /* Room became free or the context ran dry: push what waits outside. Returns the number of commands pushed. */
    unsigned (*refill)(void *arg, struct model_ctx *ctx);
    /* The context with this id, on any card; NULL when it is gone. */
    struct model_ctx *(*find)(void *arg, uint32_t ctx_id);
};

struct model_card {
    struct model_params params;
    struct model_hooks hooks;
    void *arg;
    uint64_t t;          /* simulated up to here */
    uint64_t busy_ns;
    struct model_ctx *ctxs;
    struct model_ctx *cur; /* on the card */
    uint32_t last_id;      /* of the context that was last on it */
    uint64_t slice_end, switch_left;
    uint64_t piece_start;
    bool executing;        /* cur->running executes since piece_start */
};

void model_init(struct model_card *card, const struct model_params *params, const struct model_hooks *hooks, void *arg,
                uint64_t now);

struct model_ctx *model_ctx_create(struct model_card *card, uint32_t id, void *owner);
/* Cuts the running command at card->t (advance first) and drops the rest. */
void model_ctx_destroy(struct model_ctx *ctx);

/* False when the pool is full. duration is 0 for commands that take no time. */
bool model_submit(struct model_ctx *ctx, const struct sim_cmd *cmd, uint64_t seq, uint64_t duration);
/* The stream's host function or awaited word with this sequence number is over, as of card->t (advance first). */
void model_client_done(struct model_ctx *ctx, uint32_t stream, uint64_t seq);
/* The command at the head of a stream; NULL if the stream is empty. */
const struct model_op *model_head(const struct model_ctx *ctx, uint32_t stream);

void model_advance(struct model_card *card, uint64_t now);

/* No observable command (event, write, fence, host function, asynchronous free) ends before the returned time, as far
 * as known commands tell; MODEL_NEVER if there is none. space(ctx) true: a quarter of that pool counts as observable. */
uint64_t model_next_wake(const struct model_card *card, bool (*space)(const struct model_ctx *ctx));
bool model_waits_for_client(const struct model_ctx *ctx); /* a host function or WAIT32 heads a stream */

static inline bool model_timed(uint32_t op) { return op >= SIM_OP_KERNEL && op <= SIM_OP_MEMSET; }

#endif
