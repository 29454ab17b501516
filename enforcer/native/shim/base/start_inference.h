/* SPDX-License-Identifier: Apache-2.0
 *
 * Infers when the running kernel of a card started. It uses polls, which find what has ended, and
 * estimates of durations. One record per card, under qg_window_lock. It calls no driver and reads
 * no clock: the caller passes times.
 */
#ifndef QG_START_INFERENCE_H
#define QG_START_INFERENCE_H

#include <stdbool.h>
#include <stdint.h>

struct qg_start_inference {
    /* time of the last poll; the caller writes it after it has used the one before */
    uint64_t polled_ns;
    /* best guess of when the running work started; never before the last poll at which the work
     * before it was unfinished */
    uint64_t began_ns;
    uint64_t latest_ns; /* latest start, if no work takes longer than its estimate */
    /* ends in a row that were predicted and not observed by polls close in time */
    unsigned unobserved;
};

/* A poll found no work: the next launch starts at once. */
void qg_start_idle(struct qg_start_inference *start, uint64_t now);

/* A poll found that work of took_ns has ended since the last poll, and that more work runs. */
void qg_start_ended(struct qg_start_inference *start, uint64_t took_ns, uint64_t now);

/* True: many ends in a row were predicted, so the start may be quite wrong. A caller that depends
 * on it must observe the next end. */
bool qg_start_guessed(const struct qg_start_inference *start);

#endif
