/* SPDX-License-Identifier: Apache-2.0
 *
 * Preemption in the event model: contexts that are held and let go, slices that are cut short, the
 * grain of kernels. Exact times, no work lost or done twice, and independence of how often the
 * model is advanced.
 */
#include "model_world.h"

static struct model_params base(void)
{
    return (struct model_params){.slice_ns = MS, .switch_ns = 50 * US, .preempt_ns = 100 * US};
}

static uint64_t work_of(const struct world *w, uint32_t ctx, uint64_t seq)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < w->npieces; i++)
        if (w->pieces[i].ctx == ctx && w->pieces[i].seq == seq)
            sum += w->pieces[i].t1 - w->pieces[i].t0;
    return sum;
}

/* Taken off in the middle after the latency, nothing while it is held, then exactly the rest. */
static void test_hold_stops_and_resumes(void)
{
    struct world *w = make_with(base());
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    uint64_t event = put(w, a, SIM_OP_EVENT, 17, 0, 0);
    model_advance(&w->card, 3 * MS);
    model_hold(a, ENG_COMPUTE, true, false);
    EXPECT(model_leaves(a, ENG_COMPUTE) == 3 * MS + 100 * US);
    model_advance(&w->card, 50 * MS);
    EXPECT(model_leaves(a, ENG_COMPUTE) == 0 && w->npieces == 1 &&
           w->pieces[0].t1 == 3 * MS + 100 * US);
    EXPECT(w->pieces[0].flags == 0 && w->card.busy_ns[0] == w->pieces[0].t1);
    EXPECT(model_next_wake(&w->card, NULL) == MODEL_NEVER);
    model_hold(a, ENG_COMPUTE, false, false);
    model_advance(&w->card, 100 * MS);
    EXPECT(w->npieces == 2 && w->pieces[1].t0 == 50 * MS && w->pieces[1].flags == SIM_TRACE_LAST);
    EXPECT(work_of(w, 1, 1) == 10 * MS && done_at(w, 1, event) == 50 * MS + 6900 * US);
    destroy(w);
}

/* The next context comes when the held one has left, not at the end of its slice, and keeps the
 * engine for good. */
static void test_other_context_takes_over(void)
{
    struct world *w = make_with(base());
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 100 * MS);
    put(w, b, SIM_OP_KERNEL, 17, 200 * US, 20 * MS);
    put(w, b, SIM_OP_EVENT, 17, 200 * US, 0);
    model_advance(&w->card, 300 * US);
    model_hold(a, ENG_COMPUTE, true, false);
    EXPECT(model_next_wake(&w->card, NULL) <= 20 * MS + 450 * US);
    model_advance(&w->card, 60 * MS);
    EXPECT(w->npieces == 2 && w->pieces[0].t1 == 400 * US && w->pieces[1].t0 == 450 * US);
    EXPECT(done_at(w, 2, 1) == 20 * MS + 450 * US && w->card.switches == 1);
    model_hold(a, ENG_COMPUTE, false, false);
    model_advance(&w->card, 200 * MS);
    EXPECT(work_of(w, 1, 1) == 100 * MS && w->pieces[2].t0 == 60 * MS + 50 * US);
    destroy(w);
}

/* What has not begun does not begin; what ends within the latency ends, and nothing follows it. */
static void test_nothing_begins_while_held(void)
{
    struct world *w = make_with(base());
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 1050 * US);
    uint64_t second = put(w, a, SIM_OP_KERNEL, 17, 0, 10 * US);
    model_advance(&w->card, MS);
    model_hold(a, ENG_COMPUTE, true, false);
    EXPECT(model_leaves(a, ENG_COMPUTE) == 1050 * US);
    model_advance(&w->card, 30 * MS);
    EXPECT(done_at(w, 1, 1) == 1050 * US && done_at(w, 1, second) == 0 && w->npieces == 1);
    model_hold(a, ENG_COMPUTE, false, false);
    model_advance(&w->card, 40 * MS);
    EXPECT(done_at(w, 1, second) == 30 * MS + 10 * US);
    destroy(w);
}

/* Let go within the latency: it never left, and pays nothing. */
static void test_let_go_at_once(void)
{
    struct world *w = make_with(base());
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    model_advance(&w->card, MS);
    model_hold(a, ENG_COMPUTE, true, false);
    model_advance(&w->card, MS + 50 * US);
    model_hold(a, ENG_COMPUTE, false, false);
    model_advance(&w->card, 20 * MS);
    EXPECT(w->npieces == 1 && done_at(w, 1, 1) == 10 * MS);
    destroy(w);
}

/* The engines are held one by one; fences and host functions wait for what is before them only. */
static void test_copies_are_their_own(void)
{
    struct world *w = make_with(base());
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    put(w, a, SIM_OP_HTOD, 18, 0, 4 * MS);
    uint64_t copied = put(w, a, SIM_OP_FENCE, 18, 0, 0), idle = put(w, a, SIM_OP_FENCE, 19, 0, 0);
    model_advance(&w->card, MS);
    model_hold(a, ENG_COMPUTE, true, false);
    model_advance(&w->card, 20 * MS);
    EXPECT(done_at(w, 1, copied) == 4 * MS && done_at(w, 1, idle) <= MS && done_at(w, 1, 1) == 0);
    put(w, a, SIM_OP_DTOH, 18, 20 * MS, 4 * MS);
    model_advance(&w->card, 21 * MS);
    model_hold(a, ENG_DTOH, true, false);
    model_advance(&w->card, 60 * MS);
    EXPECT(w->card.busy_ns[ENG_DTOH] == MS + 100 * US && w->card.busy_ns[ENG_HTOD] == 4 * MS);
    destroy(w);
}

/* Between its blocks only: counted from its end, so the first one may be shorter. */
static void test_blocks(void)
{
    struct model_params params = base();
    params.preempt = PREEMPT_BLOCK;
    params.block_ns = 3 * MS;
    struct world *w = make_with(params);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS); /* places at 1, 4, 7 ms */
    model_advance(&w->card, 2 * MS);
    model_hold(a, ENG_COMPUTE, true, false);
    EXPECT(model_leaves(a, ENG_COMPUTE) == 4 * MS);
    model_advance(&w->card, 20 * MS);
    EXPECT(w->npieces == 1 && w->pieces[0].t1 == 4 * MS);
    model_hold(a, ENG_COMPUTE, false, false);
    put(w, b, SIM_OP_KERNEL, 17, 20 * MS + 1, 100 * US);
    model_advance(&w->card, 60 * MS); /* the slice ends at 21 ms, the block at 23 */
    EXPECT(w->pieces[1].t0 == 20 * MS && w->pieces[1].t1 == 23 * MS &&
           done_at(w, 2, 1) == 23150 * US);
    EXPECT(work_of(w, 1, 1) == 10 * MS);
    destroy(w);
}

/* A block that is as long as its kernel: persistent kernels never yield. A kernel may say its own.
 */
static void test_grain_of_one_kernel(void)
{
    struct model_params params = base();
    params.preempt = PREEMPT_BLOCK;
    struct world *w = make_with(params);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    struct sim_cmd cmd = {.op = SIM_OP_KERNEL, .stream = 17, .t_submit = 0, .c = 250 * US};
    EXPECT(model_submit(a, &cmd, ++w->seqs[1], 10 * MS));
    model_advance(&w->card, 2 * MS);
    model_hold(a, ENG_COMPUTE, true, false);
    EXPECT(model_leaves(a, ENG_COMPUTE) == 10 * MS);
    model_advance(&w->card, 30 * MS);
    EXPECT(done_at(w, 1, 1) == 10 * MS && w->npieces == 1);
    model_hold(a, ENG_COMPUTE, false, false);
    model_advance(&w->card, 30100 * US);
    model_hold(a, ENG_COMPUTE, true, false);
    EXPECT(model_leaves(a, ENG_COMPUTE) == 30250 * US);
    a->preempt = PREEMPT_ANYWHERE;
    model_hold(a, ENG_COMPUTE, true, false); /* the better of the two orders counts */
    EXPECT(model_leaves(a, ENG_COMPUTE) == 30200 * US);
    destroy(w);
}

/* The lenient order leaves what runs to the end of its slice. */
static void test_lenient(void)
{
    struct world *w = make_with(base());
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    model_advance(&w->card, 2300 * US);
    model_hold(a, ENG_COMPUTE, true, true);
    model_advance(&w->card, 30 * MS);
    EXPECT(w->npieces == 1 && w->pieces[0].t1 == 3 * MS);
    destroy(w);
}

static void test_expire(void)
{
    struct world *w = make_with(base());
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    model_advance(&w->card, 100 * US);
    model_expire(a, ENG_COMPUTE); /* alone: it goes on, in a new slice */
    model_advance(&w->card, 300 * US);
    EXPECT(w->npieces == 0);
    put(w, b, SIM_OP_KERNEL, 17, 300 * US, 10 * US);
    EXPECT(model_expire(a, ENG_COMPUTE) == 400 * US && model_expire(b, ENG_COMPUTE) == 0);
    model_advance(&w->card, 5 * MS);
    EXPECT(w->pieces[0].t1 == 400 * US && done_at(w, 2, 1) == 460 * US);
    destroy(w);
}

/* 3 : 7, also when the slices change under way. */
static void test_weights(void)
{
    struct model_params params = base();
    params.switch_ns = 0;
    struct world *w = make_with(params);
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10000 * MS);
    put(w, b, SIM_OP_KERNEL, 17, 0, 10000 * MS);
    model_advance(&w->card, 10 * MS);
    uint64_t before[2] = {a->busy_ns[0], b->busy_ns[0]};
    EXPECT(before[0] == 5 * MS && before[1] == 5 * MS);
    model_set_slice(a, ENG_COMPUTE, 3 * MS);
    model_set_slice(b, ENG_COMPUTE, 7 * MS);
    model_advance(&w->card, 1010 * MS);
    EXPECT(a->busy_ns[0] - before[0] == 300 * MS && b->busy_ns[0] - before[1] == 700 * MS);
    destroy(w);
}

/* A shorter slice takes effect at once. */
static void test_shorter_slice_now(void)
{
    struct world *w = make_with(base());
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    put(w, b, SIM_OP_KERNEL, 17, 0, 10 * MS);
    model_advance(&w->card, 200 * US);
    model_set_slice(a, ENG_COMPUTE, 1 * US);
    model_advance(&w->card, 2 * MS);
    EXPECT(w->pieces[0].t1 == 201 * US);
    destroy(w);
}

static void test_death_while_held(void)
{
    struct world *w = make_with(base());
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL),
                     *b = model_ctx_create(&w->card, 2, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    put(w, b, SIM_OP_KERNEL, 17, 0, MS);
    model_advance(&w->card, 200 * US);
    model_hold(a, ENG_COMPUTE, true, false);
    model_advance(&w->card, 250 * US); /* on its way off */
    model_ctx_destroy(a);
    EXPECT(w->npieces == 1 && w->pieces[0].t1 == 250 * US &&
           w->pieces[0].flags == (SIM_TRACE_CUT | SIM_TRACE_LAST));
    model_advance(&w->card, 10 * MS);
    EXPECT(done_at(w, 2, 1) == 1300 * US);
    destroy(w);
}

static void test_stall_while_leaving(void)
{
    struct world *w = make_with(base());
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, 10 * MS);
    model_advance(&w->card, MS);
    model_hold(a, ENG_COMPUTE, true, false);
    model_advance(&w->card, MS + 20 * US);
    model_stall(&w->card, 5 * MS);
    model_advance(&w->card, 30 * MS);
    EXPECT(w->npieces == 2 && w->pieces[1].t0 == 6020 * US && w->pieces[1].t1 == 6100 * US);
    destroy(w);
}

/* ---- random orders ---- */

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

static void order(struct model_ctx *ctx, uint64_t *state)
{
    unsigned engine = next_random(state) % MODEL_ENGINES;
    switch (next_random(state) % 4) {
    case 0:
        model_expire(ctx, engine);
        break;
    case 1:
        model_set_slice(ctx, engine, (1 + next_random(state) % 900) * US);
        break;
    default:
        model_hold(ctx, engine, !ctx->held[engine], next_random(state) % 4 == 0);
    }
}

static const uint32_t ops[] = {SIM_OP_KERNEL, SIM_OP_KERNEL, SIM_OP_HTOD, SIM_OP_DTOH,
                               SIM_OP_MEMSET, SIM_OP_EVENT,  SIM_OP_FENCE};

/* Work of three contexts and orders between it; often: the model is also advanced in small steps.
 */
static struct world *random_run(uint64_t seed, struct model_params params, bool often,
                                unsigned *early)
{
    struct world *w = make_with(params);
    struct model_ctx *ctxs[3];
    uint64_t state = seed, at = 0;
    for (uint32_t i = 0; i < 3; i++)
        ctxs[i] = model_ctx_create(&w->card, i + 1, NULL);
    for (unsigned i = 0; i < 1500; i++) {
        struct model_ctx *ctx = ctxs[next_random(&state) % 3];
        at += next_random(&state) % 120 * US;
        for (unsigned k = 0; often && k < 3; k++)
            model_advance(&w->card, w->card.t + (at - w->card.t) / 2);
        if (next_random(&state) % 3 == 0) {
            uint64_t wake = model_next_wake(&w->card, NULL);
            unsigned before = w->ndone;
            model_advance(&w->card, at);
            for (unsigned k = before; early && k < w->ndone; k++)
                *early += model_observable(w->done[k].op) && w->done[k].t < wake;
            order(ctx, &state);
            continue;
        }
        uint32_t op = ops[next_random(&state) % (sizeof ops / sizeof ops[0])];
        put(w, ctx, op, next_random(&state) % 4 ? 17 + next_random(&state) % 3 : 0, at,
            model_timed(op) ? 1 + next_random(&state) % 200000 : 0);
    }
    for (unsigned i = 0; i < 3; i++)
        for (unsigned e = 0; e < MODEL_ENGINES; e++)
            model_advance(&w->card, at), model_hold(ctxs[i], e, false, false);
    for (uint64_t t = at; often && t < at + 400 * MS; t += 37 * US)
        model_advance(&w->card, t);
    model_advance(&w->card, at + 400 * MS);
    for (unsigned i = 0; i < 3; i++)
        EXPECT(!ctxs[i]->nops);
    return w;
}

static struct model_params random_params(uint64_t seed)
{
    return (struct model_params){.slice_ns = 300 * US,
                                 .switch_ns = 7 * US,
                                 .launch_ns = seed % 3 * 2 * US,
                                 .preempt = (enum model_preempt)(seed % 4),
                                 .block_ns = seed % 5 * 20 * US,
                                 .preempt_ns = seed % 7 * 15 * US};
}

static void test_replay(void)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct world *once = random_run(seed, random_params(seed), false, NULL);
        struct world *often = random_run(seed, random_params(seed), true, NULL);
        EXPECT(once->npieces == often->npieces && once->ndone == often->ndone);
        EXPECT(memcmp(once->pieces, often->pieces, once->npieces * sizeof once->pieces[0]) == 0);
        EXPECT(memcmp(once->done, often->done, once->ndone * sizeof once->done[0]) == 0);
        EXPECT(once->card.switches == often->card.switches &&
               once->card.switch_ns == often->card.switch_ns);
        destroy(once);
        destroy(often);
    }
}

/* Whatever is ordered: each command is done once, with all of its work, in the order of its stream.
 */
static void test_no_work_is_lost(void)
{
    for (uint64_t seed = 200; seed < 230; seed++) {
        struct world *w = random_run(seed, random_params(seed), false, NULL);
        uint64_t executed = 0, busy = 0;
        unsigned last = 0;
        for (unsigned i = 0; i < w->npieces; i++) {
            executed += w->pieces[i].t1 - w->pieces[i].t0;
            last += (w->pieces[i].flags & SIM_TRACE_LAST) != 0;
        }
        for (unsigned e = 0; e < MODEL_ENGINES; e++)
            busy += w->card.busy_ns[e];
        unsigned timed = 0;
        for (unsigned i = 0; i < w->ndone; i++)
            timed += model_timed(w->done[i].op);
        EXPECT(executed == busy && last == timed &&
               w->ndone == w->seqs[1] + w->seqs[2] + w->seqs[3]);
        destroy(w);
    }
}

/* Held commands are no reason to wake up, and no wake-up is late. */
static void test_prediction(void)
{
    for (uint64_t seed = 300; seed < 330; seed++) {
        unsigned early = 0;
        destroy(random_run(seed, random_params(seed), false, &early));
        EXPECT(!early);
    }
    struct world *w = make_with(base());
    struct model_ctx *a = model_ctx_create(&w->card, 1, NULL);
    put(w, a, SIM_OP_KERNEL, 17, 0, MS);
    put(w, a, SIM_OP_EVENT, 17, 0, 0);
    put(w, a, SIM_OP_DTOH, 18, 0, 5 * MS);
    put(w, a, SIM_OP_EVENT, 18, 0, 0);
    model_hold(a, ENG_COMPUTE, true, false);
    model_advance(&w->card, 100);
    EXPECT(model_next_wake(&w->card, NULL) == 5 * MS);
    model_advance(&w->card, 10 * MS);
    EXPECT(model_next_wake(&w->card, NULL) == MODEL_NEVER && a->nops == 2);
    destroy(w);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"hold_stops_and_resumes", test_hold_stops_and_resumes},
                 {"other_context_takes_over", test_other_context_takes_over},
                 {"nothing_begins_while_held", test_nothing_begins_while_held},
                 {"let_go_at_once", test_let_go_at_once},
                 {"copies_are_their_own", test_copies_are_their_own},
                 {"blocks", test_blocks},
                 {"grain_of_one_kernel", test_grain_of_one_kernel},
                 {"lenient", test_lenient},
                 {"expire", test_expire},
                 {"weights", test_weights},
                 {"shorter_slice_now", test_shorter_slice_now},
                 {"death_while_held", test_death_while_held},
                 {"stall_while_leaving", test_stall_while_leaving},
                 {"replay", test_replay},
                 {"no_work_is_lost", test_no_work_is_lost},
                 {"prediction", test_prediction}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cases[i].run();
        printf("ok %s\n", cases[i].name);
    }
    return 0;
}
