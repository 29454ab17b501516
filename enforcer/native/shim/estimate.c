/* SPDX-License-Identifier: Apache-2.0 */
#include "estimate.h"

#include <string.h>

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
    /* Full neighbourhood: forget one. It is learned again when it comes back. */
    struct qg_function *at = &functions->slots[first];
    memset(at, 0, sizeof(*at));
    at->key = key;
    return at;
}

struct qg_function *qg_function_of(struct qg_functions *functions, const void *key)
{
    return find(functions, key, true);
}

bool qg_function_launched(struct qg_function *function)
{
    uint32_t count = function->launches++, each = function->est_ns >= QG_LONG_NS ? QG_LEARN_LONG : QG_LEARN_EACH;
    return count < QG_LEARN_FIRST || count % each == 0 || !function->samples;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void qg_function_learn(struct qg_functions *functions, const void *key, uint64_t took_ns, uint64_t gap_ns)
{
    struct qg_function *function = find(functions, key, false);
    if (!function)
        return;
    uint64_t surely = took_ns > gap_ns ? took_ns - gap_ns : 0;
    if (!function->samples)
        function->est_ns = took_ns;
    else if (surely > function->est_ns)
        function->est_ns = surely;
    else if (took_ns < function->est_ns)
        function->est_ns -= (function->est_ns - took_ns) / (function->samples < QG_LEARN_FIRST ? 8 : 64);
    if (!function->samples || took_ns < function->low_ns)
        function->low_ns = took_ns;
    else
        function->low_ns += least((took_ns - function->low_ns) / 8, function->low_ns / 16);
    if (function->samples < UINT32_MAX)
        function->samples++;
}

/* The key stays: an emptied slot would hide those that were put behind it. */
void qg_function_forget(struct qg_functions *functions, const void *key)
{
    struct qg_function *function = find(functions, key, false);
    if (function)
        function->samples = function->launches = 0;
}

bool qg_function_new(const struct qg_function *function)
{
    return function->samples < QG_TRUST;
}

uint64_t qg_function_least(const struct qg_function *function)
{
    return !function->samples ? 0 : function->low_ns < function->est_ns ? function->low_ns : function->est_ns;
}

uint64_t qg_function_estimate(const struct qg_function *function, uint64_t unknown_ns)
{
    uint64_t estimate = function->samples ? function->est_ns : unknown_ns;
    return estimate ? estimate : 1;
}
