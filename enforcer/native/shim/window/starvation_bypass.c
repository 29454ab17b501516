/* SPDX-License-Identifier: Apache-2.0 */
#include "window/starvation_bypass.h"

/* ns without progress at a full window; then a launch passes, as a kernel may wait for it */
#define STUCK_NS 2000000u
/* launches let through after STUCK_NS each; later ones wait twice as long each time */
#define PATIENT 3u
/* most doublings of that wait: 64 ms */
#define LONGEST_SHIFT 5u
/* launches let through in vain before a kernel is not taken for one that waits any more */
#define BELIEVED 6u
/* ns after the launch in which a kernel that waited for it ends, besides twice its duration */
#define SOON_NS 2000000u
/* ns: a shorter kernel may end by itself meanwhile, so its end proves nothing */
#define LONG_NS 8000000u

/* A kernel that is known to take long may have the rest of its estimate before it, and who was let
 * through without any effect waits for the whole of it again, longer each time: else long kernels
 * would pile up behind the first. But a long time may have been spent waiting for what the window
 * held back. So it counts only where the function was seen to take it by itself; of others a launch
 * into another stream goes after 2 ms, and then it is seen. */
bool qg_patience_over(const struct qg_patience *patience, const struct qg_look *at,
                      const struct qg_stream *stream)
{
    const struct qg_inflight *now = &at->inflight;
    unsigned times = patience->times, shift = times < PATIENT ? 0 : times - PATIENT + 1;
    uint64_t wait = (uint64_t)STUCK_NS << (shift < LONGEST_SHIFT ? shift : LONGEST_SHIFT);
    if (at->now - at->moved <= wait)
        return false;
    uint64_t estimate = now->longest.ns;
    bool unproven = now->longest.stream && now->longest.stream != stream && estimate > LONG_NS &&
                    times < BELIEVED &&
                    !qg_function_of(&qg_functions, now->longest.function)->proven;
    bool alone = !times && now->sum_ns == estimate; /* nothing stands behind it already */
    uint64_t ran = alone && at->moved > at->began ? at->moved - at->began : 0;
    return unproven || estimate < ran || at->now - at->moved > wait + estimate - ran;
}

void qg_patience_used(const struct qg_look *at)
{
    if (!at->inflight.longest.stream || at->now - at->moved <= STUCK_NS)
        return;
    struct qg_function *function = qg_function_of(&qg_functions, at->inflight.longest.function);
    if (function->proven)
        function->proven--;
}

void qg_patience_passed(struct qg_patience *patience, const struct qg_look *at,
                        const struct qg_stream *stream, uint64_t takes_ns)
{
    const struct qg_inflight *now = &at->inflight;
    if (!patience->times++) {
        patience->stream =
            now->longest.ns > LONG_NS && now->longest.stream != stream ? now->longest.stream : NULL;
        patience->value = now->longest.value;
        patience->function = now->longest.function;
    }
    patience->passed_ns = at->now;
    patience->soon_ns = SOON_NS + (2 * takes_ns < SOON_NS ? 2 * takes_ns : SOON_NS);
    qg_let_through++;
}

void qg_patience_look(struct qg_patience *patience, const struct qg_look *at, uint64_t looked_ns,
                      bool moved)
{
    if (patience->stream) {
        uint64_t latest = patience->passed_ns + patience->soon_ns;
        bool reached = qg_stream_reached(patience->stream, patience->value);
        if (reached && at->now <= latest)
            qg_function_waits(qg_function_of(&qg_functions, patience->function));
        else if ((reached ? looked_ns : at->now) > latest) /* else it ended when nobody looked */
            qg_function_runs(qg_function_of(&qg_functions, patience->function));
        if (reached || at->now > latest)
            patience->stream = NULL;
    }
    if (moved)
        patience->times = 0;
}
