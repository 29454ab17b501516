/* SPDX-License-Identifier: Apache-2.0
 *
 * Since when what runs on a card runs, as far as can be told from looks that find what has ended
 * and what has not, and from how long it was to take. Of a card; under qg_window_lock. No driver,
 * no clock: times are the caller's.
 */
#ifndef QG_START_INFERENCE_H
#define QG_START_INFERENCE_H

#include <stdbool.h>
#include <stdint.h>

struct qg_begun {
    /* the last look: the caller's to write, when it is done with the one before */
    uint64_t looked_ns;
    /* what runs began then, as is best believed: never before the last look that found the
     * former unfinished */
    uint64_t began_ns;
    uint64_t latest_ns; /* ... and then at the latest, if nothing takes longer than it is to take */
    unsigned unseen;    /* so many ends on end came when nobody had looked for long */
};

/* A look found nothing at work: what is launched begins now. */
void qg_begun_none(struct qg_begun *begun, uint64_t now);

/* A look found that so much of the work has ended since the last one, and that more of it runs. */
void qg_begun_ended(struct qg_begun *begun, uint64_t took_ns, uint64_t now);

/* Each end was guessed from the one before, for so long that what runs may have begun quite
 * otherwise: where that matters, the next end must be seen. */
bool qg_begun_guessed(const struct qg_begun *begun);

#endif
