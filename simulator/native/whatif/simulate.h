/* SPDX-License-Identifier: Apache-2.0
 *
 * qgpu-simulate: the arbiter's own decision (policy.h) driven by tenants that are a few numbers
 * each. One event loop per card; kernels are not stepped one by one, so that an hour of several
 * cards takes seconds. docs/specs/simulate.md describes the model.
 */
#ifndef QGPU_SIMULATE_H
#define QGPU_SIMULATE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "policy/policy.h"
#include "qgpu_abi.h"

#define SM_MAX_KERNELS   16u
#define SM_MAX_STOPS     16u
#define SM_MAX_PROGRAMS  256u
#define SM_MAX_STRETCHES 4096u /* of a program */
#define SM_BINS          240u  /* columns of the busy profile, at most */
#define SM_STEP_NS       QP_MS /* resolution of the sliding windows of 1 s that are reported */
#define SM_STEPS         1000u /* of each window */
#define SM_STEPS_TEN     10u   /* of 1 s are one of 10 s */
#define SM_BUCKETS       2048u

enum load { LOAD_ENDLESS = 0, LOAD_PERIODIC = 1, LOAD_POISSON = 2 };
enum lie { LIE_NONE = 0, LIE_BUSY = 1, LIE_IDLE = 2 };

/* Where a tenant's only thread is. */
enum state {
    ST_AWAY = 0, /* not started, or ended */
    ST_IDLE,     /* nothing to do */
    ST_STANDING, /* at the closed gate */
    ST_WAKING,   /* the gate was opened, the thread is not there yet */
    ST_HELD,     /* at QG_GATE_HOLD: offline has not left the card yet */
    ST_RUNNING,  /* launches without end; the card is its limit */
    ST_DRAINING, /* the gate was closed, what is in flight goes on */
    ST_COPYING,  /* its copy goes on, beside compute; its program waits for that */
    ST_THINKING, /* on the CPU between two kernels */
};

/* What the outside sees of it, for the timeline and the sums of waiting. */
enum mode { MODE_AWAY = 0, MODE_IDLE, MODE_RUN, MODE_SHARE, MODE_PREEMPTED, MODE_WAKE, MODES };

struct histogram {
    uint64_t count[SM_BUCKETS], n;
};

struct queue {
    uint64_t *at; /* arrival times, a ring */
    uint32_t cap, head, n;
};

struct sliding {
    uint32_t step[SM_STEPS]; /* busy ns of each step */
    uint64_t sum, seen, max, min;
};

/* Kernels of a captured program that follow each other without a gap, and what comes then: a copy
 * that it waits for, and time on the CPU. */
struct stretch {
    uint32_t kernels;
    uint64_t length_ns, copy_ns, gap_ns; /* of each kernel; of the others */
};

struct program {
    uint32_t n;
    struct stretch *at;
};

/* What comes behind a run of kernels. */
struct rest {
    uint64_t copy_ns, gap_ns;
    bool drawn; /* the gap is a mean, to draw from */
};

struct actor {
    /* from the trace */
    uint32_t card, job_class, share, ungoverned, nkernels, nstops, per_request;
    enum load load;
    enum lie lie;
    uint64_t start_ns, stop_ns, period_ns, gap_ns;
    uint64_t kernel_ns[SM_MAX_KERNELS];
    const struct program *program; /* in the place of kernels, or NULL */
    uint64_t stops[SM_MAX_STOPS][2];

    /* now */
    enum state state;
    enum mode mode;
    /* SIGSTOP; launched since the last decision; rang at the first launch of its turn */
    bool halted, launched, rang;
    /* its first launch since the gate was opened, which its shim tells; 0 = none */
    uint64_t began_ns;
    uint32_t gate, kernels_left, next_stop;
    uint32_t stretch, stretch_done; /* where its program is */
    struct rest rest;               /* behind this run */
    uint64_t drawn_ns;              /* length of the next kernel; 0 = not drawn yet */
    uint64_t held_ns;               /* of this run, not launched at QG_GATE_HOLD */
    uint64_t let_ns, hold_ns; /* launched at this HOLD, and since when it holds; 0 = it does not */
    /* when its run would have ended on a card of its own, and how much further its program is than
     * a program that waits for each kernel */
    uint64_t alone_ns, ahead_ns;
    uint64_t length_ns;               /* of the kernels of this run */
    uint64_t kernels, kernel_part_ns; /* that ran so far, and a part of one */
    uint64_t run_ns;                  /* left of this run of equal kernels */
    uint64_t flight_ns;               /* in flight behind a closed gate */
    uint64_t timer_ns;                /* wake-up or end of thinking */
    uint64_t rng;        /* of its arrivals and kernels: the same whoever is beside it */
    uint64_t arrival_ns; /* next request */
    uint64_t head_ns;    /* arrival of the request in work; 0 = none */
    uint64_t mode_since_ns, opened_ns, unused_ns, doubt_until_ns, doubt_ns, progress_ns, ended_ns;
    struct queue queue;

    /* results */
    uint64_t busy_ns, mode_ns[MODES], requests, preemptions, turns, step_busy_ns, ten_busy_ns;
    double due_ns; /* what an ideal division would have given while it wanted */
    uint64_t bins[SM_BINS];
    double due_bins[SM_BINS];
    uint64_t paused_bins[SM_BINS]; /* its own pauses, in time that no peer can use */
    struct sliding one, ten;       /* the last second, the last ten */
    struct histogram latency;
    struct queue latencies; /* of each request, in their order; only if world.requests */
};

struct machine {
    /* from the trace */
    uint32_t policy[2];
    uint64_t idle_release_ns, slice_ns, window_ns, switch_ns, timeslice_ns, arbiter_ns, tenant_ns,
        queue_depth, online_delay_ns, online_share;

    /* now */
    uint32_t number, nactors, nrunning;
    struct actor **actors;
    uint16_t running[QP_MAX_TENANTS];
    struct qp_card *policy_card;
    uint64_t now, decide_ns, stall_ns, step_end_ns, rng;
    uint64_t slice_from_ns, slice_end_ns; /* of the current context; QP_NEVER: no other has work */
    uint64_t online_until_ns;             /* fluid: offline has the card from then on */
    uint64_t wanted_ns;                   /* online came while offline was on the card; 0 = no */
    int32_t on_card;                      /* who runs, or ran last */

    /* results */
    uint64_t busy_ns, switches, switch_lost_ns, decisions, events;
    struct histogram freed; /* from online's first launch to offline's last end */
};

struct world {
    uint64_t seed, duration_ns;
    uint32_t bins, ncards, nactors, nprograms;
    struct program *programs;
    struct machine *cards;
    struct actor *actors;
    FILE *timeline;
    bool requests; /* print the latency of each request */
    bool fluid;    /* no arbiter: a card that divides itself, at any instant */
};

/* trace.c: reads the lines that whatif/simulate.py writes; false after a sentence on stderr */
bool trace_read(struct world *w, FILE *in);
void trace_free(struct world *w);

/* engine.c */
void card_run(struct world *w, struct machine *m);
void online_came(struct machine *m);

/* fluid.c: the card that everything else is compared with */
double fluid_speed(const struct machine *m, const struct actor *a);
void fluid_advance(struct world *w, struct machine *m, uint64_t dt);
uint64_t fluid_next(const struct machine *m);
void progress(struct world *w, struct machine *m, struct actor *a, uint64_t ran);
uint64_t work_left(const struct actor *a);

/* actor.c: one tenant's life. The engine calls them at the times that actor_next() names. */
uint64_t actor_next(const struct actor *a);
void actor_due(struct world *w, struct machine *m, struct actor *a);
void actor_ran(struct world *w, struct machine *m, struct actor *a); /* its run or flight ended */
void actor_gate(struct world *w, struct machine *m, struct actor *a, uint32_t gate);
void actor_show(const struct machine *m, struct actor *a, struct qp_tenant *t);
void actor_enter(struct world *w, struct machine *m, struct actor *a, enum state state);
void ring(struct machine *m);

/* work.c: what a tenant launches */
bool has_work(struct actor *a);
uint64_t in_flight(struct actor *a, uint64_t depth);
void request_done(const struct world *w, const struct machine *m, struct actor *a);
uint64_t next_arrival(struct actor *a);
uint64_t spread(uint64_t *rng, uint64_t mean); /* a delay of that mean */
void queue_put(struct queue *q, uint64_t at);

/* result.c */
void latency_add(struct histogram *h, uint64_t ns);
void sliding_step(struct actor *a);
void world_print(const struct world *w, FILE *out);

#endif
