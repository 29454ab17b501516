/* SPDX-License-Identifier: Apache-2.0
 *
 * Derives the inputs of the decision from the samples of a job page.
 */
#include "base/base.h"
#include "model/model.h"
#include "observe/observe_parts.h"
#include "policy/policy.h"

/* ns: Unfenced work counts this long where no window bounds it: nothing else ends it. Evidence:
 * none. */
#define UNFENCED_NS (100 * QP_MS)
/* ns: Under a window, unfenced work counts this long past its estimate. Evidence: none. */
#define UNFENCED_LATE_NS 200000ull
/* ns: After this time without progress of its fences a tenant gets no more quanta. It is charged
 * on. Others of its class lose no more than that. Evidence: attack (test_arbiter_robust.py). */
#define STUCK_NS (2000 * QP_MS)

/* Does unfenced work still count? With a window the shim fences whatever takes longer than a
 * quarter of it, and reports how long all unfinished work takes. A process that is inside a driver
 * call, or lies, has no more than that time of its quantum. */
static bool unfenced_counts(const struct tenant *t, uint64_t now)
{
    if (!(t->gate->flags & QG_GATE_WINDOW))
        return ar_since(t->sample.progress_ns, now) < UNFENCED_NS;
    return now < t->sample.launch_seen_ns + t->sample.expected_ns + UNFENCED_LATE_NS ||
           now < t->sample.progress_ns + t->sample.expected_ns / 4 + UNFENCED_LATE_NS;
}

/* Derives the inputs of the decision from the last samples. */
void sample_classify(struct tenant *t, uint64_t now)
{
    struct qp_tenant *q = &t->card->policy.tenant[t->index];
    uint64_t silence = ar_since(t->sample.progress_ns, now);
    uint64_t window = (uint64_t)t->card->window_us * 1000;
    bool fenced = t->sample.pending && silence < (uint64_t)t->card->arbiter->hang_s * 1000 * QP_MS;
    bool online = t->id.job_class == QG_CLASS_ONLINE;
    bool unfenced = t->sample.ran || (t->sample.unfenced && unfenced_counts(t, now));
    /* A lone online tenant may run a kernel of any length, as only peers wait for its quantum. */
    t->sample.stuck = t->sample.pending && silence >= STUCK_NS && !(online && t->card->lone_online);
    t->sample.busy = t->nprocs && (fenced || unfenced || t->sample.at_gate || t->sample.launched ||
                                   t->sample.frozen);
    q->live = t->nprocs > 0 && !t->id.revoked;
    q->job_class = t->id.job_class;
    q->share = t->id.share;
    q->launches = t->usage.launches;
    bool works = (fenced && !t->sample.stuck) || unfenced || t->sample.launched || t->sample.frozen;
    q->runnable = t->nprocs && (works || t->sample.at_gate);
    bool doubted = !works && t->sample.discredit_ns, hung = fenced && t->sample.stuck;
    q->preempts = online && (q->runnable ? !doubted : hung);
    q->at_gate = t->sample.at_gate;
    q->ungoverned = t->id.ungoverned;
    q->suspended = gang_suspended(t);
    q->held = t->id.held;
    /* unfenced work behind a closed gate is bounded by the window, so it is not awaited
     * for longer */
    q->undrained =
        t->nprocs && (fenced || (unfenced && silence < (window > QP_MS ? window : QP_MS)));
}
