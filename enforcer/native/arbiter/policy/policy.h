/* SPDX-License-Identifier: Apache-2.0
 *
 * The decision: given what every tenant of one card shows and the time, which gates are open, and
 * when to look again. No system call, no global, no clock: the same code runs in the arbiter, in
 * `qgpu simulate` and in the tests. All times are nanoseconds of one monotonic clock.
 * docs/specs/control.md explains the rules in prose. `make layouts` mirrors this file in Python.
 */
#ifndef QGPU_POLICY_H
#define QGPU_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* tenants of one card; sizes fixed arrays */
#define QP_MAX_TENANTS 256u
/* a wake-up time: no wake-up is needed */
#define QP_NEVER UINT64_MAX
/* ns in a millisecond */
#define QP_MS 1000000ull
/* ns between samples of a shared card; bounds how late an end of work is seen */
#define QP_TICK_NS (1 * QP_MS)
/* ns between samples of a card with one tenant: no other tenant waits for it */
#define QP_SOLO_TICK_NS (5 * QP_MS)
/* fixed-share: least ns between samples of work that just began; short work is charged exactly */
#define QP_FINE_NS 100000ull
/* fixed-share: later samples are 1/8 of the work's age apart; bounds the relative error */
#define QP_FINE_PARTS 8u
/* fixed-share: most ns charged for an interval with a begin or end; a late sample is our fault */
#define QP_UNSEEN_NS (100 * QP_MS)
/* ns idle before polling stops; the next launch rings the doorbell instead */
#define QP_NOTIFY_NS (2 * QP_MS)
/* ns without work before a tenant is not runnable any more; bridges gaps between launches */
#define QP_PASS_ON_NS (1 * QP_MS)
/* ns without work before a holder loses the rest of its quantum; kernels have gaps */
#define QP_PAUSE_NS 400000ull
/* ns, the same where the last pause was a late thread (QP_LATE): avoids that mistake again */
#define QP_LATE_PAUSE_NS 500000ull
/* ns between the two samples that confirm a pause; both fit into 1 ms with the pause */
#define QP_CLOSE_LOOK_NS 300000ull
/* ns instead of QP_PAUSE_NS for a tenant that paused each time of late: less of the card idles */
#define QP_REST_NS 100000ull
/* pauses in a row, each a real one, before QP_REST_NS holds */
#define QP_RESTING 3u
/* flag: the last pause was only a late thread; use QP_LATE_PAUSE_NS next time */
#define QP_LATE 4u
/* ns after its last work within which a new launch shows that the thread was only late */
#define QP_SOON_NS (12 * QP_MS / 10)
/* ns after a drain timeout in which quanta pass on after QP_PASS_ON_NS; ends are then unsure */
#define QP_WARY_NS (1000 * QP_MS)
/* ns after such a pause in which the tenant's quanta are sampled as closely */
#define QP_PAUSES_NS (1000 * QP_MS)
/* ns in which an unused quantum must begin; after that it is charged, so idling does not pay */
#define QP_START_NS (1 * QP_MS)
/* least ns between polls of a closed holder for its last fence; limits CPU time */
#define QP_DRAIN_POLL_NS 50000ull
/* drain timeout in ns: the next tenant starts although the former never finished */
#define QP_DRAIN_MAX_NS (100 * QP_MS)
/* least drain timeout in ns where the tenant's recent drains were short */
#define QP_DRAIN_LEAST_NS (25 * QP_MS)
/* drain timeout as a multiple of the longest recent drain; allows for variation */
#define QP_DRAIN_TAILS 8u
/* drains after a drain timeout in which the delay until the first poll is checked closely */
#define QP_UNEVEN 16u
/* most polls spent on that in one drain; limits CPU time */
#define QP_UNEVEN_LOOKS 8u
/* the same under fixed-share, where a late end is charged to the tenant */
#define QP_LIMITED_LOOKS 16u
/* least ns between polls of a drain whose end the tenant will ring for */
#define QP_TOLD_LOOK_NS 500000ull
/* most halvings of the drain timeout, one for each timeout: down to 1.6 ms */
#define QP_OVERDUE_MAX 6u
/* ns a tenant may be away and keep its credit; a gap between launches costs nothing */
#define QP_KEEP_NS (5 * QP_MS)
/* ns of credit or debt at most; bounds how long one tenant can catch up */
#define QP_DEFICIT_MAX_NS (1000 * (int64_t)QP_MS)
/* fixed-share: ns of budget that may be saved; bounds a burst above the share */
#define QP_BUDGET_MAX_NS (50 * (int64_t)QP_MS)
/* fixed-share: ns of a 1 s window kept free for what is in flight when a gate closes */
#define QP_MARGIN_NS (2 * QP_MS)
/* fixed-share: ns past the end of the budget after which a launch waits for a sample */
#define QP_OVERSTAY_NS (QP_MS / 4)
/* fixed-share: ns allowed in 1 s for reports that came late, where that is one long kernel */
#define QP_LATE_NS (QP_MS / 2)
/* quanta of one turn where the tenants that wait never left one unused: fewer hand-overs */
#define QP_LONG_TURN 10u
/* the same with more than two tenants; more would let one tenant fill its 1 s window */
#define QP_CROWD_TURN 7u
/* fixed-share: quanta of budget saved before a gate opens again: fewer hand-overs */
#define QP_PORTION 3u
/* us in flight of a tenant alone on its card: the most that a newcomer waits */
#define QP_LONE_WINDOW_US 20000u
/* us in flight where tenants share without online: the most that each adds to a drain */
#define QP_SHARED_WINDOW_US 4000u
/* us in flight under fixed-share: it comes on top of the share, so it is small */
#define QP_FIXED_WINDOW_US 2000u
/* us, the most under fixed-share, whatever the card's settings say */
#define QP_FIXED_MOST_US 5000u
/* ns that online's second launch waits for the end of offline's work on the card */
#define QP_HOLD_NS (1 * QP_MS)
/* ns: longer drains show kernels of which a window cannot hold two */
#define QP_DEEP_TAIL_NS (3 * QP_MS)
/* us in flight in the middle of a long turn: room for two such kernels */
#define QP_DEEP_WINDOW_US 24000u
/* ns of the turn that must be left for that: queued work then begins before its end */
#define QP_DEEP_ROOM_NS (14 * QP_MS)
/* ns by which the next gate opens before the predicted end: covers the wake-up of its tenant */
#define QP_LEAD_NS 150000ull
/* ns after the predicted end before the former tenant is waited for no more */
#define QP_OVERLAP_NS 1500000ull
/* ns between polls in that time; limits CPU time */
#define QP_LATE_LOOK_NS 200000ull
/* weight of a wrong prediction; a right one takes off half as much, an unused one 1 */
#define QP_MISS 64u
/* most weight kept. Above half of it predictions are not used, until right ones lower it */
#define QP_MISSES_MAX (4 * QP_MISS)
/* bins of a sliding window: 250 make its length, the rest is spare */
#define QP_BINS 256u

struct qp_tenant {
    /* input: who */
    uint32_t live;      /* 1: has a registered process; others are ignored */
    uint32_t job_class; /* enum qg_class */
    uint32_t share;     /* 1..100 */
    uint32_t procs;     /* registered processes, each of their contexts counted as one */
    /* input: what it shows now */
    uint32_t wants;     /* 1: work unfinished, or threads at the gate */
    uint32_t undrained; /* 1: work of it may still be on the card */
    uint32_t granted;   /* 1: the job is here, though perhaps no process of it has registered yet */
    /* 1: isolation none for its class or job: its gate stays open; as online it still preempts */
    uint32_t free;
    /* 1: its job is preempted on another card of the node, so it must not run here either */
    uint32_t suspended;
    /* 1: online, and its work makes no progress: no turn among its peers, offline stays closed
     * all the same */
    uint32_t hung;
    /* 1: a thread of it stands at its gate: it launches when that opens, says when it began, and
     * rings when what it launched before has ended */
    uint32_t stands;
    /* 1: it wants for no other reason than that it stands there, and let turns go unused of
     * late: stopped, or a liar */
    uint32_t unsure;
    /* when what it has on the card will have ended, as its programs foresee it; 0 = they do not */
    uint64_t ends_ns;
    /* when it began to use the turn it was given, by the arbiter's clock; 0 = not known */
    uint64_t used_from_ns;
    /* when its last work ended, by its programs' word and since the last look that found it at
     * work; 0 = not known, or it works */
    uint64_t ended_ns;
    /* the look at which it last moved, if nothing of it is known to be unfinished; else 0 */
    uint64_t silent_ns;
    /* state and output */
    uint32_t gate;     /* gate word decided */
    uint32_t worked;   /* 1: wanted at least once, last_work_ns is of then */
    uint32_t flew;     /* undrained, as it was at the last decision */
    uint32_t was_busy; /* wants or undrained, as it was at the last decision */
    uint32_t wished;   /* it competed for the card at the last decision */
    /* the same, also where its budget was used up: it is entitled all the same */
    uint32_t wanted;
    uint32_t budgeted; /* 1: budget_ns is kept (its class is fixed-share) */
    /* 1: it used its last turn to the end, and has wanted the card ever since */
    uint32_t greedy;
    /* it had work on the card when online came, and it is not known yet how long that takes */
    uint32_t drains;
    uint32_t heavy; /* the last time that took longer than online is held back for it */
    /* its turn lasts so much longer that kernels may queue up, however long they are */
    uint32_t roomy;
    /* so many pauses on end, at most, turned out to be worth a change of hands */
    uint32_t resting;
    uint32_t away; /* 1: it passed its turn on and has not wanted the card since */
    /* 1: its budget is used up, the gate is closed until it has filled again */
    uint32_t spent;
    /* counts down: so many drains ago one ended long before the first look; drains differ much */
    uint32_t uneven;
    uint32_t misses;        /* ends that did not come as foreseen, see QP_MISS */
    int64_t deficit_ns;     /* > 0: got less than its share */
    int64_t budget_ns;      /* fixed-share: may use so much more now */
    uint64_t last_work_ns;  /* when it last wanted */
    uint64_t idle_since_ns; /* the first look since then that found it without work; 0 = it wants */
    /* online: QP_NEVER, it works; or since when it rests, at the latest; 0 = it never worked */
    uint64_t rests_ns;
    /* the first look that found it at work, if all since then did; else 0 */
    uint64_t busy_since_ns;
    uint64_t paused_ns;  /* when the pause began for which it last passed a turn on; 0 = never */
    uint64_t service_ns; /* total charged (members that take turns) */
    uint64_t used_ns;    /* charged by the last decision */
    uint64_t unseen_ns;  /* fixed-share: it may have used so much more, nobody looked meanwhile */
    /* how long it usually takes from the closing of its gate to its last completion */
    uint64_t drain_ns;
    uint64_t early_ns; /* it seldom takes less than that */
    /* the longest such time of late: what may come on top when its gate opens */
    uint64_t tail_ns;
    uint64_t longest_ns; /* the same of a longer time: some thirty drains */
    /* how often on end its last completion did not come in time: it is waited for less and less */
    uint64_t overdue;
    /* when the gate closed whose drain was cut off, until its work has ended or its next turn
     * begins; else 0 */
    uint64_t cut_off_ns;
    /* output: its limit is reached then at the latest, so the gate is open no longer; 0 = no
     * such time */
    uint64_t until_ns;
};

struct qp_class {
    /* input */
    uint32_t policy; /* enum qg_policy */
    /* 1: shares are kept by time slices of the hardware: no turns (not under fixed-share) */
    uint32_t sliced;
    /* state */
    int32_t holder;     /* index, or -1 */
    int32_t draining;   /* former holder whose work is awaited, or -1 */
    uint32_t contended; /* 1: one at a time since the last decision */
    uint32_t resumed;   /* 0: it was closed as a whole; a fresh slice is due */
    uint32_t looked;    /* the draining one was seen at work since it was closed */
    uint32_t wary;      /* 1: somebody's work was cut off of late */
    /* 1: the turn before this one was the same tenant's: no change of context came between */
    uint32_t stayed;
    uint32_t bare;  /* the draining one showed nothing on the card when its gate was closed */
    uint32_t early; /* the holder's gate was opened before the former one's work had ended */
    /* members that took part in the last interval, and the sum of their weights */
    uint32_t rivals;
    int64_t weights;
    uint64_t slice_end_ns; /* the turn may end */
    uint64_t turn_end_ns;  /* the same where all who wait are greedy */
    uint64_t opened_ns;    /* when the holder's gate was opened */
    uint64_t use_ns;       /* when its use of the turn began, 0 = not known yet */
    uint64_t booked_ns;    /* time before this has been charged */
    /* the holder's gate was opened ahead of the draining one's end, which should come then; else
     * 0 */
    uint64_t foreseen_ns;
    uint64_t drain_from_ns;
    uint64_t drain_until_ns;
    uint64_t cut_off_ns; /* when a drain was last cut off; 0 = never */
};

/* What was used in the last second, or the last ten. */
struct qp_window {
    uint64_t bin; /* number of the newest */
    uint64_t sum; /* of the newest 251 */
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
    uint32_t ntenants;          /* entries of tenant[] to look at, <= QP_MAX_TENANTS */
    /* state */
    uint64_t last_ns;         /* of the last decision; 0 = none yet */
    uint64_t preempt_from_ns; /* when online came; 0 = offline may run */
    /* when online was last seen at work, or has rested since, at the latest; 0 = never */
    uint64_t online_busy_ns;
    struct qp_class cls[2]; /* [0] online, [1] offline */
    /* output */
    uint64_t wake_ns; /* decide again then at the latest, or QP_NEVER */
    /* the same if those who work now go on working: only looks at them come before */
    uint64_t due_ns;
    /* a long turn is over then, or is charged from then: the first look after that is soon
     * enough; or QP_NEVER */
    uint64_t soft_ns;
    uint32_t preempting;
    uint32_t online_working; /* state: so many online tenants had work at the last decision */
    uint32_t awaits_online;  /* state: an online tenant lives here, or may come at any time */
    int32_t last_user;       /* state: who last began to use a turn, or -1 */
    /* output: a gate closed behind nothing on the card, and a launch may have passed it since
     * the inputs were read: once it is closed, read them again, set this to 0 and decide again */
    uint32_t again;
    uint32_t padding; /* no hole before tenant */
    struct qp_tenant tenant[QP_MAX_TENANTS];
    struct qp_history history[QP_MAX_TENANTS]; /* state: of members of a fixed-share class */
};

/* Sets neutral state; the caller then fills in the settings. */
void qp_init(struct qp_card *card);

/* Forgets the state of one entry, before it is given to another tenant or after its tenant left. */
void qp_forget(struct qp_card *card, uint32_t index);

/* Decides: reads the inputs, updates the state, writes each gate and wake_ns. now_ns must not go
 * backwards. */
void qp_decide(struct qp_card *card, uint64_t now_ns);

#endif
