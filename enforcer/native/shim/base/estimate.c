/* SPDX-License-Identifier: Apache-2.0
 *
 * Learns how long each function takes on the card, from samples of its launches (estimate.h).
 */
#include "base/estimate.h"

#include <string.h>

/* count: Slots are tried for a function before another one is forgotten. Evidence: bound. */
#define PROBES 8u

static struct qg_function *find(struct qg_functions *functions, const void *key, bool make)
{
    uint64_t hash = (uint64_t)(uintptr_t)key * 0x9e3779b97f4a7c15u;
    unsigned first = (unsigned)(hash >> 40) % QG_FUNCTIONS;
    for (unsigned i = 0; i < PROBES; i++) {
        struct qg_function *at = &functions->slots[(first + i) % QG_FUNCTIONS];
        if (at->key == key)
            return at;
        if (!at->key && make) {
            at->key = key;
            return at;
        }
    }
    if (!make)
        return NULL;
    /* All slots that the function may use are taken: forget one. It is learned again when it comes
     * back. */
    struct qg_function *at = &functions->slots[first];
    *at = (struct qg_function){.key = key};
    return at;
}

struct qg_function *qg_function_of(struct qg_functions *functions, const void *key)
{
    return find(functions, key, true);
}

bool qg_function_launched(struct qg_function *function)
{
    return function->launches++ % QG_LEARN_EACH == 0 || function->samples < QG_LEARN_EACH;
}

static void summarise(struct qg_function *function)
{
    unsigned count = function->samples < QG_RECENT ? function->samples : QG_RECENT;
    function->longest_ns = function->least_ns = function->recent_ns[0];
    for (unsigned i = 1; i < count; i++) {
        uint64_t took_ns = function->recent_ns[i];
        if (took_ns > function->longest_ns)
            function->longest_ns = took_ns;
        if (took_ns < function->least_ns)
            function->least_ns = took_ns;
    }
}

void qg_function_learn(struct qg_functions *functions, const void *key, uint64_t took_ns,
                       uint64_t gap_ns, bool freed)
{
    struct qg_function *function = find(functions, key, false);
    if (!function || (gap_ns > QG_VAGUE_NS && gap_ns > took_ns / 2))
        return;
    took_ns -= (gap_ns < took_ns ? gap_ns : took_ns) / 2;
    if (freed && function->samples && took_ns > function->longest_ns)
        return;
    function->recent_ns[function->samples++ % QG_RECENT] = took_ns ? took_ns : 1;
    summarise(function);
}

/* The key stays: an empty slot would end the search for functions that were put behind it. */
void qg_function_forget(struct qg_functions *functions, const void *key)
{
    struct qg_function *function = find(functions, key, false);
    if (function)
        *function = (struct qg_function){.key = key};
}

uint64_t qg_function_estimate(const struct qg_function *function, uint64_t unknown_ns)
{
    uint64_t estimate = function->samples ? function->longest_ns : unknown_ns;
    return estimate ? estimate : 1;
}
