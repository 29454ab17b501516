/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a function takes, learned from samples. Pure data structure; the caller locks.
 */
#ifndef QG_ESTIMATE_H
#define QG_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

/* functions with a slot of their own; more share slots, and the newest wins */
#define QG_FUNCTIONS 4096u
/* launches of a new function that are all sampled: an estimate is needed soon */
#define QG_LEARN_FIRST 16u
/* samples before an estimate is believed */
#define QG_TRUST 12u
/* launches per sample after that: a sample costs time */
#define QG_LEARN_EACH 32u
/* ns from which a function counts as long: a sample costs it next to nothing */
#define QG_LONG_NS 250000u
/* launches per sample of a long function */
#define QG_LEARN_LONG 4u
/* samples that are kept one by one */
#define QG_RECENT 24u
/* weight of a sample longer than the estimate; each other sample takes off 1 */
#define QG_DOUBT 16u
/* longer samples, close enough together, before the estimate rises: one may be a disturbance */
#define QG_DOUBTS 4u
/* ns in the driver from which a sample does not show how long the work took */
#define QG_VAGUE_NS 100000u
/* such samples in a row before the next counts all the same: this driver is slow */
#define QG_VAGUES 3u
/* much shorter samples in a row that show that the estimate was disturbed */
#define QG_OUTLIER 48u

struct qg_function {
    const void *key;
    uint64_t est_ns; /* valid when samples > 0 */
    uint64_t low_ns; /* the shortest of late */
    uint16_t proven; /* launches for which the function still counts as running long by itself */
    /* it was observed to end as soon as a launch was let through: its durations are useless */
    bool waits;
    uint32_t launches;
    uint32_t samples;
    /* rises by QG_DOUBT with a sample that may be longer than the estimate, falls by one with
     * others */
    uint32_t doubts;
    uint64_t doubted_ns; /* the shortest of those */
    /* samples in a row that took less than three quarters of the estimate */
    uint32_t shorter;
    /* ns of the longest recent launch call, less an eighth for each call since */
    uint64_t call_ns;
    /* samples in a row that were dropped, since the launch call took too much of them */
    uint32_t vague;
    uint32_t kept;                 /* number of samples that were stored in recent_us */
    uint32_t recent_us[QG_RECENT]; /* the last of them; 0: none yet */
};

struct qg_functions {
    struct qg_function slots[QG_FUNCTIONS];
};

/* The record of a function, made if needed. */
struct qg_function *qg_function_of(struct qg_functions *functions, const void *key);

/* Counts a launch; true if this one should be timed. */
bool qg_function_launched(struct qg_function *function);

/* Adds a sample of took_ns. Of that, up to gap_ns may be time in which an idle card waited for the
 * launch. Up to shared_ns may be time of other tenants. The part that is surely longer than the
 * estimate counts at once. The part that may be longer counts if it repeats. A shorter sample
 * counts by a 64th of the difference. It counts by an eighth while samples are few, or if no recent
 * sample came near the estimate. A sample that is mostly gap_ns counts only if no other exists. The
 * lower estimate falls at once and rises slowly. alone: no other tenant can have been on the card
 * when the work began. */
void qg_function_learn(struct qg_functions *functions, const void *key, uint64_t took_ns,
                       uint64_t gap_ns, uint64_t shared_ns, bool alone);

/* runs: the function was observed to take long by itself. waits: it was observed to wait for a
 * launch that the window held back. */
void qg_function_runs(struct qg_function *function);
void qg_function_waits(struct qg_function *function);

/* ns that it takes at least, as far as known; 0 before the first sample. */
uint64_t qg_function_least(const struct qg_function *function);

/* Durations that a launch which has run for ran_ns may still have: the shortest, the middle and the
 * longest of its last samples above ran_ns. False: it has run longer than all of them, or there are
 * none. */
struct qg_ends {
    uint64_t soonest_ns, middle_ns, latest_ns;
    bool expected; /* some took a little less than ran_ns */
};
bool qg_function_ends(const struct qg_function *function, uint64_t ran_ns, struct qg_ends *ends);

/* ns that a launch call of it usually spends in the driver at most: twice the longest recent one.
 * UINT64_MAX if too little is known, or if launch calls repeatedly took much of the work's time. */
uint64_t qg_function_call_ns(const struct qg_function *function);

/* Forgets the estimate: the handle means another function from now on, or none. */
void qg_function_forget(struct qg_functions *functions, const void *key);

/* True: it has few samples so far, so it may take much longer than any of them. */
bool qg_function_new(const struct qg_function *function);

/* The estimate in ns, or unknown_ns before the first sample. Never zero. */
uint64_t qg_function_estimate(const struct qg_function *function, uint64_t unknown_ns);

#endif
