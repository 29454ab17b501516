/* SPDX-License-Identifier: Apache-2.0
 *
 * Charges of one class: which tenants used the card since the last decision, and the part of that
 * time that each is entitled to.
 *
 * A tenant is charged from the first launch of its quantum until its last completion was sampled,
 * less half the time between the last two samples. So neither waking up nor late sampling costs a
 * tenant anything. One that keeps the card for nine slices gains nothing over one that drains after
 * each slice.
 */
#include "policy/policy_parts.h"

/* most ns of waiting that pay debt off at once: no debt is larger (QP_DEFICIT_MAX_NS) */
#define MAX_WAITED_NS (1000 * QP_MS)

static int64_t clamp_deficit(int64_t v)
{
    if (v > QP_DEFICIT_MAX_NS)
        return QP_DEFICIT_MAX_NS;
    return v < -QP_DEFICIT_MAX_NS ? -QP_DEFICIT_MAX_NS : v;
}

/* First use of the current quantum, as far as it is known at `now`; 0 = not used yet. */
static uint64_t use_start(const struct qp_card *c, const struct qp_class *s, uint64_t now)
{
    const struct qp_tenant *t = &c->tenant[s->current];
    if (t->used_from_ns >= s->opened_ns && t->used_from_ns <= now)
        return min_u64(t->used_from_ns, s->opened_ns + QP_START_NS);
    if (t->undrained)
        return s->opened_ns; /* it has work on the card and never rang */
    return t->runnable && now >= s->opened_ns + QP_START_NS ? s->opened_ns + QP_START_NS : 0;
}

static void note_use(struct qp_card *c, int k, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    if (s->use_from_ns || !(s->use_from_ns = use_start(c, s, now)))
        return;
    s->use_from_ns = max_u64(s->use_from_ns, s->charged_until_ns);
    s->same_tenant = c->last_user == s->current;
    if (s->same_tenant)
        c->tenant[s->current].unsampled_ns =
            min_u64(s->use_from_ns - s->opened_ns, QP_DRAIN_POLL_NS);
    c->last_user = s->current;
    qp_begin_slice(c, k, s->use_from_ns);
}

static bool holds(const struct qp_card *c, const struct qp_class *s, uint32_t i)
{
    return s->current == (int32_t)i && !(c->tenant[i].gate & QG_GATE_CLOSED);
}

/* Use by samples: all of an interval with work at both ends, half of one with work at one end;
 * unsampled_ns is the other half, which it may have used as well. An idle tenant that rings began
 * at its ring or just before, as it was not sampled while idle. */
static uint64_t used_by_samples(struct qp_tenant *t, uint64_t span, uint32_t before, uint32_t after)
{
    if (before && after)
        return span;
    if (!before && !after)
        return 0;
    if (!before && (t->gate & (QG_GATE_NOTIFY | QG_GATE_CLOSED))) {
        t->unsampled_ns = t->gate & QG_GATE_CLOSED ? 0 : min_u64(span, QP_DRAIN_POLL_NS);
        return 0;
    }
    uint64_t half = min_u64(span, QP_SOLO_TICK_NS) / 2;
    t->unsampled_ns = min_u64(span, QP_UNSAMPLED_NS) - half;
    return half;
}

/* Time since the last charge in which two tenants were on the card, as the next gate was opened
 * before the predicted end. Until that end all time is the draining tenant's. What follows is
 * shared by both, since the card divides its time between them. */
static uint64_t overlap_time(const struct qp_card *c, const struct qp_class *s, uint64_t now)
{
    uint64_t from =
        max_u64(s->predicted_end_ns + QP_LEAD_NS, max_u64(c->last_ns, s->charged_until_ns));
    return s->predicted_end_ns && now > from ? now - from : 0;
}

/* What one member used since the last charge. While its gate is open no other member may run. So it
 * pays for all of that time if others wait. */
static uint64_t used_by(struct qp_card *c, int k, uint32_t i, bool others, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    struct qp_tenant *t = &c->tenant[i];
    uint64_t overlap = overlap_time(c, s, now);
    t->unsampled_ns = 0;
    if (overlap && s->draining == (int32_t)i && t->was_undrained)
        return now - c->last_ns - overlap / 2;
    if (s->predicted_end_ns && s->current == (int32_t)i)
        return overlap / 2;
    bool ended = s->draining == (int32_t)i && t->was_undrained && !t->undrained;
    if (ended && !s->seen_draining && is_fixed_share(s))
        return now - c->last_ns; /* the first sample may have come late */
    if (ended && s->seen_draining) {
        /* Polls are frequent during a drain, or the tenant rang at its end. So it did not end
         * halfway between two samples far apart. A limit errs to the safe side. */
        uint64_t span = now - c->last_ns;
        uint64_t late = min_u64(span / 2, QP_DRAIN_POLL_NS) / (is_fixed_share(s) ? 2 : 1);
        /* After another tenant's quantum the context switch is charged, so it needs no more. */
        t->unsampled_ns = s->same_tenant ? late : 0;
        return span - late;
    }
    if (!holds(c, s, i))
        return used_by_samples(t, now - c->last_ns, t->was_undrained, t->undrained);
    note_use(c, k, now);
    uint64_t from = max_u64(s->use_from_ns, s->charged_until_ns);
    if (!s->use_from_ns || now <= from)
        return 0;
    return others ? now - from
                  : used_by_samples(t, now - from, t->was_busy, t->runnable || t->undrained);
}

/* A member that neither used the card nor was runnable. It loses its credit after
 * QP_KEEP_CREDIT_NS, in case its thread was only late. Waiting pays its debt off. */
static void settle_idle(struct qp_tenant *t, int64_t part, uint64_t now)
{
    if (t->deficit_ns > 0)
        t->deficit_ns = now - t->last_runnable_ns < QP_KEEP_CREDIT_NS ? t->deficit_ns : 0;
    else
        t->deficit_ns = t->deficit_ns + part > 0 ? 0 : t->deficit_ns + part;
}

/* Shows work on the card outside its quantum and its drain: the drain timed out, or it hangs, or it
 * reports work it does not have. The arbiter cannot tell whether the card works for it. So no
 * charge of another tenant may depend on it. */
static bool outside_quantum(const struct qp_card *c, const struct qp_class *s, uint32_t i)
{
    const struct qp_tenant *t = &c->tenant[i];
    return (t->was_undrained || t->undrained) && s->current != (int32_t)i &&
           s->draining != (int32_t)i;
}

static bool took_part(const struct qp_card *c, const struct qp_class *s, uint32_t i)
{
    return (c->tenant[i].used_ns || c->tenant[i].was_runnable) && !outside_quantum(c, s, i);
}

/* It is debited what it used beyond its part of the others' use. It gets no credit. */
static void settle_outside_quantum(struct qp_tenant *t, int64_t part)
{
    int64_t more = (int64_t)t->used_ns - part;
    if (more > 0 || t->runnable)
        t->deficit_ns = clamp_deficit(t->deficit_ns - more);
}

/* Credits and debts of the members that took part need not add up to zero: other members worked
 * debts off, or reached a bound. If one member would exceed the bound for that reason, all move
 * back by weight. Clamping that one alone would give some of its part to the others in each
 * quantum. */
static void bound_deficits(struct qp_card *c, const struct qp_class *s, const struct members *m,
                           int64_t balance, int64_t sum)
{
    bool beyond = false;
    for (uint32_t j = 0; !beyond && j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        beyond = took_part(c, s, m->at[j]) && clamp_deficit(t->deficit_ns) != t->deficit_ns;
    }
    for (uint32_t j = 0; beyond && j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        if (took_part(c, s, m->at[j]))
            t->deficit_ns = clamp_deficit(t->deficit_ns - balance * weight(s, t) / sum);
    }
}

/* Each member that took part is credited its weighted part of the total use, and debited its own
 * use. */
static void settle_deficits(struct qp_card *c, int k, const struct members *m, uint64_t dt,
                            uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    int64_t total = 0, sum = 0, balance = 0;
    s->weight_sum = 0;
    s->competitors = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        bool part = took_part(c, s, m->at[j]);
        total += part ? (int64_t)t->used_ns : 0;
        sum += part ? weight(s, t) : 0;
        if (!part && !t->was_runnable)
            continue;
        s->weight_sum += weight(s, t);
        s->competitors++;
    }
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        int64_t w = weight(s, t), part = sum ? total * w / sum : 0;
        t->service_ns += t->used_ns;
        if (took_part(c, s, m->at[j]))
            balance += t->deficit_ns += part - (int64_t)t->used_ns;
        else if (outside_quantum(c, s, m->at[j]))
            settle_outside_quantum(t, part);
        else
            settle_idle(t, (int64_t)dt * w / (sum + w), now);
    }
    if (sum)
        bound_deficits(c, s, m, balance, sum);
}

/* Does any member other than the current one compete, or did it at the last decision? */
static bool others_compete(const struct qp_card *c, const struct qp_class *s,
                           const struct members *m)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        bool drains = s->draining == (int32_t)m->at[j] && t->was_undrained;
        if (s->current != (int32_t)m->at[j] && (t->was_competing || drains))
            return true;
    }
    return false;
}

/* The class is not contended: nothing is charged, and old debts fade with time. */
static void fade_debts(struct qp_card *c, const struct members *m, uint64_t dt, uint64_t now)
{
    for (uint32_t j = 0; j < m->n; j++) {
        c->tenant[m->at[j]].used_ns = 0;
        settle_idle(&c->tenant[m->at[j]], (int64_t)dt, now);
    }
}

/* Charges the budgets. A limit errs to the safe side: a member pays as if work outside any quantum
 * had not shared the card with it. */
static void charge_budgets(struct qp_card *c, const struct qp_class *s, const struct members *m,
                           uint64_t now, uint64_t passed, double whole)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        uint64_t used =
            outside_quantum(c, s, m->at[j]) ? t->used_ns : (uint64_t)((double)t->used_ns * whole);
        qp_budget_charge(c, m->at[j], now, passed, used, t->unsampled_ns);
    }
}

/* Charges the time since the last charge. The sum of all use is at most that time; members that
 * overlap divide it. */
void qp_charge(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    uint64_t dt = min_u64(now - c->last_ns, MAX_WAITED_NS), total = 0, sure = 0,
             passed = now - c->last_ns;
    if (!s->contended) {
        fade_debts(c, m, dt, now);
        s->charged_until_ns = now;
        return;
    }
    bool others = others_compete(c, s, m);
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        t->used_ns = used_by(c, k, m->at[j], others, now);
        total += t->used_ns;
        if (!outside_quantum(c, s, m->at[j]))
            sure += t->used_ns;
    }
    uint64_t most = min_u64(now - s->charged_until_ns, MAX_CHARGE_NS);
    for (uint32_t j = 0; total > most && j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        t->used_ns = (uint64_t)((double)t->used_ns * (double)most / (double)total);
    }
    settle_deficits(c, k, m, dt, now);
    bool divided = sure && total > most && sure < total;
    if (is_fixed_share(s))
        charge_budgets(c, s, m, now, passed,
                       divided ? (double)total / (double)max_u64(sure, most) : 1);
    /* the begin of a quantum is charged once its first use is known */
    bool open = s->current >= 0 && holds(c, s, (uint32_t)s->current);
    bool pending = open && !s->use_from_ns && now < s->opened_ns + QP_START_NS;
    if (total || !pending)
        s->charged_until_ns = now;
}
