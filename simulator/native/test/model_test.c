/* SPDX-License-Identifier: Apache-2.0
 *
 * The event model alone: exact times, and independence of how often it is advanced. Prints "ok
 * NAME" per case; exits 1 at the first broken expectation.
 */
#include "model_world.h"

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
    EXPECT(w->pieces[1].t0 == 1100 && w->pieces[1].t1 == 1600 && w->pieces[2].t0 == 5000 &&
           w->pieces[2].t1 == 5010);
    EXPECT(done_at(w, 1, event) == 1600);
    EXPECT(w->card.busy_ns[ENG_COMPUTE] == 1510 && model_next_wake(&w->card, NULL) == MODEL_NEVER);
    destroy(w);
}

/* Two contexts with long kernels alternate in slices; the change costs; both get half. */
static void test_slices(void)
{
    struct world *w = make(2 * MS, 100 * US);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 5 * MS);
    put(w, b, SIM_OP_KERNEL, 17, 0, 5 * MS);
    model_advance(&w->card, 100 * MS);
    EXPECT(w->npieces == 6);
    EXPECT(w->pieces[0].ctx == 1 && w->pieces[0].t0 == 0 && w->pieces[0].t1 == 2 * MS &&
           w->pieces[0].flags == 0);
    EXPECT(w->pieces[1].ctx == 2 && w->pieces[1].t0 == 2 * MS + 100 * US &&
           w->pieces[1].t1 == 4 * MS + 100 * US);
    EXPECT(w->pieces[4].flags == SIM_TRACE_LAST && w->pieces[5].flags == SIM_TRACE_LAST);
    EXPECT(a->busy_ns[0] == 5 * MS && b->busy_ns[0] == 5 * MS && w->card.busy_ns[0] == 10 * MS);
    EXPECT(done_at(w, 2, 1) == 10 * MS + 5 * 100 * US);
    destroy(w);
}

/* A context without work gives its turn away at once. */
static void test_gives_away(void)
{
    struct world *w = make(2 * MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 100 * US);
    put(w, b, SIM_OP_KERNEL, 17, 0, 1 * MS);
    model_advance(&w->card, 10 * MS);
    EXPECT(done_at(w, 2, 1) == 1100 * US);
    destroy(w);
}

/* The context that had the card in its slice is stopped in the middle only when its slice is over.
 */
static void test_late_comer_waits_for_slice(void)
{
    struct world *w = make(2 * MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
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
    EXPECT(done_at(w, 1, record) == 1000 && done_at(w, 1, second) == 1010 &&
           done_at(w, 1, other) == 100);
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
    EXPECT(done_at(w, 1, legacy) == 1000 && done_at(w, 1, after) == 1000 &&
           done_at(w, 1, all) == 1000);
    destroy(w);
}

static void test_client_side(void)
{
    struct world *w = make(2 * MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    uint64_t host = put(w, a, SIM_OP_HOST, 17, 0, 0);
    uint64_t kernel = put(w, a, SIM_OP_KERNEL, 17, 0, 10);
    model_advance(&w->card, 5000);
    EXPECT(w->ndone == 0 && model_waits_for_client(a) &&
           model_next_wake(&w->card, NULL) == MODEL_NEVER);
    model_client_done(a, 17, host);
    model_advance(&w->card, 6000);
    EXPECT(done_at(w, 1, host) == 5000 && done_at(w, 1, kernel) == 5010);
    destroy(w);
}

static void test_death_cuts(void)
{
    struct world *w = make(2 * MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    put(w, b, SIM_OP_KERNEL, 17, 0, 1 * MS);
    model_advance(&w->card, 1 * MS);
    model_ctx_destroy(a);
    EXPECT(w->npieces == 1 && w->pieces[0].t1 == 1 * MS &&
           w->pieces[0].flags == (SIM_TRACE_CUT | SIM_TRACE_LAST));
    model_advance(&w->card, 10 * MS);
    EXPECT(done_at(w, 2, 1) == 2 * MS);
    destroy(w);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

static const uint32_t random_ops[] = {SIM_OP_KERNEL, SIM_OP_KERNEL, SIM_OP_KERNEL, SIM_OP_HTOD,
                                      SIM_OP_DTOH,   SIM_OP_PEER,   SIM_OP_MEMSET, SIM_OP_EVENT,
                                      SIM_OP_FENCE,  SIM_OP_WAIT};

/* Random work of three contexts on all engines; often: advanced after every command and in small
 * steps. */
static struct world *random_run(uint64_t seed, struct model_params params, bool often)
{
    struct world *w = make_with(params);
    struct model_ctx *ctxs[3];
    uint64_t state = seed, at = 0, last[4][32] = {0};
    for (uint32_t i = 0; i < 3; i++)
        ctxs[i] = model_ctx_create(&w->card, i + 1, NULL);
    ctxs[2]->slice_ns[ENG_COMPUTE] = 450 * US;
    for (unsigned i = 0; i < 900; i++) {
        struct model_ctx *ctx = ctxs[next_random(&state) % 3];
        uint32_t stream = next_random(&state) % 4 ? 17 + next_random(&state) % 3 : 0;
        uint32_t op = random_ops[next_random(&state) % (sizeof random_ops / sizeof random_ops[0])];
        uint64_t ns = model_timed(op) ? 1 + next_random(&state) % 200000 : 0;
        at += next_random(&state) % 100 * US;
        struct sim_cmd cmd = {.op = op,
                              .stream = stream,
                              .t_submit = at,
                              .a = op == SIM_OP_WAIT ? ctx->id : ns,
                              .flags = next_random(&state) % 8 ? 0 : SIM_CMD_NONBLOCKING,
                              .b = 17 + next_random(&state) % 3};
        cmd.c = last[ctx->id][cmd.b];
        EXPECT(model_submit(ctx, &cmd, ++w->seqs[ctx->id], ns));
        last[ctx->id][stream] = w->seqs[ctx->id];
        /* never past what is known: the next submission may be at `at` */
        for (unsigned k = 0; often && k < 3; k++)
            model_advance(&w->card, w->card.t + (at - w->card.t) / 2);
    }
    for (uint64_t t = at; often && t < at + 400 * MS; t += 37 * US)
        model_advance(&w->card, t);
    model_advance(&w->card, at + 400 * MS);
    return w;
}

static unsigned engine_of_piece(const struct piece *p)
{
    return p->op == SIM_OP_HTOD                           ? ENG_HTOD
           : p->op == SIM_OP_DTOH || p->op == SIM_OP_PEER ? ENG_DTOH
                                                          : ENG_COMPUTE;
}

static void expect_one_at_a_time(const struct world *w)
{
    uint64_t end[MODEL_ENGINES] = {0};
    for (unsigned i = 0; i < w->npieces; i++) {
        unsigned e = engine_of_piece(&w->pieces[i]);
        EXPECT(end[e] <= w->pieces[i].t0 && w->pieces[i].t0 < w->pieces[i].t1);
        end[e] = w->pieces[i].t1;
    }
}

static void test_replay(void)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct model_params params = {.slice_ns = 300 * US,
                                      .switch_ns = 7 * US,
                                      .launch_ns = seed % 3 * 2 * US,
                                      .run_to_end = seed % 2};
        struct world *once = random_run(seed, params, false),
                     *often = random_run(seed, params, true);
        EXPECT(once->npieces == often->npieces && once->ndone == often->ndone &&
               once->ndone == 900);
        EXPECT(memcmp(once->pieces, often->pieces, once->npieces * sizeof once->pieces[0]) == 0);
        EXPECT(memcmp(once->done, often->done, once->ndone * sizeof once->done[0]) == 0);
        EXPECT(once->card.switches == often->card.switches &&
               once->card.switch_ns == often->card.switch_ns);
        expect_one_at_a_time(once);
        destroy(once);
        destroy(often);
    }
}

/* No wake-up may be later than the next observable end. */
static void test_prediction_is_a_lower_bound(void)
{
    for (uint64_t seed = 100; seed < 120; seed++) {
        struct world *w = random_run(seed,
                                     (struct model_params){.slice_ns = 300 * US,
                                                           .switch_ns = 7 * US,
                                                           .launch_ns = 3 * US,
                                                           .run_to_end = seed % 2},
                                     false);
        uint64_t base = w->card.t;
        for (uint32_t i = 0; i < 60; i++) {
            uint32_t op = random_ops[(seed + i * 7) % 10];
            struct model_ctx *ctx = i % 3 ? w->card.ctxs : w->card.ctxs->next;
            put(w, ctx, op == SIM_OP_WAIT ? SIM_OP_EVENT : op, i % 5 ? 17 + i % 3 : 0,
                base + i * US, model_timed(op) ? 1 + i * 3001 : 0);
        }
        while (w->card.ctxs->nops || w->card.ctxs->next->nops) {
            unsigned before = w->ndone;
            uint64_t wake = model_next_wake(&w->card, NULL);
            uint64_t to = wake == MODEL_NEVER ? w->card.t + MS
                          : wake > w->card.t  ? wake
                                              : w->card.t + US;
            model_advance(&w->card, to);
            for (unsigned i = before; i < w->ndone; i++)
                EXPECT(!model_observable(w->done[i].op) || w->done[i].t >= wake || wake <= to - US);
        }
        destroy(w);
    }
}

static double share(const struct model_ctx *ctx)
{
    return (double)ctx->busy_ns[ENG_COMPUTE] / (double)ctx->card->busy_ns[ENG_COMPUTE];
}

/* n equal contexts that are always backlogged get 1/n each, whatever their kernels are like. */
static void test_equal_contexts_share_equally(void)
{
    static const unsigned counts[] = {2, 3, 5, 7};
    for (unsigned k = 0; k < 4; k++) {
        struct world *w = make(MS, 50 * US);
        for (uint32_t i = 0; i < counts[k]; i++) {
            struct model_ctx *ctx = model_ctx_create(&w->card, i + 1, NULL);
            for (unsigned j = 0; j < 4000; j++)
                put(w, ctx, SIM_OP_KERNEL, 17, 0, (200 + 300 * i) * US);
        }
        model_advance(&w->card, 10 * counts[k] * counts[k] * MS);
        for (struct model_ctx *ctx = w->card.ctxs; ctx; ctx = ctx->next)
            EXPECT(share(ctx) > 0.97 / counts[k] && share(ctx) < 1.03 / counts[k]);
        destroy(w);
    }
}

/* A slice of its own: twice as long, twice the share. */
static void test_slice_of_one_context(void)
{
    struct world *w = make(MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    a->slice_ns[ENG_COMPUTE] = 2 * MS;
    put(w, a, SIM_OP_KERNEL, 17, 0, 1000 * MS);
    put(w, b, SIM_OP_KERNEL, 17, 0, 1000 * MS);
    model_advance(&w->card, 300 * MS);
    EXPECT(a->busy_ns[0] == 200 * MS && b->busy_ns[0] == 100 * MS);
    destroy(w);
}

static void test_switch_cost_adds_up(void)
{
    struct world *w = make(MS, 100 * US);
    for (uint32_t i = 1; i <= 2; i++)
        put(w, model_ctx_create(&w->card, i, NULL), SIM_OP_KERNEL, 17, 0, 1000 * MS);
    model_advance(&w->card, 110 * MS);
    EXPECT(w->card.busy_ns[0] == 100 * MS && w->card.switches == 99 + 1);
    EXPECT(w->card.busy_ns[0] + w->card.switch_ns == 110 * MS);
    destroy(w);
}

/* Nothing is stopped in the middle, and the next context waits for the end of the kernel. */
static void test_run_to_end(void)
{
    struct world *w = make_with((struct model_params){.slice_ns = MS, .run_to_end = true});
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    for (unsigned i = 0; i < 10; i++)
        put(w, a, SIM_OP_KERNEL, 17, 0, 7 * MS);
    put(w, b, SIM_OP_KERNEL, 17, 100 * US, 100 * US);
    model_advance(&w->card, 1000 * MS);
    EXPECT(done_at(w, 2, 1) == 7 * MS + 100 * US && w->npieces == 11);
    for (unsigned i = 0; i < w->npieces; i++)
        EXPECT(w->pieces[i].flags == SIM_TRACE_LAST);
    destroy(w);
}

/* A copy runs beside a kernel of the same and of another context; both directions beside each
 * other. */
static void test_copies_overlap(void)
{
    struct world *w = make(MS, 100 * US);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    put(w, a, SIM_OP_HTOD, 18, 0, 4 * MS);
    uint64_t up = put(w, a, SIM_OP_EVENT, 18, 0, 0);
    put(w, b, SIM_OP_DTOH, 17, 0, 5 * MS);
    uint64_t down = put(w, b, SIM_OP_EVENT, 17, 0, 0);
    put(w, b, SIM_OP_HTOD, 18, 0, 4 * MS); /* shares the engine with a's */
    model_advance(&w->card, 100 * MS);
    EXPECT(done_at(w, 1, 1) == 10 * MS && done_at(w, 1, up) == 7 * MS &&
           done_at(w, 2, down) == 5 * MS);
    EXPECT(done_at(w, 2, 3) == 8 * MS && w->card.switches == 0);
    destroy(w);
}

/* Copies within the card and fills are work of the compute engine. */
static void test_fills_do_not_overlap(void)
{
    struct world *w = make(MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, MS);
    put(w, a, SIM_OP_MEMSET, 18, 0, MS);
    put(w, a, SIM_OP_DTOD, 19, 0, MS);
    model_advance(&w->card, 10 * MS);
    EXPECT(done_at(w, 1, 2) == 2 * MS && done_at(w, 1, 3) == 3 * MS);
    destroy(w);
}

/* A launch is at the card launch_ns after the call; short kernels start launch_ns apart; nodes of a
 * graph do not pay. */
static void test_launch_latency(void)
{
    struct world *w = make_with((struct model_params){.slice_ns = MS, .launch_ns = 4 * US});
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    for (unsigned i = 0; i < 10; i++)
        put(w, a, SIM_OP_KERNEL, 17, 0, 1 * US);
    model_advance(&w->card, MS);
    EXPECT(done_at(w, 1, 1) == 5 * US && done_at(w, 1, 10) == 4 * US + 9 * 4 * US + 1 * US);
    for (unsigned i = 0; i < 10; i++)
        put(w, a, SIM_OP_KERNEL, 17, MS, 100 * US);
    model_advance(&w->card, 10 * MS);
    /* long ones follow each other without a gap */
    EXPECT(done_at(w, 1, 20) == MS + 4 * US + 1000 * US);
    for (unsigned i = 0; i < 10; i++) {
        struct sim_cmd node = {
            .op = SIM_OP_KERNEL, .stream = 17, .flags = i ? SIM_CMD_NODE : 0, .t_submit = 20 * MS};
        EXPECT(model_submit(a, &node, ++w->seqs[1], 1 * US));
    }
    model_advance(&w->card, 30 * MS);
    EXPECT(done_at(w, 1, 30) == 20 * MS + 4 * US + 10 * US);
    destroy(w);
}

/* Two streams that join: what cuGraphLaunch submits for a diamond of four nodes. */
static void test_graph_dependencies(void)
{
    struct world *w = make(MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    uint64_t top = put(w, a, SIM_OP_KERNEL, 17, 0, 10 * US);
    struct sim_cmd fork = {.op = SIM_OP_WAIT, .stream = 18, .a = 1, .b = 17, .c = top};
    EXPECT(model_submit(a, &fork, ++w->seqs[1], 0));
    uint64_t copy = put(w, a, SIM_OP_HTOD, 18, 0, 500 * US);
    uint64_t left = put(w, a, SIM_OP_KERNEL, 17, 0, 20 * US);
    struct sim_cmd join = {.op = SIM_OP_WAIT, .stream = 17, .a = 1, .b = 18, .c = copy};
    EXPECT(model_submit(a, &join, ++w->seqs[1], 0));
    uint64_t bottom = put(w, a, SIM_OP_KERNEL, 17, 0, 1 * US);
    model_advance(&w->card, 10 * MS);
    EXPECT(done_at(w, 1, left) == 30 * US && done_at(w, 1, copy) == 510 * US &&
           done_at(w, 1, bottom) == 511 * US);
    destroy(w);
}

static void test_hung_kernel(void)
{
    for (unsigned run_to_end = 0; run_to_end < 2; run_to_end++) {
        struct world *w =
            make_with((struct model_params){.slice_ns = MS, .run_to_end = run_to_end});
        struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                         *b = model_ctx_create(&w->card, 2, NULL);
        put(w, a, SIM_OP_KERNEL, 17, 0, MODEL_HUNG);
        put(w, a, SIM_OP_EVENT, 17, 0, 0);
        put(w, b, SIM_OP_KERNEL, 17, 10, MS);
        model_advance(&w->card, 1000 * MS);
        EXPECT(done_at(w, 1, 1) == 0 && done_at(w, 2, 1) == (run_to_end ? 0 : 2 * MS));
        EXPECT(model_next_wake(&w->card, NULL) > 3600000 * MS);
        model_ctx_destroy(a);
        model_advance(&w->card, 1010 * MS);
        EXPECT(done_at(w, 2, 1) == (run_to_end ? 1001 * MS : 2 * MS));
        destroy(w);
    }
}

static void test_abort_drops_everything(void)
{
    struct world *w = make(MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    for (unsigned i = 0; i < 100; i++)
        put(w, a, i % 2 ? SIM_OP_KERNEL : SIM_OP_HTOD, 17 + i % 5, 0, MS);
    put(w, b, SIM_OP_KERNEL, 17, 0, MS);
    model_advance(&w->card, 500 * US);
    model_ctx_abort(a);
    EXPECT(a->nops == 0 && a->nactive == 0 && w->npieces == 2);
    model_advance(&w->card, 10 * MS);
    EXPECT(done_at(w, 2, 1) == 1500 * US && w->ndone == 1);
    put(w, a, SIM_OP_KERNEL, 17, 10 * MS, MS); /* the model itself may be used again */
    model_advance(&w->card, 20 * MS);
    EXPECT(w->ndone == 2);
    destroy(w);
}

static void test_stall(void)
{
    struct world *w = make(MS, 0);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, MS);
    model_advance(&w->card, 100 * US);
    model_stall(&w->card, 50 * MS);
    EXPECT(model_next_wake(&w->card, NULL) == MODEL_NEVER);
    uint64_t event = put(w, a, SIM_OP_EVENT, 17, 100 * US, 0);
    EXPECT(model_next_wake(&w->card, NULL) >= 50 * MS);
    model_advance(&w->card, 100 * MS);
    EXPECT(done_at(w, 1, event) == 51 * MS && w->npieces == 2 && w->pieces[0].flags == 0);
    destroy(w);
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
                 {"prediction_is_a_lower_bound", test_prediction_is_a_lower_bound},
                 {"equal_contexts_share_equally", test_equal_contexts_share_equally},
                 {"slice_of_one_context", test_slice_of_one_context},
                 {"switch_cost_adds_up", test_switch_cost_adds_up},
                 {"run_to_end", test_run_to_end},
                 {"copies_overlap", test_copies_overlap},
                 {"fills_do_not_overlap", test_fills_do_not_overlap},
                 {"launch_latency", test_launch_latency},
                 {"graph_dependencies", test_graph_dependencies},
                 {"hung_kernel", test_hung_kernel},
                 {"abort_drops_everything", test_abort_drops_everything},
                 {"stall", test_stall},
                 {"pool_is_bounded", test_pool_is_bounded}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cases[i].run();
        printf("ok %s\n", cases[i].name);
    }
    return 0;
}
