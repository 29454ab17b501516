/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns what a job page showed into the inputs of the decision.
 */
#include "base/base.h"
#include "model/model.h"
#include "observe/observe_parts.h"
#include "policy/policy.h"

/* ns for which unfenced work is believed where there is no window: nothing else ends it */
#define UNMARKED_LEASE_NS (100 * QP_MS)
/* ns past its estimate for which unfenced work is believed where there is a window */
#define LOOSE_NS 200000ull
/* ns without progress of fences; then no quanta among peers, but still charged */
#define STUCK_NS (2000 * QP_MS)
/* least of that in ns, for a tenant whose fences were never silent for long */
#define STUCK_LEAST_NS (100 * QP_MS)
/* limit between the two: this many times the longest silence that ended with progress */
#define STUCK_TIMES 4u

/* A shim in window mode marks what takes longer than a quarter of the window, and says how long all
 * that is in flight is to take; who sits in a driver call, or lies, has no more than that of its
 * turn. */
static bool believe_unmarked(const struct tenant *t, uint64_t now)
{
    if (!(t->gate->flags & QG_GATE_WINDOW))
        return ar_since(t->sample.progress_ns, now) < UNMARKED_LEASE_NS;
    return now < t->sample.launch_seen_ns + t->sample.expected_ns + LOOSE_NS ||
           now < t->sample.progress_ns + t->sample.expected_ns / 4 + LOOSE_NS;
}

/* No kernel of it ever took a quarter of that: it hangs, or lies. */
static uint64_t stuck_after(const struct tenant *t)
{
    uint64_t after = STUCK_TIMES * at_most(t->sample.longest_silence_ns, STUCK_NS);
    return at_most(after > STUCK_LEAST_NS ? after : STUCK_LEAST_NS, STUCK_NS);
}

/* Turns what was seen into the inputs of the decision. */
void sample_classify(struct tenant *t, uint64_t now)
{
    struct qp_tenant *q = &t->card->policy.tenant[t->index];
    uint64_t quiet = ar_since(t->sample.progress_ns, now);
    uint64_t window = (uint64_t)t->card->window_us * 2000;
    bool marked = t->sample.pending && quiet < (uint64_t)t->card->arbiter->hang_s * 1000 * QP_MS;
    bool online = t->id.job_class == QG_CLASS_ONLINE;
    bool loose = t->sample.ran || (t->sample.unfenced && believe_unmarked(t, now));
    /* Online has the card for as long as a kernel takes; only its peers do not wait for that. */
    t->sample.stuck =
        t->sample.pending && quiet >= stuck_after(t) && !(online && t->card->lone_online);
    t->sample.busy = t->nprocs && (marked || loose || t->sample.at_gate || t->sample.launched ||
                                   t->sample.frozen);
    q->live = t->nprocs > 0 && !t->id.revoked;
    q->granted = !t->id.revoked;
    q->job_class = t->id.job_class;
    q->share = t->id.share;
    q->procs = t->nprocs + t->sample.more_contexts;
    bool works = (marked && !t->sample.stuck) || loose || t->sample.launched || t->sample.frozen;
    q->runnable = t->nprocs && (works || t->sample.at_gate);
    q->doubted = q->runnable && !works && t->sample.discredit_ns;
    q->hung = online && marked && t->sample.stuck && !q->runnable;
    q->at_gate = t->sample.at_gate || (t->sample.queued && !t->sample.doubted);
    q->free = t->id.free;
    q->suspended = gang_suspended(t);
    q->inactive_since_ns =
        marked || t->sample.at_gate || t->sample.frozen ? 0 : t->sample.active_ns;
    /* unmarked work behind a closed gate is bounded by the window, it is not awaited for the whole
     * lease */
    q->undrained = t->nprocs && (marked || (loose && quiet < (window > QP_MS ? window : QP_MS)));
}
