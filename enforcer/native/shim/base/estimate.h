/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a function takes: between the shortest and the longest of its last samples. Pure data
 * structure; the caller locks.
 */
#ifndef QG_ESTIMATE_H
#define QG_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

/* count: Functions have a slot of their own; more share slots, and the newest wins. Evidence:
 * bound. */
#define QG_FUNCTIONS 4096u
/* count: Samples of each function are kept. Launches that are seldom long must be among them, or
 * several of these are queued as short ones. A disturbed sample is gone after as many others.
 * Evidence: simulator (docs/measurements/2026-11-28-samples-simulated.md). */
#define QG_RECENT 64u
/* count: Launches per sample, since a sample costs time. So many are all sampled first, since an
 * estimate is needed soon. Evidence: none. */
#define QG_LEARN_EACH 16u
/* ns: A launch call that takes longer, and more than half of the sample, hides how long the work
 * took. Evidence: none. */
#define QG_VAGUE_NS 100000u

struct qg_function {
    const void *key;
    uint32_t launches;
    uint32_t samples;              /* number of those that were ever stored in recent_ns */
    uint64_t longest_ns, least_ns; /* of recent_ns; 0: there is none */
    uint64_t recent_ns[QG_RECENT]; /* the last samples; behind what each launch reads */
};

struct qg_functions {
    struct qg_function slots[QG_FUNCTIONS];
};

/* The record of a function, made if needed. */
struct qg_function *qg_function_of(struct qg_functions *functions, const void *key);

/* Counts a launch; true if this one should be timed. */
bool qg_function_launched(struct qg_function *function);

/* A sample took took_ns. In gap_ns of that the launch call was under way, and an idle card may have
 * waited for it. So the work took half of that less, give or take as much. freed: it ended soon
 * after a launch that the window had held back. It may have waited for that launch, so the sample
 * raises no estimate. */
void qg_function_learn(struct qg_functions *functions, const void *key, uint64_t took_ns,
                       uint64_t gap_ns, bool freed);

/* Forgets the estimate: the handle means another function from now on, or none. */
void qg_function_forget(struct qg_functions *functions, const void *key);

/* The estimate in ns, or unknown_ns before the first sample. Never zero. */
uint64_t qg_function_estimate(const struct qg_function *function, uint64_t unknown_ns);

#endif
