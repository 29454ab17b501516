/* SPDX-License-Identifier: Apache-2.0
 *
 * Accounts each interval between two decisions: which tenants were on the card, and which waited.
 */
#include "base/base.h"
#include "model/model.h"
#include "observe/observe.h"
#include "policy/policy.h"

/* Part of the interval for which a tenant was on the card. If members took quanta it is the time
 * that the decision charged. Else it is the mean of the two samples at its ends, where work without
 * a fence counts half. Work of a tenant that was idle and whose gate asked for rings began with the
 * ring, just now. */
static double part_of_interval(struct tenant *t, uint64_t dt)
{
    const struct qp_tenant *q = &t->card->policy.tenant[t->index];
    double load = t->sample.pending ? 1.0 : t->sample.ran && t->sample.unfenced ? 0.5 : 0.0;
    bool began = !t->usage.wanted && !(t->usage.load > 0) && (t->usage.gate & QG_GATE_NOTIFY);
    double part = began ? 0 : (t->usage.load + load) / 2;
    double charged = dt ? (double)(q->service_ns - t->usage.service_seen) / (double)dt : 0;
    t->usage.load = load;
    t->usage.service_seen = q->service_ns;
    return t->usage.took_quanta ? (charged < 1 ? charged : 1) : part;
}

/* The gate that counts is the one during the interval, not the one just decided. `idle` is the part
 * of it without work on the card. */
static void account_waiting(struct tenant *t, uint64_t dt, uint64_t idle)
{
    uint32_t flags = t->usage.gate;
    if (!t->usage.wanted || !(flags & QG_GATE_CLOSED))
        return;
    if (flags & QG_GATE_WHY_PREEMPTED) {
        t->usage.closed_preempted_ns += dt;
        if (t->usage.suspended)
            t->usage.closed_suspended_ns += dt;
        else
            t->usage.closed_idle_ns += idle;
    } else if (flags & QG_GATE_WHY_SHARE) {
        t->usage.closed_share_ns += dt;
    }
}

static void account_locked_out(struct tenant *t, uint64_t dt, uint64_t now)
{
    const struct card *card = t->card;
    const struct qp_tenant *q = &card->policy.tenant[t->index];
    if (t->id.job_class != QG_CLASS_ONLINE || !q->online_idle_since_ns)
        return;
    bool works = q->online_idle_since_ns == QP_NEVER;
    uint64_t idle = works ? 0 : ar_since(q->online_idle_since_ns, now),
             release = card->policy.release_ns;
    uint64_t released = idle < release ? 0 : idle - release;
    if (released < dt)
        t->usage.locked_out_ns += dt - released;
}

/* Accounts the interval since the last call. Called right after a decision, which has charged the
 * same interval. */
void account(struct card *card, uint64_t now)
{
    uint64_t dt = card->accounted_ns && now > card->accounted_ns ? now - card->accounted_ns : 0;
    double part[QP_MAX_TENANTS], sum = 0;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        part[i] = t && t->nprocs ? part_of_interval(t, dt) : 0;
        sum += part[i];
    }
    uint64_t idle = sum < 1 ? (uint64_t)((double)dt * (1 - sum)) : 0;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        if (!t || !t->nprocs)
            continue;
        t->usage.busy_ns += (uint64_t)((double)dt * part[i] / (sum > 1 ? sum : 1));
        account_waiting(t, dt, idle);
        account_locked_out(t, dt, now);
        t->usage.gate = t->gate->flags;
        bool follows = card->policy.tenant[i].suspended && !card->policy.preempting;
        t->usage.suspended = follows && (t->usage.gate & QG_GATE_WHY_PREEMPTED);
        t->usage.wanted = t->sample.busy;
        t->usage.took_quanta =
            card->policy.cls[t->id.job_class == QG_CLASS_ONLINE ? 0 : 1].contended;
    }
    card->accounted_ns = now;
}
