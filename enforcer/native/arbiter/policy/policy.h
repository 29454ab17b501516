/* SPDX-License-Identifier: Apache-2.0
 *
 * The decision: from the inputs of all tenants of one card and the time it derives which gates are
 * open, and when to sample again. It makes no system call, and has no global and no clock: the same
 * code runs in the arbiter, in `qgpu simulate` and in the tests. All times are nanoseconds of one
 * monotonic clock. docs/specs/scheduling.md explains the rules in prose.
 * `make layouts` mirrors this file in Python.
 */
#ifndef QGPU_POLICY_H
#define QGPU_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* Each constant names its unit and its reason. "Chosen on the simulator" means that the value was
 * tuned on simulated cards, not measured on a real one. */

/* tenants of one card; sizes fixed arrays */
#define QP_MAX_TENANTS 256u
/* a wake-up time: no wake-up is needed */
#define QP_NEVER UINT64_MAX
/* ns in a millisecond */
#define QP_MS 1000000ull
/* ns between samples of a shared card; bounds how late the end of work is noticed */
#define QP_TICK_NS (1 * QP_MS)
/* ns between samples of a card with one tenant: no other tenant waits for it */
#define QP_SOLO_TICK_NS (5 * QP_MS)
/* fixed-share: least ns between samples of work that just began; short work is charged exactly */
#define QP_FINE_NS 100000ull
/* fixed-share: later samples are 1/8 of the work's age apart; bounds the relative error */
#define QP_FINE_PARTS 8u
/* fixed-share: most ns charged for an interval in which work began or ended. A longer interval
 * means that the arbiter sampled late, and the tenant does not pay for that */
#define QP_UNSAMPLED_NS (100 * QP_MS)
/* ns idle before polling stops; the next launch rings the doorbell instead */
#define QP_NOTIFY_NS (2 * QP_MS)
/* ns for which a tenant without work still competes for quanta; bridges gaps between launches */
#define QP_COMPETES_NS (1 * QP_MS)
/* ns without work before the current tenant loses the rest of its quantum; longer than the usual
 * gap between two kernels. Chosen on the simulator */
#define QP_PAUSE_NS 400000ull
/* ns, the same if the last pause was only a late thread (QP_LATE_THREAD). Longer, so that the same
 * mistake is not made twice in a row. Chosen on the simulator */
#define QP_LATE_PAUSE_NS 500000ull
/* ns from the first sample of a pause to the one that confirms it; with QP_LATE_PAUSE_NS both fit
 * into the 1 ms of one tick */
#define QP_PAUSE_POLL_NS 300000ull
/* ns instead of QP_PAUSE_NS for a tenant whose last pauses were all real: the card idles less.
 * Chosen on the simulator */
#define QP_SHORT_PAUSE_NS 100000ull
/* real pauses in a row from which QP_SHORT_PAUSE_NS holds. Chosen on the simulator */
#define QP_REAL_PAUSES 3u
/* value of qp_tenant.real_pauses: the last pause was only a late thread */
#define QP_LATE_THREAD 4u
/* ns from the begin of a pause: a launch before that shows that the thread was only late. Chosen on
 * the simulator */
#define QP_LATE_THREAD_NS (12 * QP_MS / 10)
/* ns after a drain timeout in which quanta pass on only after QP_COMPETES_NS. Each hand-over may
 * cost another timeout then, so there are fewer. Chosen on the simulator */
#define QP_TIMEOUT_MEMORY_NS (1000 * QP_MS)
/* ns after a pause in which the tenant's next pauses are sampled as closely. Chosen on the
 * simulator */
#define QP_PAUSE_MEMORY_NS (1000 * QP_MS)
/* ns in which an unused quantum must begin; after that it is charged, so idling does not pay */
#define QP_START_NS (1 * QP_MS)
/* least ns between polls of a draining tenant for its last fence; limits CPU time */
#define QP_DRAIN_POLL_NS 50000ull
/* longest drain timeout in ns: then the next quantum begins although work is still on the card;
 * bounds how long a hung tenant delays the others */
#define QP_DRAIN_TIMEOUT_NS (100 * QP_MS)
/* shortest drain timeout in ns, before halving, of a tenant whose recent drains were short. Chosen
 * on the simulator */
#define QP_DRAIN_TIMEOUT_MIN_NS (25 * QP_MS)
/* drain timeout as a multiple of the longest recent drain; allows for variation. Chosen on the
 * simulator */
#define QP_DRAIN_MULTIPLE 8u
/* drains after one that ended before its first poll, during which further polls are made before
 * that time. Chosen on the simulator */
#define QP_UNEVEN_DRAINS 16u
/* most such polls in one drain; limits CPU time */
#define QP_UNEVEN_POLLS 8u
/* the same under fixed-share, where the tenant is charged until the end is noticed */
#define QP_FIXED_POLLS 16u
/* least ns between polls of a drain whose end the tenant's waiting thread will ring for. The poll
 * only covers the case that this thread is late */
#define QP_REPORTED_POLL_NS 500000ull
/* most halvings of the drain timeout, one for each timeout in a row: 100 ms fall to 1.6 ms. Chosen
 * on the simulator */
#define QP_TIMEOUT_HALVINGS 6u
/* ns without work for which a tenant keeps its credit; a gap between launches costs nothing */
#define QP_KEEP_CREDIT_NS (5 * QP_MS)
/* most ns of credit or debt; bounds how long one tenant can catch up */
#define QP_DEFICIT_MAX_NS (1000 * (int64_t)QP_MS)
/* fixed-share: most ns of budget that may be saved; bounds a burst above the share */
#define QP_BUDGET_MAX_NS (50 * (int64_t)QP_MS)
/* fixed-share: ns of a 1 s window kept free for what is in flight when a gate closes */
#define QP_MARGIN_NS (2 * QP_MS)
/* fixed-share: ns past the end of the budget after which a launch waits for a sample. Normally the
 * arbiter has closed the gate by then. Chosen on the simulator */
#define QP_OVERSTAY_NS (QP_MS / 4)
/* fixed-share: ns of a 1 s window kept free for late reports, for a tenant with long kernels. It
 * has few quanta, so they need less room than QP_MARGIN_NS */
#define QP_LATE_REPORT_NS (QP_MS / 2)
/* slices of one quantum if all waiting tenants are backlogged: fewer hand-overs. Chosen on the
 * simulator */
#define QP_LONG_QUANTUM 10u
/* the same with more than two tenants; more slices would let one tenant fill its 1 s window */
#define QP_LONG_QUANTUM_MANY 7u
/* fixed-share: slices of budget saved before a gate opens again: fewer hand-overs. Chosen on the
 * simulator */
#define QP_REOPEN_SLICES 3u
/* us in flight of a tenant alone on its card: the most that a newcomer waits */
#define QP_LONE_WINDOW_US 20000u
/* us in flight where tenants share without online: the most that each adds to a drain */
#define QP_SHARED_WINDOW_US 4000u
/* us in flight under fixed-share: it comes on top of the share, so it is small */
#define QP_FIXED_WINDOW_US 2000u
/* us, the most under fixed-share, whatever the card's settings say */
#define QP_FIXED_WINDOW_MAX_US 5000u
/* most ns that online's second launch waits for offline's work to leave the card;
 * bounds the delay of that launch */
#define QP_HOLD_NS (1 * QP_MS)
/* ns: a longer drain shows kernels of which QP_SHARED_WINDOW_US cannot hold two */
#define QP_DEEP_DRAIN_NS (3 * QP_MS)
/* us in flight in the middle of a long quantum: room for two such kernels. Chosen on the
 * simulator */
#define QP_DEEP_WINDOW_US 24000u
/* ns of the quantum that must be left for that: queued work then begins before its end. Chosen on
 * the simulator */
#define QP_DEEP_QUANTUM_NS (14 * QP_MS)
/* ns by which the next gate opens before the predicted end: covers the wake-up of its tenant */
#define QP_LEAD_NS 150000ull
/* ns after the predicted end for which the end of the draining work is still awaited. Chosen on the
 * simulator */
#define QP_OVERLAP_NS 1500000ull
/* ns between polls in that time; limits CPU time */
#define QP_OVERLAP_POLL_NS 200000ull
/* penalty of a wrong prediction; a right one takes off half as much, a drain without one takes 1 */
#define QP_MISS 64u
/* most penalty kept. From half of it on predictions are not used, until right ones lower it */
#define QP_MISSES_MAX (4 * QP_MISS)
/* bins of a sliding window: 250 make its length, the rest is spare */
#define QP_BINS 256u

struct qp_tenant {
    /* input: what it is */
    uint32_t live;      /* 1: has a registered process; the decision ignores other entries */
    uint32_t job_class; /* enum qg_class */
    uint32_t share;     /* 1..100 */
    uint32_t procs;     /* contexts on the card: at least one for each registered process */
    /* input: its state now */
    uint32_t runnable;  /* 1: has unfinished work, or threads at its gate */
    uint32_t undrained; /* 1: its work may still be on the card */
    uint32_t granted;   /* 1: the job runs here; a process may not have registered yet */
    /* 1: isolation none for its class or job: its gate stays open; as online it still preempts */
    uint32_t ungoverned;
    /* 1: its job is preempted on another card of the node, so it must not run here either */
    uint32_t suspended;
    /* 1: online, and its work makes no progress. It gets no quantum, but offline stays closed */
    uint32_t hung;
    /* 1: one of its threads waits at its gate. That thread launches when the gate opens, reports
     * when it did, and rings when the work launched before has ended */
    uint32_t at_gate;
    /* 1: runnable only because threads wait at its gate, and its last quanta went unused: the
     * threads are stopped, or the report is wrong */
    uint32_t doubted;
    /* predicted end of its work on the card, as its shims report it; 0 = no prediction */
    uint64_t predicted_end_ns;
    /* first use of its current quantum, by the arbiter's clock; 0 = not known */
    uint64_t used_from_ns;
    /* end of its last work as its shims reported it, if no sample found work since; 0 = not known,
     * or it has work */
    uint64_t reported_end_ns;
    /* last sample that showed activity, if no unfinished work is known; else 0 */
    uint64_t inactive_since_ns;
    /* state and output */
    uint32_t gate;          /* gate word decided */
    uint32_t ever_runnable; /* 1: last_runnable_ns is of a sample that found it runnable */
    uint32_t was_undrained; /* undrained at the last decision */
    uint32_t was_busy;      /* runnable or undrained at the last decision */
    uint32_t was_competing; /* it competed for the card at the last decision */
    /* runnable and not suspended at the last decision. Unlike was_competing also without budget: it
     * is entitled to its part all the same */
    uint32_t was_runnable;
    uint32_t budgeted; /* 1: budget_ns is kept (its class is fixed-share) */
    /* 1: it used its last quantum up, and was runnable ever since */
    uint32_t backlogged;
    /* 1: it had work on the card when online preempted, and has not drained since */
    uint32_t drain_unknown;
    uint32_t slow_drain; /* 1: its last such drain took longer than QP_HOLD_NS */
    /* 1: its quantum lasts so much longer that QP_DEEP_WINDOW_US may be in flight */
    uint32_t deep_window;
    /* pauses in a row, at most QP_REAL_PAUSES, that were long enough for a hand-over; or
     * QP_LATE_THREAD */
    uint32_t real_pauses;
    uint32_t passed_on; /* 1: it passed its quantum on and was not runnable since */
    /* 1: its budget is used up, so its gate is closed until enough is saved again */
    uint32_t out_of_budget;
    /* drains, counted down, since one ended long before its first poll: their lengths vary much */
    uint32_t uneven_drains;
    uint32_t misses;           /* penalty for wrong predictions, see QP_MISS */
    int64_t deficit_ns;        /* > 0: got less than its part */
    int64_t budget_ns;         /* fixed-share: what it may use now */
    uint64_t last_runnable_ns; /* last sample that found it runnable */
    uint64_t idle_since_ns;    /* first sample after that; 0 = it is runnable */
    /* online: latest possible end of its last work; QP_NEVER = it works, 0 = it never worked */
    uint64_t online_idle_since_ns;
    /* first sample that found it busy, if all since then did; else 0 */
    uint64_t busy_since_ns;
    uint64_t paused_ns;    /* begin of the pause for which it last passed a quantum on; 0 = never */
    uint64_t service_ns;   /* total charged (while its class is contended) */
    uint64_t used_ns;      /* charged by the last decision */
    uint64_t unsampled_ns; /* fixed-share: it may have used this much more between samples */
    /* mean time from the closing of its gate to its last completion */
    uint64_t mean_drain_ns;
    uint64_t short_drain_ns; /* few of its drains are shorter */
    /* longest recent drain, forgotten by 1/8 per drain: what a gate's opening may add to its use */
    uint64_t max_drain_ns;
    uint64_t max_drain_long_ns; /* the same, forgotten by 1/32 per drain */
    /* drain timeouts in a row; each halves the next timeout, down to QP_TIMEOUT_HALVINGS times */
    uint64_t drain_timeouts;
    /* when the gate closed whose drain timed out, until its work ended or its next quantum begins;
     * else 0 */
    uint64_t timed_out_close_ns;
    /* output: its budget ends at this time at the latest: an open gate counts as closed after it;
     * 0 = no such time */
    uint64_t until_ns;
};

struct qp_class {
    /* input */
    uint32_t policy; /* enum qg_policy */
    /* 1: time slices of the hardware keep the shares: no quanta (not under fixed-share) */
    uint32_t sliced;
    /* state */
    int32_t current;         /* index of the current tenant, or -1 */
    int32_t draining;        /* former current tenant whose work is awaited, or -1 */
    uint32_t contended;      /* 1: one tenant at a time since the last decision */
    uint32_t resumed;        /* 0: all its gates were closed; a fresh slice is due */
    uint32_t seen_draining;  /* 1: a sample found work of the draining tenant after it was closed */
    uint32_t recent_timeout; /* 1: a drain timed out within QP_TIMEOUT_MEMORY_NS */
    /* 1: the quantum before this one was the same tenant's: the card did not change contexts */
    uint32_t same_tenant;
    uint32_t closed_idle;  /* 1: the draining tenant showed no work when its gate was closed */
    uint32_t opened_early; /* 1: the current tenant's gate opened before the drain was over */
    /* members that took part in the last interval, and the sum of their weights */
    uint32_t competitors;
    int64_t weight_sum;
    uint64_t slice_end_ns;     /* the quantum may end */
    uint64_t quantum_end_ns;   /* the same if all waiting tenants are backlogged */
    uint64_t opened_ns;        /* when the current tenant's gate was opened */
    uint64_t use_from_ns;      /* begin of its use of the quantum, 0 = not known yet */
    uint64_t charged_until_ns; /* time before this has been charged */
    /* predicted end of the draining work, if the current tenant's gate was opened before it; else
     * 0 */
    uint64_t predicted_end_ns;
    uint64_t drain_from_ns;
    uint64_t drain_until_ns;  /* drain timeout */
    uint64_t last_timeout_ns; /* when a drain last timed out; 0 = never */
};

/* Sum of use over the last second, or over the last ten. */
struct qp_window {
    uint64_t bin; /* number of the newest bin */
    uint64_t sum; /* of the newest 251 bins */
    uint32_t used[QP_BINS];
};

struct qp_history {
    struct qp_window one, ten;
};

struct qp_card {
    /* input: settings */
    uint64_t idle_release_ns;
    uint64_t slice_ns;
    uint64_t recovery_until_ns; /* offline stays closed until then; 0 = no recovery */
    uint32_t ungoverned;        /* 1: all gates open */
    uint32_t ntenants;          /* entries of tenant[] in use, <= QP_MAX_TENANTS */
    /* state */
    uint64_t last_ns;         /* time of the last decision; 0 = none yet */
    uint64_t preempt_from_ns; /* when online preempted; 0 = offline may run */
    /* last sample that found online at work, or latest possible end of its work; 0 = never */
    uint64_t online_busy_ns;
    struct qp_class cls[2]; /* [0] online, [1] offline */
    /* output */
    uint64_t wake_ns; /* latest time of the next decision, or QP_NEVER */
    /* the same if working tenants go on working: earlier wake-ups only sample them */
    uint64_t due_ns;
    /* end of a long quantum, or begin of its charge: the first tick after this time is early
     * enough; or QP_NEVER */
    uint64_t soft_ns;
    uint32_t preempting;
    uint32_t online_working; /* state: online tenants that had work at the last decision */
    uint32_t awaits_online;  /* state: an online tenant lives here, or may come at any time */
    int32_t last_user;       /* state: the tenant that last began to use a quantum, or -1 */
    /* output: a gate was closed while its tenant showed no work, and a launch may have passed it
     * since the inputs were read. Store the gate, read the inputs again, set this to 0, and decide
     * again */
    uint32_t resample;
    uint32_t padding; /* no hole before tenant */
    struct qp_tenant tenant[QP_MAX_TENANTS];
    struct qp_history history[QP_MAX_TENANTS]; /* state: of members of a fixed-share class */
};

/* Sets neutral state; the caller then fills in the settings. */
void qp_init(struct qp_card *card);

/* Clears one entry, before another tenant gets it or after its tenant left. */
void qp_forget(struct qp_card *card, uint32_t index);

/* Decides: reads the inputs, updates the state, writes each gate and wake_ns. now_ns must not go
 * backwards. */
void qp_decide(struct qp_card *card, uint64_t now_ns);

#endif
