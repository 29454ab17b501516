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
struct qg_bypass {
    unsigned times; /* bypasses in a row without any progress between */
    /* what ran at the first bypass: the fence that ends it. NULL: not known */
    struct qg_stream *stream;
    uint32_t value;
    const void *function;
    uint64_t passed_ns; /* time of the last bypass */
    uint64_t soon_ns;   /* ns after a bypass within which a kernel that waited for it ends */
};

/* True: no progress for too long, while a launch into this stream waits. */
bool qg_bypass_due(const struct qg_bypass *bypass, const struct qg_poll *at,
                   const struct qg_stream *stream);

/* A waiting launch passes. The estimate of the running function was believed once more. */
void qg_bypass_used(const struct qg_poll *at);

/* A launch passed by a bypass; it takes takes_ns itself. */
void qg_bypass_passed(struct qg_bypass *bypass, const struct qg_poll *at,
                      const struct qg_stream *stream, uint64_t takes_ns);

/* The card was polled; the poll before was at polled_ns. moved: work ended since then. */
void qg_bypass_poll(struct qg_bypass *bypass, const struct qg_poll *at, uint64_t polled_ns,
                    bool moved);

#endif
