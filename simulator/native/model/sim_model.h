/* SPDX-License-Identifier: Apache-2.0
 *
 * The event model of one simulated card. Pure: no system calls, no clock, no allocation besides
 * calloc at creation. Time is what the caller says. Given the same submissions (each known before
 * model_advance passes its t_submit) the result does not depend on how often model_advance is
 * called: a late wake-up replays the past exactly.
 *
 * The card has three engines that work at the same time: compute (kernels, fills, copies within the
 * card), a copy engine for host to card, and one for card to host and card to card. Each serves one
 * context at a time; contexts with work for it take turns in slices, and give their turn away when
 * they have none. On compute a change of context costs switch_ns, and with run_to_end a kernel is
 * never stopped in the middle. Within a context the ready stream head with the smallest sequence
 * number runs next. sim_model.c holds the queues, sim_sched.c the time, sim_predict.c the next
 * wake-up.
 */
#ifndef QGPU_SIM_MODEL_H
#define QGPU_SIM_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim_proto.h"

#define MODEL_POOL  SIM_RING /* commands of one context that the model holds */
#define MODEL_NEVER UINT64_MAX
#define MODEL_HUNG  (1ull << 60) /* duration of a kernel that never ends: 36 years */

enum model_engine_id { ENG_COMPUTE, ENG_HTOD, ENG_DTOH, MODEL_ENGINES, ENG_NONE = MODEL_ENGINES };

struct model_op {
    uint32_t op, stream, flags;
    uint16_t next;  /* pool link */
    uint8_t engine; /* ENG_NONE: concerns the host alone and waits for no engine */
    uint64_t seq, t_submit, not_before, left, work, a, b, c;
};

struct model_stream {
    uint16_t head, tail; /* pool index + 1; 0 = empty */
    uint16_t active;     /* place in ctx->active + 1; 0 = not there */
    /* of the newest timed command: what follows it goes through the same queue of the card */
    uint8_t engine;
    uint64_t done_seq;
    uint64_t client_done; /* last host function or awaited word of this stream that is over */
};

/* Where a kernel of compute can be taken off: at its end (wait for idle), between its blocks,
 * anywhere. */
enum model_preempt { PREEMPT_AS_CARD, PREEMPT_AT_END, PREEMPT_BLOCK, PREEMPT_ANYWHERE };

struct model_ctx {
    struct model_ctx *next; /* of the card, in order of creation */
    struct model_card *card;
    void *owner;
    uint32_t id;
    /* nhost: those of ENG_NONE; ncopies: timed ones of a copy engine */
    uint32_t nops, nactive, nhost, ncopies;
    /* pool index + 1 of a used one; number of those that were ever used */
    uint16_t free_op, fresh;
    /* pool index + 1 of the command on the engine or stopped in the middle */
    uint16_t running[MODEL_ENGINES];
    uint16_t active[SIM_STREAMS];
    uint64_t slice_ns[MODEL_ENGINES]; /* 0: that of the card */
    enum model_preempt preempt;
    bool held[MODEL_ENGINES]; /* not for this engine until it is let go */
    uint64_t next_launch;     /* the front end accepts the next kernel no earlier */
    uint64_t busy_ns[MODEL_ENGINES];
    struct model_stream streams[SIM_STREAMS];
    struct model_op pool[MODEL_POOL];
};

struct model_params {
    uint64_t slice_ns, switch_ns, launch_ns;
    bool run_to_end;            /* always; else as a context says, else as preempt says */
    enum model_preempt preempt; /* PREEMPT_AS_CARD: anywhere */
    /* anywhere: from the order to the end of the running command's piece */
    uint64_t preempt_ns;
    /* of kernels that do not say it (c of struct sim_cmd); 0: a kernel is one block */
    uint64_t block_ns;
};

struct model_hooks {
    /* A command ended at t. */
    void (*done)(void *arg, struct model_ctx *ctx, const struct model_op *op, uint64_t t);
    /* A piece [t0, t1) of op was executed; flags are SIM_TRACE_*. */
    void (*piece)(void *arg, struct model_ctx *ctx, const struct model_op *op, uint64_t t0,
                  uint64_t t1, uint32_t flags);
    /* The context with this id, on any card; NULL when it is gone. */
    struct model_ctx *(*find)(void *arg, uint32_t ctx_id);
};

struct model_engine {
    struct model_ctx *cur; /* on the engine */
    uint32_t last_id;      /* of the context that was last on it */
    uint64_t slice_end, switch_left, piece_start;
    uint64_t stop_at; /* cur is held: what it runs leaves the engine then */
    bool executing;   /* cur->running[engine] executes since piece_start */
};

struct model_card {
    struct model_params params;
    struct model_hooks hooks;
    void *arg;
    uint64_t t; /* simulated up to here */
    uint64_t busy_ns[MODEL_ENGINES];
    uint64_t switches, switch_ns; /* changes of context on compute, and what they cost */
    uint64_t stall_end;           /* nothing on the card moves before */
    struct model_ctx *ctxs;
    struct model_engine engines[MODEL_ENGINES];
};

void model_init(struct model_card *card, const struct model_params *params,
                const struct model_hooks *hooks, void *arg, uint64_t now);

struct model_ctx *model_ctx_create(struct model_card *card, uint32_t id, void *owner);
/* Cuts the running commands at card->t (advance first) and drops the rest. */
void model_ctx_destroy(struct model_ctx *ctx);
/* The same, and the context stays; what is submitted from now on is the caller's to refuse. */
void model_ctx_abort(struct model_ctx *ctx);

/* Off its card, with what it did there, and on another one as if it had been there. What still runs
 * is cut. A context without a card can be destroyed. */
void model_ctx_leave(struct model_ctx *ctx);
void model_ctx_join(struct model_ctx *ctx, struct model_card *card);

/* False when the pool is full. duration is 0 for commands that take no time. */
bool model_submit(struct model_ctx *ctx, const struct sim_cmd *cmd, uint64_t seq,
                  uint64_t duration);
/* The stream's host function or awaited word with this sequence number is over, as of card->t
 * (advance first). */
void model_client_done(struct model_ctx *ctx, uint32_t stream, uint64_t seq);
/* The command at the head of a stream; NULL if the stream is empty. */
const struct model_op *model_head(const struct model_ctx *ctx, uint32_t stream);
/* From card->t on (advance first) the context is not for the engine, or again: a running command
 * leaves it after what its preemption takes (lenient: with the end of its slice) and goes on later
 * where it was. */
void model_hold(struct model_ctx *ctx, unsigned engine, bool hold, bool lenient);
/* The context's slice ends as soon as its command can be taken off the engine: then, 0: nothing of
 * it is there. */
uint64_t model_expire(struct model_ctx *ctx, unsigned engine);
void model_set_slice(struct model_ctx *ctx, unsigned engine, uint64_t ns); /* at once */
/* Until when the engine executes the held context at the latest; 0: it does not. */
uint64_t model_leaves(const struct model_ctx *ctx, unsigned engine);
/* Nothing on the card moves for ns from card->t on. */
void model_stall(struct model_card *card, uint64_t ns);

void model_advance(struct model_card *card, uint64_t now);

/* No observable command (event, write, fence, host function, asynchronous free) ends before the
 * returned time, as far as known commands tell; MODEL_NEVER if there is none. space(ctx) true: a
 * quarter of that pool counts as observable. */
uint64_t model_next_wake(const struct model_card *card, bool (*space)(const struct model_ctx *ctx));
/* a host function or an awaited word heads a stream */
bool model_waits_for_client(const struct model_ctx *ctx);

static inline bool model_timed(uint32_t op)
{
    return op >= SIM_OP_KERNEL && op <= SIM_OP_PEER;
}

static inline bool model_awaits_word(uint32_t op)
{
    return op == SIM_OP_WAIT32 || op == SIM_OP_WAIT64;
}

static inline bool model_observable(uint32_t op)
{
    return !model_timed(op) && op != SIM_OP_WAIT;
}

/* Shared by the three files. */
static inline struct model_op *model_at(const struct model_ctx *ctx, uint16_t link)
{
    return (struct model_op *)&ctx->pool[link - 1];
}
/* The context is held, and yet something of it is on the engine for a while. */
static inline bool model_leaving(const struct model_card *card, unsigned engine)
{
    const struct model_engine *eng = &card->engines[engine];
    return eng->cur && eng->cur->held[engine] && eng->cur->running[engine] &&
           card->t < eng->stop_at;
}
void model_stop_piece(struct model_card *card, unsigned engine, uint32_t flags);
void model_finish(struct model_ctx *ctx, uint16_t link);

#endif
