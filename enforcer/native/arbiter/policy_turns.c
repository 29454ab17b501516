/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns inside one class: who used the card, who has the best claim, when a turn ends and when the next one begins.
 *
 * Charged is the time from the first launch of a turn until the last completion was seen, less half the time between
 * the last two looks at it: neither waking up nor looking late costs a tenant anything, so that one that keeps the
 * card for nine slices on end has no advantage over one that drains after each.
 */
#include "policy_parts.h"

static int64_t clamp_deficit(int64_t v) {
    if (v > QP_DEFICIT_MAX_NS) return QP_DEFICIT_MAX_NS;
    return v < -QP_DEFICIT_MAX_NS ? -QP_DEFICIT_MAX_NS : v;
}

/* Who has less than half an equal part comes in shorter turns and more often: else the others would see all of its part in
 * one stretch. */
static uint64_t long_turn(const struct qp_card *c, const struct qp_class *s) {
    uint64_t longest = QP_LONG_TURN * c->slice_ns;
    if (s->rivals > 2) longest = (s->rivals > QP_CROWD_MOST ? QP_MANY_TURN : QP_CROWD_TURN) * c->slice_ns;
    if (s->rivals < 2) return longest;
    uint64_t fair = longest * (uint64_t)weight(s, &c->tenant[s->holder]) * s->rivals / (uint64_t)s->weights;
    return max_u64(longest / 2, min_u64(2 * fair, longest));
}

/* A slice begins. Who waits, in the offline class or for a budget, for a turn that it will use to the end gains nothing
 * by a short one, and changing hands costs. What drains after the closing is part of the turn. */
static void set_slice(struct qp_card *c, int k, uint64_t from) {
    struct qp_class *s = &c->cls[k];
    bool may_last = k == OFFLINE || fixed(s);
    uint64_t longer = long_turn(c, s), drain = c->tenant[s->holder].drain_ns;
    s->slice_end_ns = from + c->slice_ns;
    s->turn_end_ns = may_last ? from + longer - min_u64(drain, longer / 2) : s->slice_end_ns;
}

/* When the holder began to use its turn, as far as that can be said by now; 0 = it has not. */
static uint64_t use_start(const struct qp_card *c, const struct qp_class *s, uint64_t now) {
    const struct qp_tenant *t = &c->tenant[s->holder];
    if (t->used_from_ns >= s->opened_ns && t->used_from_ns <= now) return t->used_from_ns;
    if (t->undrained) return s->opened_ns; /* it is at work and never rang */
    return t->wants && now >= s->opened_ns + QP_START_NS ? s->opened_ns + QP_START_NS : 0;
}

static void note_use(struct qp_card *c, int k, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    if (s->use_ns || !(s->use_ns = use_start(c, s, now))) return;
    s->use_ns = max_u64(s->use_ns, s->booked_ns);
    if (c->last_user != s->holder) s->use_ns += c->switch_ns;
    c->last_user = s->holder;
    set_slice(c, k, s->use_ns);
}

static bool holds(const struct qp_card *c, const struct qp_class *s, uint32_t i) {
    return s->holder == (int32_t)i && !(c->tenant[i].gate & QG_GATE_CLOSED);
}

/* By samples: all of an interval with work at both ends, half of one with work at one end. Who was idle and rings
 * begins now: nobody had looked at it for long. */
static uint64_t sampled(const struct qp_tenant *t, uint64_t span, uint32_t before, uint32_t after) {
    if (before && after) return span;
    if (!before && (!after || (t->gate & (QG_GATE_NOTIFY | QG_GATE_CLOSED)))) return 0;
    return before || after ? min_u64(span, QP_SOLO_TICK_NS) / 2 : 0;
}

/* What one member used since the last booking. Nobody else may run while the gate is open for the holder, so it pays
 * for all of that time where others wait. */
static uint64_t used_by(struct qp_card *c, int k, uint32_t i, bool others, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    const struct qp_tenant *t = &c->tenant[i];
    bool first_look = s->draining == (int32_t)i && !s->looked && t->flew;
    if (first_look && fixed(s)) return now - c->last_ns; /* it may have come late: a limit errs to the safe side */
    if (s->draining == (int32_t)i && s->looked && t->flew && !t->undrained) {
        /* Later looks come often, or when it rang at its end: that it ended halfway would be wrong after a long sleep. */
        uint64_t span = now - c->last_ns;
        return span - min_u64(span / 2, QP_DRAIN_POLL_NS);
    }
    if (!holds(c, s, i)) return sampled(t, now - c->last_ns, t->flew, t->undrained);
    note_use(c, k, now);
    uint64_t from = max_u64(s->use_ns, s->booked_ns);
    if (!s->use_ns || now <= from) return 0;
    return others ? now - from : sampled(t, now - from, t->was_busy, t->wants || t->undrained);
}

/* A member that neither used nor wanted the card: credit is given away at once, debt is paid off by waiting. */
static void settle_absent(struct qp_tenant *t, int64_t part) {
    if (t->deficit_ns > 0) t->deficit_ns = 0;
    else t->deficit_ns = t->deficit_ns + part > 0 ? 0 : t->deficit_ns + part;
}

/* Everyone who took part is entitled to its weight of what was used; users are debited. */
static void settle(struct qp_card *c, int k, const struct side *m, uint64_t total, uint64_t dt) {
    struct qp_class *s = &c->cls[k];
    int64_t sum = 0;
    s->rivals = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (!t->used_ns && !t->wanted) continue;
        sum += weight(s, t);
        s->rivals++;
    }
    s->weights = sum;
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        int64_t w = weight(s, t);
        t->service_ns += t->used_ns;
        if (t->used_ns || t->wanted) {
            int64_t due = total ? (int64_t)total * w / sum : 0;
            t->deficit_ns = clamp_deficit(t->deficit_ns + due - (int64_t)t->used_ns);
        } else {
            settle_absent(t, (int64_t)dt * w / (sum + w));
        }
    }
}

/* Does anybody but the holder compete, or did at the last decision? */
static bool others_compete(const struct qp_card *c, const struct qp_class *s, const struct side *m) {
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (s->holder != (int32_t)m->at[j] && (t->wished || t->flew)) return true;
    }
    return false;
}

/* Nobody takes turns: old debts fade with time, nothing is charged. */
static void charge_nobody(struct qp_card *c, const struct side *m, uint64_t dt) {
    for (uint32_t j = 0; j < m->n; j++) {
        c->tenant[m->at[j]].used_ns = 0;
        settle_absent(&c->tenant[m->at[j]], (int64_t)dt);
    }
}

/* Books the time since the last booking. Σ used <= that time: who overlaps divides it. */
void qp_charge(struct qp_card *c, int k, const struct side *m, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    uint64_t dt = min_u64(now - c->last_ns, 1000 * QP_MS), total = 0, passed = now - c->last_ns;
    if (!s->contended) {
        charge_nobody(c, m, dt);
        s->booked_ns = now;
        return;
    }
    bool others = others_compete(c, s, m);
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        t->used_ns = used_by(c, k, m->at[j], others, now);
        total += t->used_ns;
    }
    uint64_t most = min_u64(now - s->booked_ns, 4000 * QP_MS);
    for (uint32_t j = 0; total > most && j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        t->used_ns = (uint64_t)((double)t->used_ns * (double)most / (double)total);
    }
    settle(c, k, m, min_u64(total, most), dt);
    for (uint32_t j = 0; fixed(s) && j < m->n; j++) {
        qp_budget_book(c, m->at[j], now, passed, c->tenant[m->at[j]].used_ns);
    }
    /* the beginning of a turn is booked once it is known when it was used first */
    bool open = s->holder >= 0 && holds(c, s, (uint32_t)s->holder);
    bool pending = open && !s->use_ns && now < s->opened_ns + QP_START_NS;
    if (total || !pending) s->booked_ns = now;
}

/* Is a's claim better than b's? Credit per weight; at a tie work already on the card avoids a drain. */
static bool better(const struct qp_class *s, const struct qp_tenant *a, const struct qp_tenant *b) {
    int64_t left = a->deficit_ns * weight(s, b), right = b->deficit_ns * weight(s, a);
    if (left != right) return left > right;
    return a->undrained && !b->undrained;
}

/* The best claim among those who compete, except one; -1 if there is none. */
int32_t qp_best_claim(const struct qp_card *c, int k, const struct side *m, int32_t except) {
    const struct qp_class *s = &c->cls[k];
    int32_t best = -1;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (!claims(t) || (int32_t)m->at[j] == except) continue;
        if (best < 0 || better(s, t, &c->tenant[best])) best = m->at[j];
    }
    return best;
}

/* Nobody competes: somebody's gate stands open, so that its first launch need not wait. */
static int32_t any_member(const struct qp_card *c, const struct side *m) {
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (!t->suspended && !t->spent) return m->at[j];
    }
    return -1;
}

/* Where somebody waits who may need the card only for a moment, a turn is one slice. */
static uint64_t end_of_turn(const struct qp_card *c, const struct qp_class *s, const struct side *m) {
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (s->holder != (int32_t)m->at[j] && claims(t) && !t->greedy) return s->slice_end_ns;
    }
    return s->turn_end_ns;
}

/* When a holder that shows no work passes its turn on. */
static uint64_t pass_on_at(const struct qp_class *s, const struct qp_tenant *h) {
    return max_u64(max_u64(h->last_work_ns, s->opened_ns) + QP_PASS_ON_NS, h->idle_since_ns + QP_PAUSE_NS);
}

/* Does the holder give the card to somebody else now? */
static bool must_leave(const struct qp_card *c, int k, const struct side *m, uint64_t now) {
    const struct qp_class *s = &c->cls[k];
    const struct qp_tenant *h = &c->tenant[s->holder];
    if (h->suspended || h->spent) return true;
    int32_t other = qp_best_claim(c, k, m, s->holder);
    if (other < 0) return false;
    if (!h->wants && now >= pass_on_at(s, h)) return true;
    return now >= end_of_turn(c, s, m) && !better(s, h, &c->tenant[other]);
}

/* Learns how long the tenant takes to drain, and how long at least, so that it is not looked at all the time. Too short
 * costs a few looks, too long lets the card stand still: it shrinks at once and grows slowly, so that few drains are
 * shorter, also where they differ a hundredfold. */
static void learn_drain(struct qp_tenant *t, uint64_t took, bool looked) {
    uint64_t mean = t->early_ns + took / 8 - t->early_ns / 8;
    uint64_t most = t->early_ns + max_u64(t->early_ns / 8, 5 * QP_DRAIN_POLL_NS);
    t->early_ns = looked ? min_u64(mean, most) : t->early_ns / 4;
    t->drain_ns = t->drain_ns + took / 8 - t->drain_ns / 8;
    t->tail_ns = max_u64(took, t->tail_ns - t->tail_ns / 8);
}

static uint64_t first_look(const struct qp_class *s, const struct qp_tenant *t) {
    return s->drain_from_ns + max_u64(t->early_ns / 4 * 3, QP_DRAIN_POLL_NS);
}

/* Lets the holder leave when its time is over; true while its last work is awaited. */
static bool hand_over(struct qp_card *c, int k, const struct side *m, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    if (!s->resumed) s->drain_from_ns = now; /* the class was closed meanwhile: that time says nothing */
    if (s->holder >= 0 && must_leave(c, k, m, now)) {
        c->tenant[s->holder].greedy = c->tenant[s->holder].wants;
        s->draining = s->holder;
        s->holder = -1;
        s->looked = 0;
        s->drain_from_ns = now;
        s->drain_until_ns = now + (QP_DRAIN_MAX_NS >> c->tenant[s->draining].overdue);
    }
    if (s->draining < 0) return false;
    struct qp_tenant *d = &c->tenant[s->draining];
    if (d->undrained && now < s->drain_until_ns) {
        if (now > s->drain_from_ns) s->looked = 1;
        return true;
    }
    if (now > s->drain_from_ns) learn_drain(d, now - s->drain_from_ns, s->looked);
    /* Hung, or lying about its work: it shall not take from others what it cannot be charged for in full. */
    d->overdue = !d->undrained ? 0 : d->overdue < QP_OVERDUE_MAX ? d->overdue + 1 : QP_OVERDUE_MAX;
    s->draining = -1;
    return false;
}

static void begin_turn(struct qp_card *c, int k, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    const struct qp_tenant *h = &c->tenant[s->holder];
    bool goes_on = !(h->gate & QG_GATE_CLOSED) && h->undrained; /* it ran alone until now */
    s->opened_ns = now;
    s->use_ns = goes_on ? now : 0;
    set_slice(c, k, goes_on ? now : now + QP_START_NS);
    if (goes_on) c->last_user = s->holder;
}

/* One at a time: returns the index of the member whose gate is open, or -1 while a former holder drains. */
int32_t qp_take_turns(struct qp_card *c, int k, const struct side *m, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    bool fresh = !s->resumed || !s->contended;
    if (hand_over(c, k, m, now)) return -1;
    if (s->holder < 0) {
        s->holder = qp_best_claim(c, k, m, -1);
        if (s->holder < 0) s->holder = any_member(c, m);
        if (s->holder < 0) return -1;
        fresh = true;
    }
    if (fresh) begin_turn(c, k, now);
    else if (now >= end_of_turn(c, s, m)) set_slice(c, k, now);
    return s->holder;
}

/* How much longer the holder surely has the card, if nobody comes who is not there yet: as long as its turn lasts, then
 * until its credit per weight has fallen to that of another one. */
static uint64_t stays_for(const struct qp_card *c, int k, const struct side *m, uint64_t now, uint64_t most) {
    const struct qp_class *s = &c->cls[k];
    const struct qp_tenant *h = &c->tenant[s->holder];
    uint64_t end = end_of_turn(c, s, m), turn = end > now ? end - now : 0, credit = most;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (t == h || !t->wants || t->suspended) continue;
        int64_t ahead = h->deficit_ns - t->deficit_ns * weight(s, h) / weight(s, t);
        credit = min_u64(credit, ahead > 0 ? (uint64_t)ahead : 0);
        if (!t->greedy && !t->spent) return min_u64(turn, most);
    }
    return min_u64(most, max_u64(turn, credit));
}

/* In the middle of a long turn kernels may queue up even where nobody knows how long they are: the card does not wait for
 * the program between two of them, and what is queued has ended long before the turn does. */
void qp_make_room(struct qp_card *c, int k, const struct side *m, uint64_t now) {
    const struct qp_class *s = &c->cls[k];
    for (uint32_t j = 0; j < m->n; j++) c->tenant[m->at[j]].roomy = 0;
    if (!s->contended || s->holder < 0 || s->draining >= 0) return;
    struct qp_tenant *h = &c->tenant[s->holder];
    uint64_t flight = QP_DEEP_WINDOW_US * 1000ull + QP_TICK_NS; /* all of that must fit into a limit */
    if (h->tail_ns < QP_DEEP_TAIL_NS || stays_for(c, k, m, now, QP_DEEP_ROOM_NS) < QP_DEEP_ROOM_NS) return;
    h->roomy = !fixed(s) || qp_budget_lasts(c, (uint32_t)s->holder, now, flight) >= flight;
}

/* When the turns of a class change next. */
uint64_t qp_turn_wake(struct qp_card *c, int k, const struct side *m, uint64_t now) {
    const struct qp_class *s = &c->cls[k];
    if (!s->contended) return QP_NEVER;
    uint64_t wake = fixed(s) ? qp_budget_wake(c, k, m, now) : QP_NEVER;
    if (s->draining >= 0) {
        uint64_t first = first_look(s, &c->tenant[s->draining]), waited = now - s->drain_from_ns;
        uint64_t next = now + max_u64(QP_DRAIN_POLL_NS, min_u64(waited / 32, QP_TICK_NS));
        return min_u64(wake, min_u64(now < first ? first : next, s->drain_until_ns));
    }
    if (s->holder < 0) return wake;
    const struct qp_tenant *h = &c->tenant[s->holder];
    if (!s->use_ns && h->wants && now < s->opened_ns + QP_START_NS) wake = min_u64(wake, s->opened_ns + QP_START_NS);
    if (qp_best_claim(c, k, m, s->holder) < 0) return wake;
    uint64_t end = end_of_turn(c, s, m);
    return min_u64(wake, h->wants ? end : min_u64(end, pass_on_at(s, h)));
}
