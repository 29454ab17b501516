/* SPDX-License-Identifier: Apache-2.0
 *
 * The decision: from the inputs of all tenants of one card and the time it derives which gates are
 * open, and when to sample again. It makes no system call, and has no global and no clock: the same
 * code runs in the arbiter, in `qgpu simulate` and in the tests. All times are nanoseconds of one
 * monotonic clock. docs/specs/scheduling.md states the rules on one page.
 * `make layouts` mirrors this file in Python.
 */
#ifndef QGPU_POLICY_H
#define QGPU_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* count: Tenants of one card. It sizes fixed arrays. Evidence: bound (docs/specs/limits.md). */
#define QP_MAX_TENANTS 256u
/* mark: A time that never comes. Evidence: bound. */
#define QP_NEVER UINT64_MAX
/* mark: ns in a millisecond. Evidence: bound. */
#define QP_MS 1000000ull
/* ns: A shared card is sampled this often. The end of work is noticed no later. Evidence:
 * simulator (docs/measurements/2026-11-28-constants-simulated.md). */
#define QP_TICK_NS (1 * QP_MS)
/* ns: The same of a card with one tenant: no other one waits for it. Evidence: simulator
 * (docs/measurements/2026-11-28-constants-simulated.md). */
#define QP_SOLO_TICK_NS (5 * QP_MS)
/* ns: Without work for less, a tenant still competes, keeps its credit, and is polled: programs
 * pause between kernels. Evidence: decision (docs/adr/0032-the-decision-is-small.md). */
#define QP_GAP_NS (1 * QP_MS)
/* ns: A current tenant seen without work for this long gives its quantum away. Evidence: decision
 * (docs/adr/0032-the-decision-is-small.md). */
#define QP_PAUSE_NS 200000ull
/* ns: An unused quantum is charged from then on, so that idling does not pay. Evidence: attack
 * (test_policy_quanta.py). */
#define QP_START_NS (1 * QP_MS)
/* ns: A draining tenant is polled no more often, to save CPU time. Evidence: simulator
 * (docs/measurements/2026-11-28-constants-simulated.md). */
#define QP_DRAIN_POLL_NS 50000ull
/* 1/n: A drain is polled again after this part of its age. Its end is found with an error of that
 * part. Evidence: decision (docs/adr/0032-the-decision-is-small.md). */
#define QP_DRAIN_PARTS 8u
/* ns: After this time the next quantum begins although work is on the card. It bounds what a hung
 * tenant costs. Evidence: attack (test_arbiter_robust.py). */
#define QP_DRAIN_TIMEOUT_NS (100 * QP_MS)
/* times: A quantum lasts this many slices if all who wait use theirs up: fewer context switches.
 * Evidence: decision (docs/adr/0032-the-decision-is-small.md). */
#define QP_LONG_QUANTUM 10u
/* ns: Most credit or debt. It bounds how long one tenant can catch up. Evidence: attack
 * (test_policy_false_reports.py). */
#define QP_DEFICIT_MAX_NS (1000 * (int64_t)QP_MS)
/* ns: fixed-share: most tokens that are saved while others use the card. Evidence: simulator
 * (docs/measurements/2026-11-28-constants-simulated.md). */
#define QP_BUDGET_MAX_NS (50 * (int64_t)QP_MS)
/* us: fixed-share: most in flight. It comes on top when a gate closes, so the limit of a second is
 * so much less. Evidence: decision (docs/adr/0032-the-decision-is-small.md). */
#define QP_FIXED_WINDOW_US 2000u
/* ns: fixed-share: from the end of the tokens until a launch waits for a sample. The arbiter has
 * closed the gate by then, unless it stands still. Evidence: none. */
#define QP_OVERSTAY_NS (QP_MS / 4)
/* us: In flight of a tenant alone on its card: the most that a newcomer waits. Evidence:
 * simulator (docs/measurements/2026-11-28-constants-simulated.md). */
#define QP_LONE_WINDOW_US 20000u
/* us: In flight where no online tenant waits: the most that each one adds to a drain. Evidence:
 * simulator (docs/measurements/2026-11-28-constants-simulated.md). */
#define QP_SHARED_WINDOW_US 4000u
/* ns: Online's second launch waits no longer for offline's work to leave the card. Evidence:
 * promise (docs/specs/scheduling.md). */
#define QP_HOLD_NS (1 * QP_MS)
/* times: Offline's coming before idle_release is worth this many times what online waits for it to
 * leave. Evidence: simulator (docs/measurements/2026-11-29-gaps-simulated.md). */
#define QP_ENTRY_COST 4u
/* count: Starts of online that an offline tenant pays with for each online_delay of a late leave,
 * per offline tenant: fewer than one start in a hundred is late. Evidence: promise
 * (docs/specs/scheduling.md). */
#define QP_LATE_COST 128u
/* ns: What online loses besides, if it finds offline on the card: its ring, the change of context,
 * the wake-up of the thread that was held. Evidence: simulator
 * (docs/measurements/2026-11-29-gaps-simulated.md). */
#define QP_TAKE_NS 150000ll
/* count: Gaps of online that are remembered; half of them are forgotten then. Evidence: simulator
 * (docs/measurements/2026-11-29-gaps-simulated.md). */
#define QP_GAPS_KEPT 128u
/* count: Buckets of gaps, 64 us to 2 s. Evidence: bound. */
#define QP_GAPS 16u
/* ns: Quanta and open gates are compared over this time each. Evidence: simulator
 * (docs/measurements/2026-11-29-gain-simulated.md). */
#define QP_WAY_NS (128 * QP_MS)
/* ns: The first comparison of new members holds this long, and each one twice as long as the last.
 * Evidence: simulator (docs/measurements/2026-11-29-gain-simulated.md). */
#define QP_WAY_REST_LEAST_NS (2000 * QP_MS)
/* ns: No comparison holds for longer, as programs change. Evidence: simulator
 * (docs/measurements/2026-11-29-gain-simulated.md). */
#define QP_WAY_REST_NS (16000 * QP_MS)
/* count: Bins of the last second, and some to spare. Evidence: bound. */
#define QP_BINS 256u

struct qp_tenant {
    /* input: what it is */
    uint32_t live;       /* 1: has a registered process; the decision ignores other entries */
    uint32_t job_class;  /* enum qg_class */
    uint32_t share;      /* 1..100 */
    uint32_t ungoverned; /* 1: isolation none: its gate stays open; as online it still preempts */
    uint32_t suspended;  /* 1: its job is preempted on another card, so it must not run here */
    uint32_t held;       /* 1: its memory leaves the card: as if it were not there, gate closed */
    /* input: its state now */
    uint32_t runnable;  /* 1: has unfinished work, or threads at its gate */
    uint32_t undrained; /* 1: its work may still be on the card */
    uint32_t at_gate;   /* 1: a thread waits at its gate, and rings when its work has ended */
    /* 1: online, and offline has to wait for it. Also while its work makes no progress and earns no
     * quantum; not for threads at an open gate that never launch */
    uint32_t preempts;
    /* first use of its current quantum, by the arbiter's clock; 0 = not known */
    uint64_t used_from_ns;
    /* end of its last work as its shims reported it, if no sample found work since; else 0 */
    uint64_t reported_end_ns;
    uint64_t launches; /* all launches that its shims reported */
    /* output */
    uint32_t gate;     /* gate word */
    uint64_t until_ns; /* an open gate counts as closed after it; 0 = no such time */
    /* state */
    uint32_t was_runnable;  /* runnable, and neither suspended nor held, at the last decision */
    uint32_t was_undrained; /* undrained at the last decision */
    uint32_t backlogged;    /* 1: it used its last quantum up, and was runnable ever since */
    uint32_t returned;      /* 1: it has work again after a pause, and had no quantum since */
    uint32_t out_of_budget; /* 1: fixed-share: its gate is closed until enough tokens are saved */
    int64_t deficit_ns;     /* > 0: got less than its part */
    int64_t budget_ns;      /* fixed-share: tokens, what it may use now */
    uint64_t idle_since_ns; /* first sample that found it not runnable; 0 = it is runnable */
    uint64_t pause_ns;      /* mean of its last pauses, each counted as QP_GAP_NS at most */
    /* online: latest possible end of its last work; QP_NEVER = it works, 0 = it never worked */
    uint64_t online_idle_since_ns;
    uint64_t service_ns; /* total charged (while its class is contended) */
    /* offline, idle_release: auto */
    uint32_t late;       /* 1: it waits for idle_release, as others need not */
    uint32_t owed;       /* starts of online, for leaving late */
    uint64_t leaving_ns; /* since when online wants the card that it is on; 0 = does not */
    /* policy_way.c */
    uint32_t compared; /* 1: it was a member at the last decision */
    /* when the counts began */
    uint64_t launches_before, service_before_ns, had_work_before_ns;
    uint64_t had_work_ns;                        /* time in which it was runnable */
    uint64_t quanta_launches, quanta_service_ns; /* when quanta were measured last */
    uint64_t best_launches;                      /* in the best_ns of its class */
    uint64_t best_work_ns;                       /* of that, time with work */
    /* online, idle_release: auto: the gaps that began with the end of its work */
    uint32_t gaps[QP_GAPS];   /* how many, by length */
    uint32_t gap_us[QP_GAPS]; /* their sum */
};

/* How a class shares the card while several members compete (policy_way.c). */
enum qp_way {
    QP_WAY_QUANTA = 0, /* one gate open at a time, by weight */
    QP_WAY_LEND,       /* the same, and a pause ends the quantum at once */
    QP_WAY_OPEN,       /* all gates open */
};

struct qp_class {
    /* input */
    uint32_t policy; /* enum qg_policy */
    uint32_t sliced; /* 1: time slices of the hardware keep the shares (not under fixed-share) */
    /* state */
    int32_t current;           /* index of the tenant whose quantum it is, or -1 */
    int32_t draining;          /* former one whose work is awaited, or -1 */
    uint32_t contended;        /* 1: one tenant at a time since the last decision */
    uint32_t resumed;          /* 0: all its gates were closed; a fresh quantum is due */
    uint32_t closed_idle;      /* 1: the draining tenant showed no work when its gate was closed */
    uint64_t slice_end_ns;     /* the quantum may end */
    uint64_t quantum_end_ns;   /* the same if all waiting tenants are backlogged */
    uint64_t opened_ns;        /* when the current tenant's gate was opened */
    uint64_t use_from_ns;      /* begin of its use of the quantum, 0 = not known yet */
    uint64_t charged_until_ns; /* time before this has been charged */
    int64_t began_deficit_ns;  /* of the current tenant, when its quantum began, and its weight */
    int64_t began_weight;
    uint64_t drain_from_ns; /* when the draining tenant's gate was closed */
    /* policy_way.c */
    uint32_t way;            /* enum qp_way: taken now, to try it or as the best one */
    uint32_t trial;          /* 1: it is only tried, and its launches are counted */
    uint32_t best;           /* enum qp_way: of those tried so far */
    uint32_t best_by_weight; /* the same without open gates */
    uint32_t members;        /* at the last decision */
    uint32_t last_way;       /* enum qp_way: the last one that may be tried */
    uint32_t barred_way;     /* enum qp_way: a member suffered in it */
    uint32_t reserved;
    uint64_t counted_ns;       /* for how long launches are counted, without time for online */
    uint64_t settled_until_ns; /* when the next comparison begins */
    uint64_t look_ns;          /* when the counts are looked at next */
    uint64_t rest_ns;          /* for how long the next result holds */
    uint64_t barred_until_ns;  /* barred_way is not tried before */
    uint64_t bar_ns;           /* for how long it was not, last */
    uint64_t unused_ns;        /* of the quanta of this trial, while others waited */
    uint64_t best_ns;          /* time in which best_launches of the members were counted */
};

/* fixed-share: use in the last second. */
struct qp_history {
    uint64_t bin; /* number of the newest bin */
    uint64_t sum; /* of all bins that count */
    uint32_t used[QP_BINS];
};

struct qp_card {
    /* input: settings */
    uint64_t idle_release_ns;
    /* idle_release: auto. An offline tenant that leaves the card within it may come as soon as
     * online's work is done (policy_release.c); 0 = all wait for idle_release_ns */
    uint64_t online_delay_ns;
    /* %, idle_release: auto. Of online's own time on the card, the part that offline's leaves may
     * add; 0 = no limit */
    uint32_t online_share;
    uint64_t slice_ns;
    uint64_t recovery_until_ns; /* offline stays closed until then; 0 = no recovery */
    uint32_t ungoverned;        /* 1: all gates open */
    uint32_t ntenants;          /* entries of tenant[] in use, <= QP_MAX_TENANTS */
    /* state */
    uint64_t last_ns;         /* time of the last decision; 0 = none yet */
    uint64_t preempt_from_ns; /* when online preempted; 0 = offline may run */
    uint64_t online_busy_ns;  /* latest possible end of online's work so far; 0 = never */
    uint32_t online_working;  /* online tenants that had work at the last decision */
    int32_t fell_idle;        /* auto: the online tenant whose work ended last, or -1 */
    uint64_t hold_ns;         /* auto: offline waits this long at least */
    uint64_t release_ns;      /* the first offline tenant waits this long */
    uint64_t leave_ns;        /* auto: mean time that leaves in time took; 0 = not known */
    int64_t spare_ns;       /* auto, online_share: what leaves may take now; < 0 = they took more */
    uint32_t beside;        /* auto: offline's work was still on the card beside online's */
    uint32_t crowd;         /* auto: most online tenants on the card beside a leaving one */
    struct qp_class cls[2]; /* [0] online, [1] offline */
    /* output */
    uint32_t preempting; /* 1: offline is closed for online */
    /* 1: a gate was closed while its tenant showed no work, and a launch may have passed it since
     * the inputs were read. Store the gate, read the inputs again, set this to 0, decide again */
    uint32_t resample;
    uint64_t wake_ns; /* latest time of the next decision, or QP_NEVER */
    uint64_t due_ns;  /* the same if working tenants go on working: earlier wake-ups only sample */
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
