/* SPDX-License-Identifier: Apache-2.0 */
#include "base/start_inference.h"

/* an end counts as 1/32 of the estimate sooner: estimates are high, and errors add up */
#define EARLY_PARTS 32u
/* most ns before its latest time that an end is assumed: online waits for what comes too soon */
#define EARLIEST_NS 40000u
/* ns between two polls within which an end counts as seen */
#define SEEN_NS 200000u
/* most ends in a row that are only predicted, since errors add up */
#define MOST_UNSEEN 32u

void qg_begun_none(struct qg_begun *begun, uint64_t now)
{
    begun->began_ns = begun->latest_ns = now;
    begun->unseen = 0;
}

void qg_begun_ended(struct qg_begun *begun, uint64_t took_ns, uint64_t now)
{
    uint64_t looked = begun->looked_ns, latest = begun->latest_ns + took_ns;
    uint64_t ended = begun->began_ns + took_ns - took_ns / EARLY_PARTS;
    /* it may have taken longer than it was to take */
    latest = latest < looked ? looked : latest < now ? latest : now;
    if (ended < looked)
        ended = looked;
    if (ended + EARLIEST_NS < latest)
        ended = latest - EARLIEST_NS;
    begun->began_ns = ended < latest ? ended : latest;
    begun->latest_ns = latest;
    begun->unseen = now - looked < SEEN_NS ? 0 : begun->unseen + 1;
}

bool qg_begun_guessed(const struct qg_begun *begun)
{
    return begun->unseen >= MOST_UNSEEN;
}
