/* SPDX-License-Identifier: Apache-2.0
 *
 * Learns how long each function takes on the card, from samples of its launches.
 */
#include "base/estimate.h"

#include <string.h>

/* Slots that are tried for a function before another one is forgotten. Chosen, not measured. */
#define PROBES 8u
/* Launches for which a function counts as running long by itself. Chosen, not measured. */
#define PROOF 1000u
/* ns by which an end is observed late: the time between two polls. Chosen, not measured. */
#define LATE_NS 40000u

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
    uint32_t count = function->launches++,
             each = function->est_ns >= QG_LONG_NS ? QG_LEARN_LONG : QG_LEARN_EACH;
    return count < QG_LEARN_FIRST || count % each == 0 || !function->samples;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The sample is longer than the estimate, unless another tenant had the card meanwhile. One such
 * sample proves nothing; several raise the estimate. */
static void may_be_longer(struct qg_function *function, uint64_t own_ns)
{
    function->doubted_ns = function->doubts ? least(function->doubted_ns, own_ns) : own_ns;
    function->doubts += QG_DOUBT;
    if (function->doubts <= QG_DOUBT * (QG_DOUBTS - 1))
        return;
    function->est_ns = function->doubted_ns;
    function->doubts = 0;
}

/* A stalled driver call makes the sample far too long. Such a sample would spoil the estimate for
 * long, so it is dropped. */
static bool too_vague(struct qg_function *function, uint64_t took_ns, uint64_t gap_ns)
{
    if (gap_ns < QG_VAGUE_NS || gap_ns <= took_ns / 4) {
        function->call_ns -= function->call_ns / 8;
        function->call_ns = function->call_ns > gap_ns ? function->call_ns : gap_ns;
        function->vague = 0;
    } else if (function->vague < QG_VAGUES) {
        return ++function->vague;
    }
    return false;
}

void qg_function_learn(struct qg_functions *functions, const void *key, uint64_t took_ns,
                       uint64_t gap_ns, uint64_t shared_ns, bool alone)
{
    struct qg_function *function = find(functions, key, false);
    if (!function || too_vague(function, took_ns, gap_ns))
        return;
    uint64_t own = took_ns > gap_ns ? took_ns - gap_ns : 0,
             surely = own > shared_ns ? own - shared_ns : 0;
    function->shorter = took_ns < function->est_ns / 4 * 3 ? function->shorter + 1 : 0;
    bool quickly = function->samples < QG_LEARN_FIRST || function->shorter >= QG_OUTLIER;
    if (!function->samples)
        function->est_ns = took_ns;
    else if (surely > function->est_ns)
        function->est_ns = surely;
    else if (own > function->est_ns + function->est_ns / 4)
        may_be_longer(function, own);
    else if (took_ns < function->est_ns)
        function->est_ns -= (function->est_ns - took_ns) / (quickly ? 8 : 64);
    if (function->doubts)
        function->doubts--;
    if (!function->samples || took_ns < function->low_ns)
        function->low_ns = took_ns;
    else
        function->low_ns += least((took_ns - function->low_ns) / 8, function->low_ns / 16);
    uint64_t us = (took_ns - least(took_ns, gap_ns) / 2) / 1000 + 1;
    if (alone || !function->kept)
        function->recent_us[function->kept++ % QG_RECENT] =
            us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
    if (function->samples < UINT32_MAX)
        function->samples++;
}

bool qg_function_ends(const struct qg_function *function, uint64_t ran_ns, struct qg_ends *ends)
{
    uint64_t left[QG_RECENT];
    unsigned count = 0;
    ends->expected = false;
    for (unsigned i = 0; i < QG_RECENT; i++) {
        uint64_t took_ns = function->recent_us[i] * 1000ull;
        if (!took_ns)
            continue;
        ends->expected |= took_ns < ran_ns && took_ns > ran_ns / 8 * 7;
        if (took_ns + took_ns / 64 + LATE_NS < ran_ns)
            continue;
        unsigned at = count++;
        for (; at && left[at - 1] > took_ns; at--)
            left[at] = left[at - 1];
        left[at] = took_ns;
    }
    if (function->kept < QG_TRUST) /* it may take much longer than any of them */
        return false;
    if (count) {
        ends->soonest_ns = left[0];
        ends->middle_ns = left[(count - 1) / 2];
        ends->latest_ns = left[count - 1];
    }
    return count;
}

uint64_t qg_function_call_ns(const struct qg_function *function)
{
    return qg_function_new(function) || function->vague >= QG_VAGUES ? UINT64_MAX
                                                                     : 2 * function->call_ns;
}

/* The key stays: an empty slot would end the search for functions that were put behind it. */
void qg_function_forget(struct qg_functions *functions, const void *key)
{
    struct qg_function *function = find(functions, key, false);
    if (function) {
        function->samples = function->launches = function->shorter = function->doubts =
            function->kept = 0;
        function->vague = 0;
        function->call_ns = 0;
        function->waits = false;
        function->proven = 0;
        memset(function->recent_us, 0, sizeof(function->recent_us));
    }
}

void qg_function_runs(struct qg_function *function)
{
    function->proven = PROOF;
    function->waits = false;
}

void qg_function_waits(struct qg_function *function)
{
    function->proven = 0;
    function->waits = true;
}

bool qg_function_new(const struct qg_function *function)
{
    return function->samples < QG_TRUST;
}

uint64_t qg_function_least(const struct qg_function *function)
{
    return !function->samples                    ? 0
           : function->low_ns < function->est_ns ? function->low_ns
                                                 : function->est_ns;
}

uint64_t qg_function_estimate(const struct qg_function *function, uint64_t unknown_ns)
{
    uint64_t estimate = function->samples ? function->est_ns : unknown_ns;
    return estimate ? estimate : 1;
}
