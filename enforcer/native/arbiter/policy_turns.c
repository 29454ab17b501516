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

/* Not where an online tenant would have to wait for both, nor under a limit, which must know exactly who used the card. */
static bool opens_early(const struct qp_card *c, int k) {
    return !fixed(&c->cls[k]) && !(k == OFFLINE && c->awaits_online);
}

/* Who has less than half an equal part comes in shorter turns and more often: else the others would see all of its part in
 * one stretch. */
static uint64_t long_turn(const struct qp_card *c, const struct qp_class *s) {
    uint64_t longest = (s->rivals > 2 ? QP_CROWD_TURN : QP_LONG_TURN) * c->slice_ns;
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

/* Two are on the card since the holder's gate was opened ahead of the former one's end. Until that should have come all
 * time is the former one's; what then follows is shared, since the card divides itself between them. */
static uint64_t shared_by_two(const struct qp_card *c, const struct qp_class *s, uint64_t now) {
    uint64_t from = max_u64(s->foreseen_ns + QP_LEAD_NS, max_u64(c->last_ns, s->booked_ns));
    return s->foreseen_ns && now > from ? now - from : 0;
}

/* What one member used since the last booking. Nobody else may run while the gate is open for the holder, so it pays
 * for all of that time where others wait. */
static uint64_t used_by(struct qp_card *c, int k, uint32_t i, bool others, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    const struct qp_tenant *t = &c->tenant[i];
    uint64_t two = shared_by_two(c, s, now);
    if (two && s->draining == (int32_t)i && t->flew) return now - c->last_ns - two / 2;
    if (s->foreseen_ns && s->holder == (int32_t)i) return two / 2;
    bool ended = s->draining == (int32_t)i && t->flew && !t->undrained;
    if (ended && !s->looked && fixed(s)) return now - c->last_ns; /* it may have come late */
    if (ended && s->looked) {
        /* Looks come often then, or it rang at its end: that it ended halfway would be wrong after a long sleep. A limit errs
         * to the safe side. */
        uint64_t span = now - c->last_ns;
        return span - min_u64(span / 2, QP_DRAIN_POLL_NS) / (fixed(s) ? 2 : 1);
    }
    if (!holds(c, s, i)) return sampled(t, now - c->last_ns, t->flew, t->undrained);
    note_use(c, k, now);
    uint64_t from = max_u64(s->use_ns, s->booked_ns);
    if (!s->use_ns || now <= from) return 0;
    return others ? now - from : sampled(t, now - from, t->was_busy, t->wants || t->undrained);
}

/* A member that neither used nor wanted the card: credit is given away, though not in a moment in which its thread was late;
 * debt is paid off by waiting. */
static void settle_absent(struct qp_tenant *t, int64_t part, uint64_t now) {
    if (t->deficit_ns > 0) t->deficit_ns = now - t->last_work_ns < QP_KEEP_NS ? t->deficit_ns : 0;
    else t->deficit_ns = t->deficit_ns + part > 0 ? 0 : t->deficit_ns + part;
}

/* Shows work on the card although neither its turn nor its drain goes on: the drain was cut off, or it hangs, or it lies.
 * Nobody can tell whether the card works for it, so nobody else's books may depend on that. */
static bool left_over(const struct qp_card *c, const struct qp_class *s, uint32_t i) {
    const struct qp_tenant *t = &c->tenant[i];
    return (t->flew || t->undrained) && s->holder != (int32_t)i && s->draining != (int32_t)i;
}

static bool took_part(const struct qp_card *c, const struct qp_class *s, uint32_t i) {
    return (c->tenant[i].used_ns || c->tenant[i].wanted) && !left_over(c, s, i);
}

/* It is debited what it used beyond its part of what the others did; who earns no turns saves up nothing. */
static void settle_left_over(struct qp_tenant *t, int64_t part) {
    int64_t more = (int64_t)t->used_ns - part;
    if (more > 0 || t->wants) t->deficit_ns = clamp_deficit(t->deficit_ns - more);
}

/* Credits and debts of those who take part need not cancel out: debts of others were worked off, or bounded. Where one of
 * them reaches the bound for that reason, all move back by weight. To cut off that one alone would give its part to others
 * at each turn. */
static void bound_deficits(struct qp_card *c, const struct qp_class *s, const struct side *m, int64_t balance,
                           int64_t sum) {
    bool beyond = false;
    for (uint32_t j = 0; !beyond && j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        beyond = took_part(c, s, m->at[j]) && clamp_deficit(t->deficit_ns) != t->deficit_ns;
    }
    for (uint32_t j = 0; beyond && j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        if (took_part(c, s, m->at[j])) t->deficit_ns = clamp_deficit(t->deficit_ns - balance * weight(s, t) / sum);
    }
}

/* Everyone who took part is entitled to its weight of what they used; users are debited. */
static void settle(struct qp_card *c, int k, const struct side *m, uint64_t dt, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    int64_t total = 0, sum = 0, balance = 0;
    s->weights = 0;
    s->rivals = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        bool part = took_part(c, s, m->at[j]);
        total += part ? (int64_t)t->used_ns : 0;
        sum += part ? weight(s, t) : 0;
        if (!part && !t->wanted) continue;
        s->weights += weight(s, t);
        s->rivals++;
    }
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        int64_t w = weight(s, t), part = sum ? total * w / sum : 0;
        t->service_ns += t->used_ns;
        if (took_part(c, s, m->at[j])) balance += t->deficit_ns += part - (int64_t)t->used_ns;
        else if (left_over(c, s, m->at[j])) settle_left_over(t, part);
        else settle_absent(t, (int64_t)dt * w / (sum + w), now);
    }
    if (sum) bound_deficits(c, s, m, balance, sum);
}

/* Does anybody but the holder compete, or did at the last decision? */
static bool others_compete(const struct qp_card *c, const struct qp_class *s, const struct side *m) {
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        bool drains = s->draining == (int32_t)m->at[j] && t->flew;
        if (s->holder != (int32_t)m->at[j] && (t->wished || drains)) return true;
    }
    return false;
}

/* Nobody takes turns: old debts fade with time, nothing is charged. */
static void charge_nobody(struct qp_card *c, const struct side *m, uint64_t dt, uint64_t now) {
    for (uint32_t j = 0; j < m->n; j++) {
        c->tenant[m->at[j]].used_ns = 0;
        settle_absent(&c->tenant[m->at[j]], (int64_t)dt, now);
    }
}

/* A limit errs to the safe side: nothing is taken off for what somebody else may have left over on the card. */
static void book_budgets(struct qp_card *c, const struct qp_class *s, const struct side *m, uint64_t now, uint64_t passed,
                         double whole) {
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        uint64_t used = left_over(c, s, m->at[j]) ? t->used_ns : (uint64_t)((double)t->used_ns * whole);
        qp_budget_book(c, m->at[j], now, passed, used);
    }
}

/* Books the time since the last booking. Σ used <= that time: who overlaps divides it. */
void qp_charge(struct qp_card *c, int k, const struct side *m, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    uint64_t dt = min_u64(now - c->last_ns, 1000 * QP_MS), total = 0, sure = 0, passed = now - c->last_ns;
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
        if (!left_over(c, s, m->at[j])) sure += t->used_ns;
    }
    uint64_t most = min_u64(now - s->booked_ns, 4000 * QP_MS);
    for (uint32_t j = 0; total > most && j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        t->used_ns = (uint64_t)((double)t->used_ns * (double)most / (double)total);
    }
    settle(c, k, m, dt, now);
    bool divided = sure && total > most && sure < total;
    if (fixed(s)) book_budgets(c, s, m, now, passed, divided ? (double)total / (double)max_u64(sure, most) : 1);
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

/* How long a tenant may show no work in its turn, by how its last pauses ended. Where somebody else's work was cut off of late,
 * each change of hands may cost a cut-off again, and its programs may keep the processors from this one's: longer. */
static uint64_t pause_of(const struct qp_class *s, const struct qp_tenant *h) {
    if (s->wary) return QP_PASS_ON_NS;
    return h->resting == QP_LATE ? QP_PAUSE_NS * 3 / 2 : h->resting < QP_RESTING ? QP_PAUSE_NS : QP_REST_NS;
}

/* When a holder that shows no work passes its turn on. Launches that a look found came before it, so that the pause has
 * lasted at least since then. */
static uint64_t pass_on_at(const struct qp_class *s, const struct qp_tenant *h) {
    return max_u64(h->silent_ns ? h->silent_ns : h->idle_since_ns, s->opened_ns) + pause_of(s, h);
}

/* Who passed its turn on, and soon wanted to go on after all, is given more time before the next one. */
static void judge_pause(struct qp_tenant *t, uint64_t now) {
    if (!t->away || !t->wants) return;
    t->away = 0;
    if (now - t->paused_ns < QP_SOON_NS) t->resting = QP_LATE;
    else t->resting = t->resting == QP_LATE ? 0 : t->resting + (t->resting < QP_RESTING);
}

/* The next look that may find that the holder has nothing to do: where nothing of it is known to be unfinished, or where it
 * makes pauses. */
static uint64_t pause_look(const struct qp_class *s, const struct qp_tenant *h, uint64_t now) {
    if (h->silent_ns || !h->wants) return max_u64(pass_on_at(s, h), now + QP_DRAIN_POLL_NS);
    if (!h->paused_ns || now - h->paused_ns >= QP_PAUSES_NS) return QP_NEVER;
    uint64_t used = now - max_u64(s->use_ns, s->opened_ns), least = min_u64(pause_of(s, h), QP_PAUSE_NS);
    return now + max_u64(least, min_u64(used / 4, QP_PAUSE_NS));
}

/* How long the last completion of a tenant is awaited. Longer than it ever took of late says that it hangs. */
static uint64_t drain_most(const struct qp_tenant *t) {
    uint64_t usual = max_u64(QP_DRAIN_TAILS * t->tail_ns, QP_DRAIN_LEAST_NS);
    return (t->tail_ns ? min_u64(usual, QP_DRAIN_MAX_NS) : QP_DRAIN_MAX_NS) >> t->overdue;
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

/* How long after its gate closed a tenant is looked at for the first time. */
static uint64_t first_after(const struct qp_tenant *t) { return max_u64(t->early_ns / 4 * 3, QP_DRAIN_POLL_NS); }

/* Learns how long the tenant takes to drain, and how long at least, so that it is not looked at all the time. Too short
 * costs a few looks, too long lets the card stand still: it shrinks at once and grows slowly, so that few drains are
 * shorter, also where they differ a hundredfold. Those few would cost more than all others, so that such a tenant is
 * looked at now and then before. */
static void learn_drain(struct qp_tenant *t, uint64_t took, bool looked) {
    if (!looked || took < first_after(t)) t->uneven = QP_UNEVEN;
    else if (t->uneven) t->uneven--;
    uint64_t mean = t->early_ns + took / 8 - t->early_ns / 8;
    uint64_t most = t->early_ns + max_u64(t->early_ns / 8, 5 * QP_DRAIN_POLL_NS);
    t->early_ns = looked ? min_u64(mean, most) : t->early_ns / 4;
    t->drain_ns = t->drain_ns + took / 8 - t->drain_ns / 8;
    t->tail_ns = max_u64(took, t->tail_ns - t->tail_ns / 8);
}

/* When the draining tenant is looked at next: seldom until it may have ended, then the more often the sooner that was. */
static uint64_t drain_look(const struct qp_class *s, const struct qp_tenant *t, uint64_t now) {
    uint64_t first = s->drain_from_ns + first_after(t), waited = now - s->drain_from_ns;
    if (now >= first) return now + max_u64(QP_DRAIN_POLL_NS, min_u64(waited / 32, QP_TICK_NS));
    return t->uneven ? min_u64(first, now + max_u64(first_after(t) / QP_UNEVEN_LOOKS, QP_DRAIN_POLL_NS)) : first;
}

static void pass_on(struct qp_tenant *h, uint64_t now) {
    h->paused_ns = h->silent_ns ? h->silent_ns : h->idle_since_ns ? h->idle_since_ns : now;
    h->away = 1;
}

/* When the next gate may open although the former holder's work has not ended: shortly before the end that its programs
 * foresee, so that the next one's first kernel is there when the card is free. Not for who foresaw wrongly of late. */
static uint64_t early_at(const struct qp_card *c, int k, const struct qp_class *s) {
    const struct qp_tenant *d = &c->tenant[s->draining];
    if (s->foreseen_ns || !d->undrained || d->ends_ns < s->drain_from_ns || d->misses >= QP_MISSES_MAX / 2) return QP_NEVER;
    if (!opens_early(c, k)) return QP_NEVER;
    return d->ends_ns - QP_LEAD_NS;
}

/* It ended as foreseen, or the next one's work and its own go on sharing the card. Who is not believed any more is given
 * another try after many turns: its kernels may have become regular meanwhile. */
static void judge_end(struct qp_class *s, struct qp_tenant *d) {
    bool overlapped = s->foreseen_ns != 0;
    uint32_t right = overlapped ? QP_MISS / 2 : s->looked;
    s->foreseen_ns = 0;
    if (!d->undrained) d->misses -= d->misses < right ? d->misses : right;
    else if (overlapped) d->misses = d->misses + QP_MISS < QP_MISSES_MAX / 2 ? d->misses + QP_MISS : QP_MISSES_MAX;
}

static uint64_t waits_until(const struct qp_class *s) {
    return s->foreseen_ns ? min_u64(s->drain_until_ns, s->foreseen_ns + QP_OVERLAP_NS) : s->drain_until_ns;
}

/* Lets the holder leave when its time is over; true while its last work is awaited. */
static bool hand_over(struct qp_card *c, int k, const struct side *m, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    s->wary = s->cut_off_ns && now - s->cut_off_ns < QP_WARY_NS;
    if (!s->resumed) s->drain_from_ns = now; /* the class was closed meanwhile: that time says nothing */
    if (s->draining < 0) s->foreseen_ns = 0; /* it left the card for good */
    if (s->holder >= 0 && s->draining < 0 && must_leave(c, k, m, now)) {
        c->tenant[s->holder].greedy = c->tenant[s->holder].wants;
        if (!c->tenant[s->holder].wants) pass_on(&c->tenant[s->holder], now);
        s->draining = s->holder;
        s->holder = -1;
        s->looked = 0;
        s->drain_from_ns = now;
        s->drain_until_ns = now + drain_most(&c->tenant[s->draining]);
    }
    if (s->draining < 0) return false;
    struct qp_tenant *d = &c->tenant[s->draining];
    if (d->undrained && now < waits_until(s)) {
        if (now > s->drain_from_ns) s->looked = 1;
        return true;
    }
    bool overlapped = s->foreseen_ns;
    judge_end(s, d);
    if (now > s->drain_from_ns) learn_drain(d, now - s->drain_from_ns, s->looked);
    if (d->undrained && !overlapped) s->cut_off_ns = now;
    /* Hung, or lying about its work: it shall not take from others what it cannot be charged for in full. */
    d->overdue = !d->undrained ? 0 : overlapped ? d->overdue : d->overdue < QP_OVERDUE_MAX ? d->overdue + 1 : QP_OVERDUE_MAX;
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

/* Opens the next gate a little before the former holder's work will have ended. */
static void open_early(struct qp_card *c, int k, const struct side *m, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    if (s->holder >= 0 || now < early_at(c, k, s)) return;
    int32_t next = qp_best_claim(c, k, m, -1);
    if (next < 0 || next == s->draining) return;
    s->holder = next;
    s->foreseen_ns = c->tenant[s->draining].ends_ns;
    begin_turn(c, k, now);
}

/* One at a time: returns the index of the member whose gate is open, or -1 while a former holder drains. */
int32_t qp_take_turns(struct qp_card *c, int k, const struct side *m, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    bool fresh = !s->resumed || !s->contended;
    for (uint32_t j = 0; j < m->n; j++) judge_pause(&c->tenant[m->at[j]], now);
    if (hand_over(c, k, m, now)) {
        open_early(c, k, m, now);
        return s->holder;
    }
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

/* Somebody who works now and then would find all of that before it. */
static bool may_come_back(const struct qp_card *c, const struct qp_class *s, const struct side *m, uint64_t now) {
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (s->holder == (int32_t)m->at[j] || t->suspended || !t->worked) continue;
        if (!t->wants && now - t->last_work_ns < QP_PAUSES_NS) return true;
        if (t->paused_ns && now - t->paused_ns < QP_PAUSES_NS) return true;
    }
    return false;
}

/* In the middle of a long turn kernels may queue up even where nobody knows how long they are: the card does not wait for
 * the program between two of them, and what is queued has ended long before the turn does. */
void qp_make_room(struct qp_card *c, int k, const struct side *m, uint64_t now) {
    const struct qp_class *s = &c->cls[k];
    for (uint32_t j = 0; j < m->n; j++) c->tenant[m->at[j]].roomy = 0;
    if (!s->contended || s->holder < 0 || s->draining >= 0 || may_come_back(c, s, m, now)) return;
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
        uint64_t next = drain_look(s, &c->tenant[s->draining], now);
        uint64_t early = early_at(c, k, s), until = waits_until(s);
        if (s->foreseen_ns) return min_u64(wake, min_u64(max_u64(now + QP_LATE_LOOK_NS, s->foreseen_ns), until));
        if (early > now && early != QP_NEVER) next = max_u64(next, now + QP_LATE_LOOK_NS);
        if (early > now) wake = min_u64(wake, early);
        return min_u64(wake, min_u64(next, until));
    }
    if (s->holder < 0) return wake;
    const struct qp_tenant *h = &c->tenant[s->holder];
    if (!s->use_ns && h->wants && now < s->opened_ns + QP_START_NS) wake = min_u64(wake, s->opened_ns + QP_START_NS);
    if (qp_best_claim(c, k, m, s->holder) < 0) return wake;
    uint64_t end = end_of_turn(c, s, m);
    return min_u64(wake, min_u64(end, pause_look(s, h, now)));
}
