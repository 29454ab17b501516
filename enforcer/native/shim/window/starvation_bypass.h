/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a full window may show no progress before a launch is let through all the same, because
 * what runs may be a kernel that waits for that launch.
 */
#ifndef QG_STARVATION_BYPASS_H
#define QG_STARVATION_BYPASS_H

#include "window/wait_strategy.h"
#include "window/samples.h"

/* Of a card; under qg_window_lock, like all calls. */
struct qg_patience {
    unsigned times; /* let through one after the other without any progress between */
    /* what ran when the first of them was: the marker that ends it. NULL: nobody knows */
    struct qg_stream *stream;
    uint32_t value;
    const void *function;
    uint64_t passed_ns; /* when the last of them was */
    uint64_t soon_ns;   /* what ends within this time after it has waited for it */
};

/* Nothing has moved for too long; a launch into this stream waits. */
bool qg_patience_over(const struct qg_patience *patience, const struct qg_look *at,
                      const struct qg_stream *stream);

/* What waited goes: one more time that the time of what runs was believed. */
void qg_patience_used(const struct qg_look *at);

/* It was let through, and takes so long itself. */
void qg_patience_passed(struct qg_patience *patience, const struct qg_look *at,
                        const struct qg_stream *stream, uint64_t takes_ns);

/* The card was looked at, and the last time before at looked_ns. moved: something ended since. */
void qg_patience_look(struct qg_patience *patience, const struct qg_look *at, uint64_t looked_ns,
                      bool moved);

#endif
