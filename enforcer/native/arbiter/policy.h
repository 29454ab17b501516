/* SPDX-License-Identifier: Apache-2.0
 *
 * The decision: given what every tenant of one card shows and the time, which gates are open, and when to look
 * again. No system call, no global, no clock: the same code runs in the arbiter, in the tests and in simulations.
 * All times are nanoseconds of one monotonic clock. docs/specs/control.md explains the rules in prose.
 */
#ifndef QGPU_POLICY_H
#define QGPU_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define QP_MAX_TENANTS 256u          /* tenants of one card */
#define QP_NEVER UINT64_MAX          /* no wake-up needed */
#define QP_MS 1000000ull
#define QP_TICK_NS (1 * QP_MS)       /* look again while somebody works and shares the card */
#define QP_SOLO_TICK_NS (5 * QP_MS)  /* the same for a tenant alone on a card */
#define QP_NOTIFY_NS (2 * QP_MS)     /* idle so long: stop polling, the next launch rings */
#define QP_PASS_ON_NS (1 * QP_MS)    /* a holder without work for so long passes its turn on */
#define QP_DRAIN_POLL_NS 100000ull   /* how often a closed holder is checked for its last completion */
#define QP_DRAIN_MAX_NS (100 * QP_MS) /* then the next one starts although the former never finished */
#define QP_DEFICIT_MAX_NS (500 * (int64_t)QP_MS) /* |credit or debt| of a tenant */

struct qp_tenant {
    /* input: who */
    uint32_t live;      /* 1: has a registered process; others are ignored */
    uint32_t job_class; /* enum qg_class */
    uint32_t share;     /* 1..100 */
    uint32_t procs;     /* registered processes */
    /* input: what it shows now */
    uint32_t wants;     /* 1: work unfinished, or threads at the gate */
    uint32_t undrained; /* 1: work of it may still be on the card */
    uint32_t granted;   /* 1: the job is here, though perhaps no process of it has registered yet */
    /* state and output */
    uint32_t gate;         /* gate word decided */
    uint32_t charged;      /* 1: it was charged for the last interval (it held the card, or had not drained) */
    uint32_t worked;       /* 1: wanted at least once, last_work_ns is of then */
    int64_t deficit_ns;    /* > 0: got less than its share */
    uint64_t last_work_ns; /* when it last wanted */
    uint64_t service_ns;   /* total charged under contention */
};

struct qp_class {
    /* input */
    uint32_t policy; /* enum qg_policy */
    /* state */
    int32_t holder;     /* index, or -1 */
    int32_t draining;   /* former holder whose work is awaited, or -1 */
    uint32_t contended; /* 1: one at a time since the last decision */
    uint32_t resumed;   /* 0: it was closed as a whole; a fresh slice is due */
    uint64_t slice_end_ns;
    uint64_t drain_until_ns;
};

struct qp_card {
    /* input: settings */
    uint64_t idle_release_ns;
    uint64_t slice_ns;
    uint64_t recovery_until_ns; /* offline stays closed until then; 0 = no recovery */
    uint32_t ungoverned;        /* 1: all gates open */
    uint32_t ntenants;          /* entries of tenant[] to look at, <= QP_MAX_TENANTS */
    /* state */
    uint64_t last_ns;        /* of the last decision; 0 = none yet */
    uint64_t online_busy_ns; /* when online was last seen at work, or first seen without; 0 = never */
    struct qp_class cls[2];  /* [0] online, [1] offline */
    /* output */
    uint64_t wake_ns; /* decide again then at the latest, or QP_NEVER */
    uint32_t preempting;
    uint32_t online_working; /* state: an online tenant had work at the last decision */
    struct qp_tenant tenant[QP_MAX_TENANTS];
};

/* Sets neutral state; the caller then fills in the settings. */
void qp_init(struct qp_card *card);

/* Forgets the state of one entry, before it is given to another tenant or after its tenant left. */
void qp_forget(struct qp_card *card, uint32_t index);

/* Decides: reads the inputs, updates the state, writes each gate and wake_ns. now_ns must not go backwards. */
void qp_decide(struct qp_card *card, uint64_t now_ns);

#endif
