/* SPDX-License-Identifier: Apache-2.0 */
#include "begun.h"

/* an end is taken for so much of the estimate sooner: those err upwards, and errors add up */
#define EARLY_PARTS 32u
/* ... but for so much sooner than its latest time: what is queued too soon, online waits for */
#define EARLIEST_NS 40000u
#define SEEN_NS     200000u /* an end between two looks so close was seen */
/* kernels of varying length, and a card that stood still, lead further and further astray */
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
