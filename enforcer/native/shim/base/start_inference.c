/* SPDX-License-Identifier: Apache-2.0
 *
 * Infers when the running kernel of a card started (start_inference.h).
 */
#include "base/start_inference.h"

/* an end counts as 1/32 of the estimate sooner: estimates are high, and errors add up */
#define EARLY_PARTS 32u
/* most ns before its latest time that an end is assumed: online waits for what comes too soon */
#define EARLIEST_NS 40000u
/* ns between two polls within which an end counts as seen */
#define OBSERVED_NS 200000u
/* most ends in a row that are only predicted, since errors add up */
#define MOST_UNOBSERVED 32u

void qg_start_idle(struct qg_start_inference *start, uint64_t now)
{
    start->began_ns = start->latest_ns = now;
    start->unobserved = 0;
}

void qg_start_ended(struct qg_start_inference *start, uint64_t took_ns, uint64_t now)
{
    uint64_t polled = start->polled_ns, latest = start->latest_ns + took_ns;
    uint64_t ended = start->began_ns + took_ns - took_ns / EARLY_PARTS;
    /* it may have taken longer than estimated */
    latest = latest < polled ? polled : latest < now ? latest : now;
    if (ended < polled)
        ended = polled;
    if (ended + EARLIEST_NS < latest)
        ended = latest - EARLIEST_NS;
    start->began_ns = ended < latest ? ended : latest;
    start->latest_ns = latest;
    start->unobserved = now - polled < OBSERVED_NS ? 0 : start->unobserved + 1;
}

bool qg_start_guessed(const struct qg_start_inference *start)
{
    return start->unobserved >= MOST_UNOBSERVED;
}
