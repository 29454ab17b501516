/* SPDX-License-Identifier: Apache-2.0
 *
 * Starvation bypass: lets a launch through a full window if the running kernel may wait for it.
 */
#include "window/starvation_bypass.h"

/* ns without progress at a full window; then a launch passes, as a kernel may wait for it */
#define STUCK_NS 2000000u
/* bypasses after STUCK_NS each; each later one waits twice as long as the one before */
#define EQUAL_WAITS 3u
/* most doublings of that wait: 64 ms */
#define LONGEST_SHIFT 5u
/* bypasses without effect after which a kernel no longer counts as waiting */
#define MOST_UNPROVEN 6u
/* ns after the launch in which a kernel that waited for it ends, besides twice its duration */
#define SOON_NS 2000000u
/* ns: a shorter kernel may end by itself meanwhile, so its end proves nothing */
#define LONG_NS 8000000u

/* True: nothing has progressed for too long, and a launch may pass the full window. If the running
 * kernel is known to take long, the rest of its estimate is waited for too. After a bypass without
 * effect the whole estimate is waited for again, longer each time. Otherwise long kernels would
 * pile up behind the first. But a long duration may itself be a wait for a launch that the window
 * held back. So it counts only for a function that was observed to take it by itself. For other
 * functions a launch into another stream passes after 2 ms, and its effect is observed. */
bool qg_bypass_due(const struct qg_bypass *bypass, const struct qg_poll *at,
                   const struct qg_stream *stream)
{
    const struct qg_inflight *now = &at->inflight;
    unsigned times = bypass->times, shift = times < EQUAL_WAITS ? 0 : times - EQUAL_WAITS + 1;
    uint64_t wait = (uint64_t)STUCK_NS << (shift < LONGEST_SHIFT ? shift : LONGEST_SHIFT);
    if (at->now - at->moved <= wait)
        return false;
    uint64_t estimate = now->longest.ns;
    bool unproven = now->longest.stream && now->longest.stream != stream && estimate > LONG_NS &&
                    times < MOST_UNPROVEN &&
                    !qg_function_of(&qg_functions, now->longest.function)->proven;
    bool alone = !times && now->sum_ns == estimate; /* no work is queued behind it yet */
    uint64_t ran = alone && at->moved > at->began ? at->moved - at->began : 0;
    return unproven || estimate < ran || at->now - at->moved > wait + estimate - ran;
}

void qg_bypass_used(const struct qg_poll *at)
{
    if (!at->inflight.longest.stream || at->now - at->moved <= STUCK_NS)
        return;
    struct qg_function *function = qg_function_of(&qg_functions, at->inflight.longest.function);
    if (function->proven)
        function->proven--;
}

void qg_bypass_passed(struct qg_bypass *bypass, const struct qg_poll *at,
                      const struct qg_stream *stream, uint64_t takes_ns)
{
    const struct qg_inflight *now = &at->inflight;
    if (!bypass->times++) {
        bypass->stream =
            now->longest.ns > LONG_NS && now->longest.stream != stream ? now->longest.stream : NULL;
        bypass->value = now->longest.value;
        bypass->function = now->longest.function;
    }
    bypass->passed_ns = at->now;
    bypass->soon_ns = SOON_NS + (2 * takes_ns < SOON_NS ? 2 * takes_ns : SOON_NS);
    qg_bypassed_launches++;
}

void qg_bypass_poll(struct qg_bypass *bypass, const struct qg_poll *at, uint64_t polled_ns,
                    bool moved)
{
    if (bypass->stream) {
        uint64_t latest = bypass->passed_ns + bypass->soon_ns;
        bool reached = qg_stream_reached(bypass->stream, bypass->value);
        if (reached && at->now <= latest)
            qg_function_waits(qg_function_of(&qg_functions, bypass->function));
        /* otherwise it ended between two polls */
        else if ((reached ? polled_ns : at->now) > latest)
            qg_function_runs(qg_function_of(&qg_functions, bypass->function));
        if (reached || at->now > latest)
            bypass->stream = NULL;
    }
    if (moved)
        bypass->times = 0;
}
