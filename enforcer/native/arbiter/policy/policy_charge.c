/* SPDX-License-Identifier: Apache-2.0
 *
 * Charges of one class: which tenants used the card since the last decision, and the part of that
 * time that each is entitled to. The current tenant pays from the first launch of its quantum until
 * its last work was seen to end.
 */
#include "policy/policy_parts.h"

/* Notes when the use of the current quantum began: at its first launch, QP_START_NS after the
 * opening at the latest. Work that never rang counts from the opening. */
static void note_use(struct qp_card *c, int k, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    const struct qp_tenant *t = &c->tenant[s->current];
    uint64_t latest = s->opened_ns + QP_START_NS, from = 0;
    if (s->use_from_ns)
        return;
    if (t->used_from_ns >= s->opened_ns && t->used_from_ns <= now)
        from = min_u64(t->used_from_ns, latest);
    else if (t->undrained)
        from = s->opened_ns;
    else if (t->runnable && now >= latest)
        from = latest;
    if (!from)
        return;
    s->use_from_ns = max_u64(from, s->charged_until_ns);
    qp_begin_slice(c, k, s->use_from_ns);
}

/* Use by samples: all of an interval with work at both ends. Work that ended in it counts until the
 * end that its program reported. Where none is known it is half of the interval. Under a limit it
 * is all of it, or kernels that end right before each sample would evade the limit. An idle tenant
 * that rings began at its ring; under a limit, as long before as a ring may take to be heard. */
static uint64_t used_by_samples(const struct qp_class *s, const struct qp_tenant *t, bool before,
                                uint64_t from, uint64_t now)
{
    uint64_t span = min_u64(now - from, QP_SOLO_TICK_NS);
    if (before && t->undrained)
        return now - from;
    if (before && t->reported_end_ns)
        return min_u64(span, t->reported_end_ns > from ? t->reported_end_ns - from : 0);
    if (before || (t->undrained && !(t->gate & (QG_GATE_NOTIFY | QG_GATE_CLOSED))))
        return is_fixed_share(s) ? span : span / 2;
    bool rang = t->undrained && t->gate & QG_GATE_NOTIFY;
    return rang && is_fixed_share(s) ? min_u64(span, QP_DRAIN_POLL_NS) : 0;
}

/* What one member used since the last decision. While its gate is open no other may run: it pays
 * for all of that time if others wait. A drain ended halfway through its last interval on average;
 * under a limit all of that counts. */
static uint64_t used_by(struct qp_card *c, int k, uint32_t i, bool others, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    const struct qp_tenant *t = &c->tenant[i];
    uint64_t span = now - c->last_ns;
    if (s->draining == (int32_t)i && t->was_undrained)
        return t->undrained || is_fixed_share(s) ? span
                                                 : span - min_u64(span / 2, QP_DRAIN_POLL_NS);
    if (s->current != (int32_t)i || !is_open(t))
        return used_by_samples(s, t, t->was_undrained, c->last_ns, now);
    note_use(c, k, now);
    uint64_t from = max_u64(s->use_from_ns, s->charged_until_ns);
    if (!s->use_from_ns || now <= from)
        return 0;
    if (others)
        return now - from;
    bool began = t->used_from_ns >= from;
    return used_by_samples(s, t, began || t->was_undrained, began ? t->used_from_ns : from, now);
}

/* Did any member other than the current one compete since the last decision, or drain? */
static bool others_compete(const struct qp_card *c, const struct qp_class *s,
                           const struct members *m)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        bool drains = s->draining == (int32_t)m->at[j] && t->was_undrained;
        if (s->current != (int32_t)m->at[j] && ((t->was_runnable && !t->out_of_budget) || drains))
            return true;
    }
    return false;
}

/* Shows work on the card outside its quantum and its drain: the drain timed out, or it lies. The
 * arbiter cannot tell which, so no charge of another tenant depends on it. */
static bool outside_quantum(const struct qp_card *c, const struct qp_class *s, uint32_t i)
{
    const struct qp_tenant *t = &c->tenant[i];
    return (t->was_undrained || t->undrained) && s->current != (int32_t)i &&
           s->draining != (int32_t)i;
}

/* It is debited what it used beyond its part of the others' use, and credited only as one that
 * waits. */
static void settle_outside_quantum(struct qp_tenant *t, int64_t more)
{
    if (more > 0 || t->runnable)
        t->deficit_ns -= clamp_deficit(more);
}

/* A member that neither used the card nor was runnable loses its credit after a gap, and works its
 * debt off. While others take quanta, its place is at best beside the one whose quantum it is: so
 * whoever comes back from a pause is next, and cannot save credit for more than that. */
static void settle_idle(struct qp_tenant *t, int64_t part, int64_t best, uint64_t now)
{
    bool gap = !t->idle_since_ns || now - t->idle_since_ns < QP_GAP_NS;
    if (t->deficit_ns < best)
        t->deficit_ns = t->deficit_ns + part > best ? best : t->deficit_ns + part;
    else if (!gap)
        t->deficit_ns = best;
}

/* The credit that puts a member beside the one whose quantum it is, as that stood when it began. */
static int64_t place_beside(const struct qp_class *s, const struct qp_tenant *t)
{
    return lends(s) && s->began_weight ? s->began_deficit_ns * weight(s, t) / s->began_weight : 0;
}

/* Where a member has more credit (sign 1) or debt (-1) than the bound, the deficits of all are
 * moved back by weight, so the order of the quanta stays. They may rise or fall together, since
 * idle members and work outside a quantum are settled without a debit or credit of the others.
 * Debt for work outside a quantum does not move the others, as the report of it may be false. */
static void bound(struct qp_card *c, struct qp_class *s, const struct members *m, int sign)
{
    int64_t beyond = 0, of = 1;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        int64_t more = sign * t->deficit_ns - QP_DEFICIT_MAX_NS;
        if (more * of <= beyond * weight(s, t) || (sign < 0 && outside_quantum(c, s, m->at[j])))
            continue;
        beyond = more;
        of = weight(s, t);
    }
    for (uint32_t j = 0; beyond && j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        t->deficit_ns -= sign * (beyond * weight(s, t) + of - 1) / of;
    }
    if (beyond)
        s->began_deficit_ns -= sign * (beyond * s->began_weight + of - 1) / of;
}

/* Each member that took part is credited its weighted part of their use, and debited its own. */
static void settle(struct qp_card *c, int k, const struct members *m, const uint64_t used[],
                   uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    int64_t dt = (int64_t)min_u64(now - c->last_ns, QP_DEFICIT_MAX_NS), total = 0, sum = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (outside_quantum(c, s, m->at[j]) || (!used[j] && !t->was_runnable))
            continue;
        total += (int64_t)used[j];
        sum += weight(s, t);
    }
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        int64_t w = weight(s, t), own = (int64_t)used[j], part = sum ? total * w / sum : 0;
        if (outside_quantum(c, s, m->at[j]))
            settle_outside_quantum(t, own - part);
        else if (used[j] || t->was_runnable)
            t->deficit_ns += clamp_deficit(part - own);
        else
            settle_idle(t, dt * w / (sum + w), place_beside(s, t), now);
    }
    bound(c, s, m, 1);
    bound(c, s, m, -1);
    for (uint32_t j = 0; j < m->n; j++)
        c->tenant[m->at[j]].deficit_ns = clamp_deficit(c->tenant[m->at[j]].deficit_ns);
}

/* Charges the time since the last decision. A class that is not contended is charged nothing, and
 * its old debts fade. */
void qp_charge(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    uint64_t used[QP_MAX_TENANTS], passed = now - c->last_ns, total = 0;
    bool others = others_compete(c, s, m);
    for (uint32_t j = 0; j < m->n; j++) {
        used[j] = s->contended ? used_by(c, k, m->at[j], others, now) : 0;
        c->tenant[m->at[j]].service_ns += used[j];
        total += used[j];
        if (is_fixed_share(s))
            qp_budget_charge(c, m->at[j], now, passed, used[j]);
        if (!s->contended)
            settle_idle(&c->tenant[m->at[j]], (int64_t)min_u64(passed, QP_DEFICIT_MAX_NS), 0, now);
    }
    if (s->contended)
        settle(c, k, m, used, now);
    /* the begin of a quantum is charged once its first use is known */
    bool pending = s->contended && s->current >= 0 && is_open(&c->tenant[s->current]) &&
                   !s->use_from_ns && now < s->opened_ns + QP_START_NS;
    if (total || !pending)
        s->charged_until_ns = now;
}
