/* SPDX-License-Identifier: Apache-2.0
 *
 * Books of one class: who used the card since the last decision, and what everyone is entitled to
 * of that.
 *
 * Charged is the time from the first launch of a turn until the last completion was seen, less half
 * the time between the last two looks at it: neither waking up nor looking late costs a tenant
 * anything, so that one that keeps the card for nine slices on end has no advantage over one that
 * drains after each.
 */
#include "policy/policy_parts.h"

static int64_t clamp_deficit(int64_t v)
{
    if (v > QP_DEFICIT_MAX_NS)
        return QP_DEFICIT_MAX_NS;
    return v < -QP_DEFICIT_MAX_NS ? -QP_DEFICIT_MAX_NS : v;
}

/* When the holder began to use its turn, as far as that can be said by now; 0 = it has not. */
static uint64_t use_start(const struct qp_card *c, const struct qp_class *s, uint64_t now)
{
    const struct qp_tenant *t = &c->tenant[s->holder];
    if (t->used_from_ns >= s->opened_ns && t->used_from_ns <= now)
        return min_u64(t->used_from_ns, s->opened_ns + QP_START_NS);
    if (t->undrained)
        return s->opened_ns; /* it is at work and never rang */
    return t->wants && now >= s->opened_ns + QP_START_NS ? s->opened_ns + QP_START_NS : 0;
}

static void note_use(struct qp_card *c, int k, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    if (s->use_ns || !(s->use_ns = use_start(c, s, now)))
        return;
    s->use_ns = max_u64(s->use_ns, s->booked_ns);
    s->stayed = c->last_user == s->holder;
    if (s->stayed)
        c->tenant[s->holder].unseen_ns = min_u64(s->use_ns - s->opened_ns, QP_DRAIN_POLL_NS);
    c->last_user = s->holder;
    qp_begin_slice(c, k, s->use_ns);
}

static bool holds(const struct qp_card *c, const struct qp_class *s, uint32_t i)
{
    return s->holder == (int32_t)i && !(c->tenant[i].gate & QG_GATE_CLOSED);
}

/* By samples: all of an interval with work at both ends, half of one with work at one end, of which
 * it may have used all. Who was idle and rings begins now, or a little before: nobody had looked at
 * it for long. */
static uint64_t sampled(struct qp_tenant *t, uint64_t span, uint32_t before, uint32_t after)
{
    if (before && after)
        return span;
    if (!before && !after)
        return 0;
    if (!before && (t->gate & (QG_GATE_NOTIFY | QG_GATE_CLOSED))) {
        t->unseen_ns = t->gate & QG_GATE_CLOSED ? 0 : min_u64(span, QP_DRAIN_POLL_NS);
        return 0;
    }
    uint64_t half = min_u64(span, QP_SOLO_TICK_NS) / 2;
    t->unseen_ns = min_u64(span, QP_UNSEEN_NS) - half;
    return half;
}

/* Two are on the card since the holder's gate was opened ahead of the former one's end. Until that
 * should have come all time is the former one's; what then follows is shared, since the card
 * divides itself between them. */
static uint64_t shared_by_two(const struct qp_card *c, const struct qp_class *s, uint64_t now)
{
    uint64_t from = max_u64(s->foreseen_ns + QP_LEAD_NS, max_u64(c->last_ns, s->booked_ns));
    return s->foreseen_ns && now > from ? now - from : 0;
}

/* What one member used since the last booking. Nobody else may run while the gate is open for the
 * holder, so it pays for all of that time where others wait. */
static uint64_t used_by(struct qp_card *c, int k, uint32_t i, bool others, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    struct qp_tenant *t = &c->tenant[i];
    uint64_t two = shared_by_two(c, s, now);
    t->unseen_ns = 0;
    if (two && s->draining == (int32_t)i && t->flew)
        return now - c->last_ns - two / 2;
    if (s->foreseen_ns && s->holder == (int32_t)i)
        return two / 2;
    bool ended = s->draining == (int32_t)i && t->flew && !t->undrained;
    if (ended && !s->looked && fixed(s))
        return now - c->last_ns; /* it may have come late */
    if (ended && s->looked) {
        /* Looks come often then, or it rang at its end: that it ended halfway would be wrong after
         * a long sleep. A limit errs to the safe side. */
        uint64_t span = now - c->last_ns;
        uint64_t late = min_u64(span / 2, QP_DRAIN_POLL_NS) / (fixed(s) ? 2 : 1);
        /* else the change of context was charged, though nobody used it */
        t->unseen_ns = s->stayed ? late : 0;
        return span - late;
    }
    if (!holds(c, s, i))
        return sampled(t, now - c->last_ns, t->flew, t->undrained);
    note_use(c, k, now);
    uint64_t from = max_u64(s->use_ns, s->booked_ns);
    if (!s->use_ns || now <= from)
        return 0;
    return others ? now - from : sampled(t, now - from, t->was_busy, t->wants || t->undrained);
}

/* A member that neither used nor wanted the card: credit is given away, though not in a moment in
 * which its thread was late; debt is paid off by waiting. */
static void settle_absent(struct qp_tenant *t, int64_t part, uint64_t now)
{
    if (t->deficit_ns > 0)
        t->deficit_ns = now - t->last_work_ns < QP_KEEP_NS ? t->deficit_ns : 0;
    else
        t->deficit_ns = t->deficit_ns + part > 0 ? 0 : t->deficit_ns + part;
}

/* Shows work on the card although neither its turn nor its drain goes on: the drain was cut off, or
 * it hangs, or it lies. Nobody can tell whether the card works for it, so nobody else's books may
 * depend on that. */
static bool left_over(const struct qp_card *c, const struct qp_class *s, uint32_t i)
{
    const struct qp_tenant *t = &c->tenant[i];
    return (t->flew || t->undrained) && s->holder != (int32_t)i && s->draining != (int32_t)i;
}

static bool took_part(const struct qp_card *c, const struct qp_class *s, uint32_t i)
{
    return (c->tenant[i].used_ns || c->tenant[i].wanted) && !left_over(c, s, i);
}

/* It is debited what it used beyond its part of what the others did; who earns no turns saves up
 * nothing. */
static void settle_left_over(struct qp_tenant *t, int64_t part)
{
    int64_t more = (int64_t)t->used_ns - part;
    if (more > 0 || t->wants)
        t->deficit_ns = clamp_deficit(t->deficit_ns - more);
}

/* Credits and debts of those who take part need not cancel out: debts of others were worked off, or
 * bounded. Where one of them reaches the bound for that reason, all move back by weight. To cut off
 * that one alone would give its part to others at each turn. */
static void bound_deficits(struct qp_card *c, const struct qp_class *s, const struct side *m,
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

/* Everyone who took part is entitled to its weight of what they used; users are debited. */
static void settle(struct qp_card *c, int k, const struct side *m, uint64_t dt, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    int64_t total = 0, sum = 0, balance = 0;
    s->weights = 0;
    s->rivals = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        bool part = took_part(c, s, m->at[j]);
        total += part ? (int64_t)t->used_ns : 0;
        sum += part ? weight(s, t) : 0;
        if (!part && !t->wanted)
            continue;
        s->weights += weight(s, t);
        s->rivals++;
    }
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        int64_t w = weight(s, t), part = sum ? total * w / sum : 0;
        t->service_ns += t->used_ns;
        if (took_part(c, s, m->at[j]))
            balance += t->deficit_ns += part - (int64_t)t->used_ns;
        else if (left_over(c, s, m->at[j]))
            settle_left_over(t, part);
        else
            settle_absent(t, (int64_t)dt * w / (sum + w), now);
    }
    if (sum)
        bound_deficits(c, s, m, balance, sum);
}

/* Does anybody but the holder compete, or did at the last decision? */
static bool others_compete(const struct qp_card *c, const struct qp_class *s, const struct side *m)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        bool drains = s->draining == (int32_t)m->at[j] && t->flew;
        if (s->holder != (int32_t)m->at[j] && (t->wished || drains))
            return true;
    }
    return false;
}

/* Nobody takes turns: old debts fade with time, nothing is charged. */
static void charge_nobody(struct qp_card *c, const struct side *m, uint64_t dt, uint64_t now)
{
    for (uint32_t j = 0; j < m->n; j++) {
        c->tenant[m->at[j]].used_ns = 0;
        settle_absent(&c->tenant[m->at[j]], (int64_t)dt, now);
    }
}

/* A limit errs to the safe side: nothing is taken off for what somebody else may have left over on
 * the card. */
static void book_budgets(struct qp_card *c, const struct qp_class *s, const struct side *m,
                         uint64_t now, uint64_t passed, double whole)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        uint64_t used =
            left_over(c, s, m->at[j]) ? t->used_ns : (uint64_t)((double)t->used_ns * whole);
        qp_budget_book(c, m->at[j], now, passed, used, t->unseen_ns);
    }
}

/* Books the time since the last booking. Σ used <= that time: who overlaps divides it. */
void qp_charge(struct qp_card *c, int k, const struct side *m, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    uint64_t dt = min_u64(now - c->last_ns, 1000 * QP_MS), total = 0, sure = 0,
             passed = now - c->last_ns;
    if (!s->contended) {
        charge_nobody(c, m, dt, now);
        s->booked_ns = now;
        return;
    }
    bool others = others_compete(c, s, m);
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        t->used_ns = used_by(c, k, m->at[j], others, now);
        total += t->used_ns;
        if (!left_over(c, s, m->at[j]))
            sure += t->used_ns;
    }
    uint64_t most = min_u64(now - s->booked_ns, 4000 * QP_MS);
    for (uint32_t j = 0; total > most && j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        t->used_ns = (uint64_t)((double)t->used_ns * (double)most / (double)total);
    }
    settle(c, k, m, dt, now);
    bool divided = sure && total > most && sure < total;
    if (fixed(s))
        book_budgets(c, s, m, now, passed,
                     divided ? (double)total / (double)max_u64(sure, most) : 1);
    /* the beginning of a turn is booked once it is known when it was used first */
    bool open = s->holder >= 0 && holds(c, s, (uint32_t)s->holder);
    bool pending = open && !s->use_ns && now < s->opened_ns + QP_START_NS;
    if (total || !pending)
        s->booked_ns = now;
}
