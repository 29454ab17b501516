/* SPDX-License-Identifier: Apache-2.0
 *
 * State of the process that all parts of the shim share: its grant, its cards, its depth. One
 * process, up to QG_MAX_CARDS granted cards.
 */
#ifndef QG_PROCESS_H
#define QG_PROCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <cuda.h>

#include "driver/driver.h"
#include "base/grant.h"
#include "qg_time.h"
#include "qgpu_abi.h"

/* Device ordinals of CUDA that are mapped to cards. Chosen, not measured: nodes have at most 16
 * cards. */
#define QG_MAX_ORDINALS 64
#define QG_LIKELY(x)    __builtin_expect(!!(x), 1)
#define QG_UNLIKELY(x)  __builtin_expect(!!(x), 0)

/* Contexts of a process that can have fences at a time. Chosen, not measured. */
#define QG_SLOT_MAPPINGS 64u

/* The process's slot, mapped once more: slot_mappings.c. */
struct qg_slot_mapping {
    struct qg_proc *page;
    CUcontext owner; /* atomic; NULL: not in use */
    bool used;       /* atomic: some context had it */
};

/* The pages of one registration. Never unmapped and never freed: a thread may still read them. */
struct qg_pages {
    const struct qg_gate_page *gate;
    struct qg_job_page *job;
    struct qg_proc *proc; /* &job->procs[slot] */
    uint32_t slot;
    bool lanes;                   /* launches may be counted without an atomic operation */
    int doorbell;                 /* in the program's descriptor table */
    dev_t doorbell_dev, gate_dev; /* a tenant's gate and job page live and end together */
    ino_t doorbell_ino, gate_ino;
    struct qg_pages *mapped_before;
    /* under qg_allocation_lock: pages that other processes may still use; job_sum.c */
    struct qg_pages *before;
    uint64_t followed_ns; /* when these took over */
    struct qg_slot_mapping slot_mappings[QG_SLOT_MAPPINGS];
};

/* Job numbers of `qgpu run` begin here, far above those of Slurm. */
#define QG_JOB_WITHOUT_SLURM (1ull << 40)

struct qg_card {
    const struct qg_grant_card *grant; /* NULL: not in use */
    struct qg_pages *pages;            /* atomic; NULL until registered */
    bool visible;                      /* a device of this process has the card's UUID */
    int ordinal;                       /* of that device */

    /* Memory, under qg_allocation_lock. */
    uint64_t used;
    uint64_t pending;
    uint64_t peak;          /* of the whole job, when this process allocated */
    uint64_t denied;        /* refused, and not yet counted in the pages */
    uint64_t refused;       /* most that the job would have held with one of those */
    uint64_t context_bytes; /* the part of used that is reserved for contexts */
    uint32_t contexts;      /* that it is reserved for */

    /* Tracking. */
    int unfenced;       /* atomic: streams with unfenced work */
    uint64_t rung_at;   /* atomic: qg_gate_page.changed_ns of the last ring */
    uint64_t rung_tick; /* atomic: when, to ring again after a while */

    /* atomic: small copies that have not passed the gate, in the form of small_copies.c */
    uint64_t small;
    uint64_t small_tick; /* atomic: tick at which they last were worth a launch */

    /* atomic: the arbiter is gone and the lease ran out; the gate is ignored until one registers
     * us */
    bool gate_ignored;
};

extern struct qg_grant_info qg_info;
extern struct qg_card qg_cards[QG_MAX_CARDS];
extern int8_t qg_card_of_ordinal[QG_MAX_ORDINALS]; /* -1: not granted */
extern bool qg_governed;                           /* a valid grant of shares */
/* atomic: captures under way */
extern int qg_captures;
/* atomic: rises when a stream or context dies, a capture begins, the last one ends, pages change */
extern unsigned qg_generation;

/* Depth of our own code on this thread. Hooks that the driver calls from inside are passed through.
 */
extern __thread int qg_depth __attribute__((tls_model("initial-exec")));

static inline struct qg_pages *qg_pages_of(struct qg_card *card)
{
    return __atomic_load_n(&card->pages, __ATOMIC_ACQUIRE);
}

/* A cheap clock of unknown but constant rate; qg_ticks_per_ms is measured once. */
static inline uint64_t qg_tick(void)
{
    return __builtin_ia32_rdtsc();
}
extern uint64_t qg_ticks_per_ms;

/* Every card as the grant names it, without anything that was found or measured. */
void qg_cards_forget(void);

/* Card of a device ordinal or of the current context; NULL if it is not granted (or there is none).
 */
struct qg_card *qg_card_by_ordinal(CUdevice ordinal);
struct qg_card *qg_card_current(void);
/* the same, and why the driver does not say: a context that died of a fault, or none */
CUresult qg_card_here(struct qg_card **card);

/* foreign_card.c. True: the card is not in the grant, so it has neither a gate nor a cap here, and
 * nothing begins on it. */
bool qg_context_refused(CUdevice device);

/* Asks the kernel for the barrier that plain counters need (track/lanes.c), and whether it gave it.
 */
void qg_lanes_register(void);
bool qg_lanes_usable(void);
void qg_lanes_unusable(void);

#endif
