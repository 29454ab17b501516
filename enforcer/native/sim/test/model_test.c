/* SPDX-License-Identifier: Apache-2.0
 *
 * The event model alone: exact times, and independence of how often it is advanced. Prints "ok NAME" per case; exits
 * 1 at the first broken expectation.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_model.h"

#define MS 1000000ull
#define US 1000ull
#define EXPECT(condition)                                                              \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: expected %s\n", __func__, __LINE__, #condition);    \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

struct piece {
    uint32_t ctx, stream, flags;
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

static void on_piece(void *arg, struct model_ctx *ctx, const struct model_op *op, uint64_t t0, uint64_t t1, uint32_t flags)
{
    struct world *w = arg;
    w->pieces[w->npieces++] = (struct piece){ctx->id, op->stream, flags, op->seq, t0, t1};
}

static struct world *make(uint64_t slice, uint64_t change)
{
    struct world *w = calloc(1, sizeof *w);
    struct model_params params = {slice, change};
    struct model_hooks hooks = {.done = on_done, .piece = on_piece};
    model_init(&w->card, &params, &hooks, w, 0);
    return w;
}

static void destroy(struct world *w)
{
    while (w->card.ctxs)
        model_ctx_destroy(w->card.ctxs);
    free(w);
}

static uint64_t put(struct world *w, struct model_ctx *ctx, uint32_t op, uint32_t stream, uint64_t at, uint64_t ns)
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

static void test_fifo_exact(void)
{
    struct world *w = make(2 * MS, 50 * US);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 100, 1000);
    put(w, a, SIM_OP_KERNEL, 17, 200, 500);
    uint64_t event = put(w, a, SIM_OP_EVENT, 17, 200, 0);
    put(w, a, SIM_OP_KERNEL, 17, 5000, 10); /* after an idle gap */
    EXPECT(model_next_wake(&w->card, NULL) == 1600);
    model_advance(&w->card, 10000);
    EXPECT(w->npieces == 3 && w->pieces[0].t0 == 100 && w->pieces[0].t1 == 1100);
    EXPECT(w->pieces[1].t0 == 1100 && w->pieces[1].t1 == 1600 && w->pieces[2].t0 == 5000 && w->pieces[2].t1 == 5010);
    EXPECT(done_at(w, 1, event) == 1600);
    EXPECT(w->card.busy_ns == 1510 && model_next_wake(&w->card, NULL) == MODEL_NEVER);
    destroy(w);
}

/* Two contexts with long kernels alternate in slices; the change costs; both get half. */
static void test_slices(void)
{
    struct world *w = make(2 * MS, 100 * US);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL), *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 5 * MS);
    put(w, b, SIM_OP_KERNEL, 17, 0, 5 * MS);
    model_advance(&w->card, 100 * MS);
    EXPECT(w->npieces == 6);
    EXPECT(w->pieces[0].ctx == 1 && w->pieces[0].t0 == 0 && w->pieces[0].t1 == 2 * MS && w->pieces[0].flags == 0);
    EXPECT(w->pieces[1].ctx == 2 && w->pieces[1].t0 == 2 * MS + 100 * US && w->pieces[1].t1 == 4 * MS + 100 * US);
    EXPECT(w->pieces[4].flags == SIM_TRACE_LAST && w->pieces[5].flags == SIM_TRACE_LAST);
    EXPECT(a->busy_ns == 5 * MS && b->busy_ns == 5 * MS && w->card.busy_ns == 10 * MS);
    EXPECT(done_at(w, 2, 1) == 10 * MS + 5 * 100 * US);
    destroy(w);
}

/* A context without work gives its turn away at once. */
static void test_gives_away(void)
{
    struct world *w = make(2 * MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL), *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 100 * US);
    put(w, b, SIM_OP_KERNEL, 17, 0, 1 * MS);
    model_advance(&w->card, 10 * MS);
    EXPECT(done_at(w, 2, 1) == 1100 * US);
    destroy(w);
}

/* The context that had the card in its slice is stopped in the middle only when its slice is over. */
static void test_late_comer_waits_for_slice(void)
{
    struct world *w = make(2 * MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL), *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    put(w, b, SIM_OP_KERNEL, 17, 500 * US, 100 * US);
    model_advance(&w->card, 20 * MS);
    EXPECT(done_at(w, 2, 1) == 2 * MS + 100 * US);
    EXPECT(done_at(w, 1, 1) == 10 * MS + 100 * US);
    destroy(w);
}

static void test_streams_and_waits(void)
{
    struct world *w = make(2 * MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 1000);
    uint64_t record = put(w, a, SIM_OP_EVENT, 17, 0, 0);
    struct sim_cmd wait = {.op = SIM_OP_WAIT, .stream = 18, .a = 1, .b = 17, .c = record};
    EXPECT(model_submit(a, &wait, ++w->seqs[1], 0));
    uint64_t second = put(w, a, SIM_OP_KERNEL, 18, 0, 10);
    uint64_t other = put(w, a, SIM_OP_EVENT, 19, 100, 0); /* beside the kernel, not behind it */
    model_advance(&w->card, 10 * MS);
    EXPECT(done_at(w, 1, record) == 1000 && done_at(w, 1, second) == 1010 && done_at(w, 1, other) == 100);
    destroy(w);
}

static void test_default_stream_orders(void)
{
    struct world *w = make(2 * MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 1000);
    uint64_t legacy = put(w, a, SIM_OP_EVENT, 0, 0, 0);
    uint64_t after = put(w, a, SIM_OP_EVENT, 18, 0, 0);
    struct sim_cmd free_runner = {.op = SIM_OP_EVENT, .stream = 19, .flags = SIM_CMD_NONBLOCKING};
    EXPECT(model_submit(a, &free_runner, ++w->seqs[1], 0));
    uint64_t all = put(w, a, SIM_OP_FENCE, SIM_STREAM_ALL, 0, 0);
    EXPECT(model_next_wake(&w->card, NULL) == 0); /* the free runner */
    model_advance(&w->card, 1);
    EXPECT(done_at(w, 1, 4) == 0 && w->ndone == 1 && model_next_wake(&w->card, NULL) == 1000);
    model_advance(&w->card, 10 * MS);
    EXPECT(done_at(w, 1, legacy) == 1000 && done_at(w, 1, after) == 1000 && done_at(w, 1, all) == 1000);
    destroy(w);
}

static void test_client_side(void)
{
    struct world *w = make(2 * MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    uint64_t host = put(w, a, SIM_OP_HOST, 17, 0, 0);
    uint64_t kernel = put(w, a, SIM_OP_KERNEL, 17, 0, 10);
    model_advance(&w->card, 5000);
    EXPECT(w->ndone == 0 && model_waits_for_client(a) && model_next_wake(&w->card, NULL) == MODEL_NEVER);
    model_client_done(a, 17, host);
    model_advance(&w->card, 6000);
    EXPECT(done_at(w, 1, host) == 5000 && done_at(w, 1, kernel) == 5010);
    destroy(w);
}

static void test_death_cuts(void)
{
    struct world *w = make(2 * MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL), *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    put(w, b, SIM_OP_KERNEL, 17, 0, 1 * MS);
    model_advance(&w->card, 1 * MS);
    model_ctx_destroy(a);
    EXPECT(w->npieces == 1 && w->pieces[0].t1 == 1 * MS && w->pieces[0].flags == (SIM_TRACE_CUT | SIM_TRACE_LAST));
    model_advance(&w->card, 10 * MS);
    EXPECT(done_at(w, 2, 1) == 2 * MS);
    destroy(w);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

/* Random work of three contexts; steps: 0 = one advance at the end, else wake up after every command and often. */
static struct world *random_run(uint64_t seed, bool often)
{
    struct world *w = make(300 * US, 7 * US);
    struct model_ctx *ctxs[3];
    uint64_t state = seed, at = 0;
    for (uint32_t i = 0; i < 3; i++)
        ctxs[i] = model_ctx_create(&w->card, i + 1, NULL);
    for (unsigned i = 0; i < 900; i++) {
        struct model_ctx *ctx = ctxs[next_random(&state) % 3];
        uint32_t stream = next_random(&state) % 4 ? 17 + next_random(&state) % 3 : 0;
        uint32_t kind = next_random(&state) % 4 ? SIM_OP_KERNEL : SIM_OP_EVENT;
        at += next_random(&state) % 100 * US;
        put(w, ctx, kind, stream, at, kind == SIM_OP_KERNEL ? 1 + next_random(&state) % 200000 : 0);
        for (unsigned k = 0; often && k < 3; k++) { /* never past what is known: the next submission may be at `at` */
            uint64_t now = w->card.t + (at - w->card.t) / 2;
            model_advance(&w->card, now);
        }
    }
    for (uint64_t t = at; often && t < at + 400 * MS; t += 37 * US)
        model_advance(&w->card, t);
    model_advance(&w->card, at + 400 * MS);
    return w;
}

static void test_replay(void)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct world *once = random_run(seed, false), *often = random_run(seed, true);
        EXPECT(once->npieces == often->npieces && once->ndone == often->ndone && once->ndone == 900);
        EXPECT(memcmp(once->pieces, often->pieces, once->npieces * sizeof once->pieces[0]) == 0);
        EXPECT(memcmp(once->done, often->done, once->ndone * sizeof once->done[0]) == 0);
        for (unsigned i = 1; i < once->npieces; i++)
            EXPECT(once->pieces[i - 1].t1 <= once->pieces[i].t0); /* one at a time */
        destroy(once);
        destroy(often);
    }
}

static void test_pool_is_bounded(void)
{
    struct world *w = make(2 * MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    for (unsigned i = 0; i < MODEL_POOL; i++)
        put(w, a, SIM_OP_KERNEL, 17, 0, 1000);
    struct sim_cmd more = {.op = SIM_OP_KERNEL, .stream = 17};
    EXPECT(!model_submit(a, &more, 9999, 1000));
    model_advance(&w->card, 2000);
    EXPECT(model_submit(a, &more, 9999, 1000));
    destroy(w);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"fifo_exact", test_fifo_exact},
                 {"slices", test_slices},
                 {"gives_away", test_gives_away},
                 {"late_comer_waits_for_slice", test_late_comer_waits_for_slice},
                 {"streams_and_waits", test_streams_and_waits},
                 {"default_stream_orders", test_default_stream_orders},
                 {"client_side", test_client_side},
                 {"death_cuts", test_death_cuts},
                 {"replay", test_replay},
                 {"pool_is_bounded", test_pool_is_bounded}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cases[i].run();
        printf("ok %s\n", cases[i].name);
    }
    return 0;
}
