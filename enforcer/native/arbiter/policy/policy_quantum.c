/* SPDX-License-Identifier: Apache-2.0
 *
 * Quanta inside one class: which tenant is next, when a quantum ends, and how long its drain is
 * awaited.
 */
#include "policy/policy_parts.h"

/* Does a go before b? The one with more credit per weight does. At a tie it is the one with work on
 * the card, as that avoids a drain. */
static bool goes_first(const struct qp_class *s, const struct qp_tenant *a,
                       const struct qp_tenant *b)
{
    int64_t left = a->deficit_ns * weight(s, b), right = b->deficit_ns * weight(s, a);
    return left != right ? left > right : a->undrained && !b->undrained;
}

/* The competing member, other than `except`, that gets the next quantum; -1 if none competes. */
int32_t qp_select_next(const struct qp_card *c, int k, const struct members *m, int32_t except)
{
    const struct qp_class *s = &c->cls[k];
    int32_t best = -1;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (!competes(t) || (int32_t)m->at[j] == except)
            continue;
        if (best < 0 || goes_first(s, t, &c->tenant[best]))
            best = m->at[j];
    }
    return best;
}

/* No tenant competes: the gate of one member is open, so that its first launch need not wait. */
static int32_t any_member(const struct qp_card *c, const struct members *m)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (!is_barred(t) && !t->out_of_budget)
            return m->at[j];
    }
    return -1;
}

/* A quantum may last longer than a slice if the waiting tenants are in the offline class or wait
 * for a budget: none of them answers requests. */
void qp_begin_slice(struct qp_card *c, int k, uint64_t from)
{
    struct qp_class *s = &c->cls[k];
    bool may_last = k == OFFLINE || is_fixed_share(s);
    s->slice_end_ns = from + c->slice_ns;
    s->quantum_end_ns = from + (may_last ? QP_LONG_QUANTUM : 1) * c->slice_ns;
}

/* End of the quantum: one slice if a tenant waits that may need the card only for a moment. */
static uint64_t quantum_end(const struct qp_card *c, const struct qp_class *s,
                            const struct members *m)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (s->current != (int32_t)m->at[j] && competes(t) && !t->backlogged)
            return s->slice_end_ns;
    }
    return s->quantum_end_ns;
}

/* When a current tenant without work gives its quantum away. Pauses that were long so far are lent
 * at once. */
static uint64_t pause_ends_at(const struct qp_class *s, const struct qp_tenant *cur)
{
    uint64_t wait = lends_at_once(s, cur) ? 0 : QP_PAUSE_NS;
    return max_u64(cur->idle_since_ns, s->opened_ns) + wait;
}

/* When a tenant that is back from a pause takes the quantum over, where pauses are lent: as soon as
 * it has more credit per weight. The current one's falls while it runs, relative to all who wait,
 * by the time that it runs. */
static uint64_t claimed_at(const struct qp_class *s, const struct qp_tenant *cur,
                           const struct qp_tenant *other, uint64_t now)
{
    int64_t ahead = cur->deficit_ns * weight(s, other) - other->deficit_ns * weight(s, cur);
    if (!lends(s) || !other->returned)
        return QP_NEVER;
    return ahead < 0 ? now : now + (uint64_t)(ahead / weight(s, other)) + 1;
}

/* Online interrupts quanta. If each went on as a new one afterwards, with online coming back sooner
 * than it ends, the others would never run. */
static bool loses_after_online(const struct qp_card *c, int k, const struct members *m)
{
    const struct qp_class *s = &c->cls[k];
    int32_t other = qp_select_next(c, k, m, s->current);
    return !s->resumed && other >= 0 && !goes_first(s, &c->tenant[s->current], &c->tenant[other]);
}

/* Does the current tenant have to give the card to another one now? */
static bool quantum_over(const struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    const struct qp_class *s = &c->cls[k];
    const struct qp_tenant *cur = &c->tenant[s->current];
    if (is_barred(cur) || cur->out_of_budget || loses_after_online(c, k, m))
        return true;
    int32_t other = qp_select_next(c, k, m, s->current);
    if (other < 0)
        return false;
    if (!cur->runnable && now >= pause_ends_at(s, cur))
        return true;
    if (now >= claimed_at(s, cur, &c->tenant[other], now))
        return true;
    return now >= quantum_end(c, s, m) && !goes_first(s, cur, &c->tenant[other]);
}

/* Closes the current gate. Its work is awaited before the next one opens. A launch may have passed
 * the gate of a tenant that showed no work: it is sampled once more. */
static void begin_drain(struct qp_card *c, struct qp_class *s, uint64_t now)
{
    struct qp_tenant *d = &c->tenant[s->current];
    d->backlogged = d->runnable;
    d->pause_ns -= d->runnable ? d->pause_ns / 8 : 0; /* no pause ended this quantum */
    s->draining = s->current;
    s->current = -1;
    s->closed_idle = !d->undrained && is_open(d);
    c->resample |= s->closed_idle;
    s->drain_from_ns = now;
}

/* Is the work of a former tenant still awaited? */
static bool drains(const struct qp_card *c, const struct qp_class *s, uint64_t now)
{
    if (s->draining < 0)
        return false;
    if (s->closed_idle && c->resample)
        return true;
    return c->tenant[s->draining].undrained && now < s->drain_from_ns + QP_DRAIN_TIMEOUT_NS;
}

/* Work that ran alone until now goes on: its use begins at once. */
static void begin_quantum(struct qp_card *c, int k, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    const struct qp_tenant *cur = &c->tenant[s->current];
    bool goes_on = is_open(cur) && cur->undrained;
    s->began_deficit_ns = cur->deficit_ns;
    s->began_weight = weight(s, cur);
    c->tenant[s->current].returned = 0;
    s->opened_ns = now;
    s->use_from_ns = goes_on ? now : 0;
    qp_begin_slice(c, k, goes_on ? now : now + QP_START_NS);
}

/* Returns the index of the one member whose gate is open, or -1 while a former one drains. */
int32_t qp_choose_open(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    bool fresh = !s->resumed || !s->contended;
    if (!s->resumed)
        s->drain_from_ns = now; /* the drain timeout does not run while the class is closed */
    if (s->current >= 0 && s->draining < 0 && quantum_over(c, k, m, now))
        begin_drain(c, s, now);
    if (drains(c, s, now))
        return -1;
    s->draining = -1;
    if (s->current < 0) {
        s->current = qp_select_next(c, k, m, -1);
        if (s->current < 0)
            s->current = any_member(c, m);
        if (s->current < 0)
            return -1;
        fresh = true;
    }
    if (fresh)
        begin_quantum(c, k, now);
    else if (now >= quantum_end(c, s, m))
        qp_begin_slice(c, k, now);
    return s->current;
}

/* When the quanta of a class need the next decision. */
uint64_t qp_quantum_wake(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    const struct qp_class *s = &c->cls[k];
    if (!s->contended)
        return QP_NEVER;
    uint64_t wake = is_fixed_share(s) ? qp_budget_wake(c, k, m, now) : QP_NEVER;
    if (s->draining >= 0) {
        uint64_t age = now - s->drain_from_ns, poll = QP_TICK_NS;
        if (!c->tenant[s->draining].at_gate)
            poll = min_u64(age / QP_DRAIN_PARTS, poll);
        wake = min_u64(wake, now + max_u64(poll, QP_DRAIN_POLL_NS));
        return min_u64(wake, s->drain_from_ns + QP_DRAIN_TIMEOUT_NS);
    }
    if (s->current < 0)
        return wake;
    const struct qp_tenant *cur = &c->tenant[s->current];
    if (!s->use_from_ns && cur->runnable && now < s->opened_ns + QP_START_NS)
        wake = min_u64(wake, s->opened_ns + QP_START_NS);
    int32_t other = qp_select_next(c, k, m, s->current);
    if (other < 0)
        return wake;
    if (!cur->runnable)
        wake = min_u64(wake, pause_ends_at(s, cur));
    if (s->use_from_ns) /* until then its credit does not fall */
        wake = min_u64(wake, claimed_at(s, cur, &c->tenant[other], now));
    return min_u64(wake, quantum_end(c, s, m));
}
