/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns inside one class: who has the best claim, when a turn ends and when the next one begins.
 */
#include "policy/policy_parts.h"

/* Not where an online tenant would have to wait for both, nor under a limit, which must know
 * exactly who used the card. */
static bool opens_early(const struct qp_card *c, int k)
{
    return !fixed(&c->cls[k]) && !(k == OFFLINE && c->awaits_online);
}

/* Who has less than half an equal part comes in shorter turns and more often: else the others would
 * see all of its part in one stretch. */
static uint64_t long_turn(const struct qp_card *c, const struct qp_class *s)
{
    uint64_t longest = (s->rivals > 2 ? QP_CROWD_TURN : QP_LONG_TURN) * c->slice_ns;
    if (s->rivals < 2)
        return longest;
    uint64_t fair =
        longest * (uint64_t)weight(s, &c->tenant[s->holder]) * s->rivals / (uint64_t)s->weights;
    return max_u64(longest / 2, min_u64(2 * fair, longest));
}

/* A slice begins. Who waits, in the offline class or for a budget, for a turn that it will use to
 * the end gains nothing by a short one, and changing hands costs. What drains after the closing is
 * part of the turn. */
void qp_begin_slice(struct qp_card *c, int k, uint64_t from)
{
    struct qp_class *s = &c->cls[k];
    bool may_last = k == OFFLINE || fixed(s);
    uint64_t longer = long_turn(c, s), drain = c->tenant[s->holder].drain_ns;
    s->slice_end_ns = from + c->slice_ns;
    s->turn_end_ns = may_last ? from + longer - min_u64(drain, longer / 2) : s->slice_end_ns;
}

/* Nobody competes: somebody's gate stands open, so that its first launch need not wait. */
static int32_t any_member(const struct qp_card *c, const struct side *m)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (!t->suspended && !t->spent)
            return m->at[j];
    }
    return -1;
}

/* Where somebody waits who may need the card only for a moment, a turn is one slice. */
static uint64_t end_of_turn(const struct qp_card *c, const struct qp_class *s, const struct side *m)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (s->holder != (int32_t)m->at[j] && claims(t) && !t->greedy)
            return s->slice_end_ns;
    }
    return s->turn_end_ns;
}

/* How long a tenant may show no work in its turn, by how its last pauses ended. Where somebody
 * else's work was cut off of late, each change of hands may cost a cut-off again, and its programs
 * may keep the processors from this one's: longer. */
static uint64_t pause_of(const struct qp_class *s, const struct qp_tenant *h)
{
    if (s->wary)
        return QP_PASS_ON_NS;
    return h->resting == QP_LATE     ? QP_LATE_PAUSE_NS
           : h->resting < QP_RESTING ? QP_PAUSE_NS
                                     : QP_REST_NS;
}

/* When a holder that shows no work passes its turn on. Launches that a look found came before it,
 * so that the pause has lasted at least since then. */
static uint64_t pass_on_at(const struct qp_class *s, const struct qp_tenant *h)
{
    return max_u64(h->silent_ns ? h->silent_ns : h->idle_since_ns, s->opened_ns) + pause_of(s, h);
}

/* Who passed its turn on, and soon wanted to go on after all, is given more time before the next
 * one. */
static void judge_pause(struct qp_tenant *t, uint64_t now)
{
    if (!t->away || !t->wants)
        return;
    t->away = 0;
    if (now - t->paused_ns < QP_SOON_NS)
        t->resting = QP_LATE;
    else
        t->resting = t->resting == QP_LATE ? 0 : t->resting + (t->resting < QP_RESTING);
}

/* The next look that may find that the holder has nothing to do: where nothing of it is known to be
 * unfinished, or where it makes pauses. Not before what it has on the card will have ended, where
 * its programs foresee that; they may foresee too much, so that most of it is waited for first.
 * Ticks look at it anyway, so that a lie gains nothing. */
static uint64_t pause_look(const struct qp_class *s, const struct qp_tenant *h, uint64_t now)
{
    if (h->silent_ns || !h->wants)
        return max_u64(pass_on_at(s, h), now + QP_DRAIN_POLL_NS);
    if (!h->paused_ns || now - h->paused_ns >= QP_PAUSES_NS)
        return QP_NEVER;
    uint64_t ahead = h->ends_ns > now ? h->ends_ns - now : 0;
    if (ahead > 2 * QP_TICK_NS)
        return now + ahead / 4 * 3;
    if (ahead)
        return now + (ahead > QP_PAUSE_NS ? ahead / 2 : ahead + QP_REST_NS);
    if (h->resting == QP_LATE && !s->wary)
        return now + QP_CLOSE_LOOK_NS;
    uint64_t used = now - max_u64(s->use_ns, s->opened_ns),
             least = min_u64(pause_of(s, h), QP_LATE_PAUSE_NS);
    return now + max_u64(least, min_u64(used / 4, QP_PAUSE_NS));
}

/* How long the last completion of a tenant is awaited. Longer than it ever took of late says that
 * it hangs. Under fixed-share it pays for that from its own share, and whoever is given a card that
 * stands still would pay for time it cannot have. */
static uint64_t drain_most(const struct qp_class *s, const struct qp_tenant *t)
{
    uint64_t usual = max_u64(QP_DRAIN_TAILS * t->tail_ns, QP_DRAIN_LEAST_NS);
    bool known = t->tail_ns && !fixed(s);
    return (known ? min_u64(usual, QP_DRAIN_MAX_NS) : QP_DRAIN_MAX_NS) >> t->overdue;
}

/* Does the holder give the card to somebody else now? */
static bool must_leave(const struct qp_card *c, int k, const struct side *m, uint64_t now)
{
    const struct qp_class *s = &c->cls[k];
    const struct qp_tenant *h = &c->tenant[s->holder];
    if (h->suspended || h->spent)
        return true;
    int32_t other = qp_best_claim(c, k, m, s->holder);
    if (other < 0)
        return false;
    if (!h->wants && now >= pass_on_at(s, h))
        return true;
    return now >= end_of_turn(c, s, m) && !qp_better(s, h, &c->tenant[other]);
}

/* How long after its gate closed a tenant is looked at for the first time. */
static uint64_t first_after(const struct qp_tenant *t)
{
    return max_u64(t->early_ns / 4 * 3, QP_DRAIN_POLL_NS);
}

/* Learns how long the tenant takes to drain, and how long at least, so that it is not looked at all
 * the time. Too short costs a few looks, too long lets the card stand still: it shrinks at once and
 * grows slowly, so that few drains are shorter, also where they differ a hundredfold. Those few
 * would cost more than all others, so that such a tenant is looked at now and then before. */
static void learn_drain(struct qp_tenant *t, uint64_t took, bool looked)
{
    if (!looked || took < first_after(t))
        t->uneven = QP_UNEVEN;
    else if (t->uneven)
        t->uneven--;
    uint64_t mean = t->early_ns + took / 8 - t->early_ns / 8;
    uint64_t most = t->early_ns + max_u64(t->early_ns / 8, 5 * QP_DRAIN_POLL_NS);
    t->early_ns = looked ? min_u64(mean, most) : t->early_ns / 4;
    t->drain_ns = t->drain_ns + took / 8 - t->drain_ns / 8;
    t->tail_ns = max_u64(took, t->tail_ns - t->tail_ns / 8);
    t->longest_ns = max_u64(took, t->longest_ns - t->longest_ns / 32);
}

/* When the draining tenant is looked at next: seldom until it may have ended, then the more often
 * the sooner that was. Of one that stands at its gate the end is told, by the thread that stands
 * there: it is looked for in case that this one is late. Not under a limit, where each part of a
 * millisecond until it is heard of is taken from a share. */
static uint64_t drain_look(const struct qp_class *s, const struct qp_tenant *t, uint64_t now)
{
    uint64_t first = s->drain_from_ns + first_after(t), waited = now - s->drain_from_ns;
    if (t->stands && !fixed(s))
        return max_u64(first, now + QP_TOLD_LOOK_NS);
    if (now >= first)
        return now + max_u64(QP_DRAIN_POLL_NS, min_u64(waited / 32, QP_TICK_NS));
    uint64_t looks = fixed(s) ? QP_LIMITED_LOOKS : QP_UNEVEN_LOOKS;
    return t->uneven ? min_u64(first, now + max_u64(first_after(t) / looks, QP_DRAIN_POLL_NS))
                     : first;
}

static void pass_on(struct qp_tenant *h, uint64_t now)
{
    h->paused_ns = h->silent_ns ? h->silent_ns : h->idle_since_ns ? h->idle_since_ns : now;
    h->away = 1;
}

/* When the next gate may open although the former holder's work has not ended: shortly before the
 * end that its programs foresee, so that the next one's first kernel is there when the card is
 * free. Not for who foresaw wrongly of late. */
static uint64_t early_at(const struct qp_card *c, int k, const struct qp_class *s)
{
    const struct qp_tenant *d = &c->tenant[s->draining];
    if (s->foreseen_ns || !d->undrained || d->ends_ns < s->drain_from_ns ||
        d->misses >= QP_MISSES_MAX / 2)
        return QP_NEVER;
    if (!opens_early(c, k))
        return QP_NEVER;
    return d->ends_ns - QP_LEAD_NS;
}

/* It ended as foreseen, or the next one's work and its own go on sharing the card. Who is not
 * believed any more is given another try after many turns: its kernels may have become regular
 * meanwhile. */
static void judge_end(struct qp_class *s, struct qp_tenant *d)
{
    bool overlapped = s->foreseen_ns != 0;
    uint32_t right = overlapped ? QP_MISS / 2 : s->looked;
    s->foreseen_ns = 0;
    if (!d->undrained)
        d->misses -= d->misses < right ? d->misses : right;
    else if (overlapped)
        d->misses = d->misses + QP_MISS < QP_MISSES_MAX / 2 ? d->misses + QP_MISS : QP_MISSES_MAX;
}

static uint64_t waits_until(const struct qp_class *s)
{
    return s->foreseen_ns ? min_u64(s->drain_until_ns, s->foreseen_ns + QP_OVERLAP_NS)
                          : s->drain_until_ns;
}

/* Lets the holder leave when its time is over; true while its last work is awaited. */
static bool hand_over(struct qp_card *c, int k, const struct side *m, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    s->wary = s->cut_off_ns && now - s->cut_off_ns < QP_WARY_NS;
    /* the class was closed meanwhile: that time says nothing */
    if (!s->resumed)
        s->drain_from_ns = now;
    if (s->draining < 0)
        s->foreseen_ns = 0; /* it left the card for good */
    if (s->holder >= 0 && s->draining < 0 && must_leave(c, k, m, now)) {
        c->tenant[s->holder].greedy = c->tenant[s->holder].wants;
        if (!c->tenant[s->holder].wants)
            pass_on(&c->tenant[s->holder], now);
        s->draining = s->holder;
        s->holder = -1;
        s->looked = 0;
        s->bare =
            !c->tenant[s->draining].undrained && !(c->tenant[s->draining].gate & QG_GATE_CLOSED);
        c->again |= s->bare;
        s->drain_from_ns = now;
        s->drain_until_ns = now + drain_most(s, &c->tenant[s->draining]);
    }
    if (s->draining < 0)
        return false;
    struct qp_tenant *d = &c->tenant[s->draining];
    if (s->bare && c->again)
        return true;
    s->bare = s->bare && !d->undrained;
    if (d->undrained && now < waits_until(s)) {
        if (now > s->drain_from_ns)
            s->looked = 1;
        return true;
    }
    bool overlapped = s->foreseen_ns;
    judge_end(s, d);
    if (now > s->drain_from_ns && !s->bare)
        learn_drain(d, now - s->drain_from_ns, s->looked);
    if (d->undrained && !overlapped) {
        s->cut_off_ns = now;
        d->cut_off_ns = s->drain_from_ns;
    }
    /* Hung, or lying about its work: it shall not take from others what it cannot be charged for in
     * full. */
    d->overdue = !d->undrained                 ? 0
                 : overlapped                  ? d->overdue
                 : d->overdue < QP_OVERDUE_MAX ? d->overdue + 1
                                               : QP_OVERDUE_MAX;
    s->draining = -1;
    return false;
}

static void begin_turn(struct qp_card *c, int k, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    struct qp_tenant *h = &c->tenant[s->holder];
    h->cut_off_ns = 0;
    bool goes_on = !(h->gate & QG_GATE_CLOSED) && h->undrained; /* it ran alone until now */
    s->early = s->draining >= 0;
    s->opened_ns = now;
    s->use_ns = goes_on ? now : 0;
    qp_begin_slice(c, k, goes_on ? now : now + QP_START_NS);
    if (goes_on)
        c->last_user = s->holder;
}

/* Opens the next gate a little before the former holder's work will have ended. */
static void open_early(struct qp_card *c, int k, const struct side *m, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    if (s->holder >= 0 || now < early_at(c, k, s))
        return;
    int32_t next = qp_best_claim(c, k, m, -1);
    if (next < 0 || next == s->draining)
        return;
    s->holder = next;
    s->foreseen_ns = c->tenant[s->draining].ends_ns;
    begin_turn(c, k, now);
}

/* One at a time: returns the index of the member whose gate is open, or -1 while a former holder
 * drains. */
int32_t qp_take_turns(struct qp_card *c, int k, const struct side *m, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    bool fresh = !s->resumed || !s->contended;
    for (uint32_t j = 0; j < m->n; j++)
        judge_pause(&c->tenant[m->at[j]], now);
    if (hand_over(c, k, m, now)) {
        open_early(c, k, m, now);
        return s->holder;
    }
    if (s->holder < 0) {
        s->holder = qp_best_claim(c, k, m, -1);
        if (s->holder < 0)
            s->holder = any_member(c, m);
        if (s->holder < 0)
            return -1;
        fresh = true;
    }
    if (fresh)
        begin_turn(c, k, now);
    else if (now >= end_of_turn(c, s, m))
        qp_begin_slice(c, k, now);
    return s->holder;
}

/* How much longer the holder surely has the card before one other: as long as its turn lasts, then
 * until its credit per weight has fallen to that of the other, or until the other has a budget
 * again. */
static uint64_t stays_before(struct qp_card *c, int k, uint32_t i, uint64_t turn, uint64_t now)
{
    const struct qp_class *s = &c->cls[k];
    const struct qp_tenant *h = &c->tenant[s->holder], *t = &c->tenant[i];
    if (t->spent)
        return max_u64(t->greedy ? turn : 0, qp_budget_opens(c, i, now) - now);
    int64_t ahead = h->deficit_ns - t->deficit_ns * weight(s, h) / weight(s, t);
    return t->greedy && ahead > 0 ? max_u64(turn, (uint64_t)ahead) : turn;
}

/* The same before all others, if nobody comes who is not there yet. */
static uint64_t stays_for(struct qp_card *c, int k, const struct side *m, uint64_t now,
                          uint64_t most)
{
    const struct qp_class *s = &c->cls[k];
    uint64_t end = end_of_turn(c, s, m), turn = end > now ? end - now : 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (s->holder == (int32_t)m->at[j] || !t->wants || t->suspended)
            continue;
        most = min_u64(most, stays_before(c, k, m->at[j], turn, now));
    }
    return most;
}

/* Somebody who works now and then would find all of that before it. */
static bool may_come_back(const struct qp_card *c, const struct qp_class *s, const struct side *m,
                          uint64_t now)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (s->holder == (int32_t)m->at[j] || t->suspended || !t->worked)
            continue;
        if (!t->wants && now - t->last_work_ns < QP_PAUSES_NS)
            return true;
        if (t->paused_ns && now - t->paused_ns < QP_PAUSES_NS)
            return true;
    }
    return false;
}

/* In the middle of a long turn kernels may queue up even where nobody knows how long they are: the
 * card does not wait for the program between two of them, and what is queued has ended long before
 * the turn does. */
void qp_make_room(struct qp_card *c, int k, const struct side *m, uint64_t now)
{
    const struct qp_class *s = &c->cls[k];
    for (uint32_t j = 0; j < m->n; j++)
        c->tenant[m->at[j]].roomy = 0;
    if (!s->contended || s->holder < 0 || s->draining >= 0 || may_come_back(c, s, m, now))
        return;
    struct qp_tenant *h = &c->tenant[s->holder];
    /* all of that must fit into a limit */
    uint64_t flight = QP_DEEP_WINDOW_US * 1000ull + QP_TICK_NS;
    if (h->tail_ns < QP_DEEP_TAIL_NS || stays_for(c, k, m, now, QP_DEEP_ROOM_NS) < QP_DEEP_ROOM_NS)
        return;
    h->roomy = !fixed(s) || qp_budget_lasts(c, (uint32_t)s->holder, now, flight) >= flight;
}

/* When the turns of a class change next. */
uint64_t qp_turn_wake(struct qp_card *c, int k, const struct side *m, uint64_t now)
{
    const struct qp_class *s = &c->cls[k];
    if (!s->contended)
        return QP_NEVER;
    uint64_t wake = fixed(s) ? qp_budget_wake(c, k, m, now) : QP_NEVER;
    if (s->draining >= 0) {
        const struct qp_tenant *d = &c->tenant[s->draining];
        uint64_t next = drain_look(s, d, now);
        uint64_t early = early_at(c, k, s), until = waits_until(s);
        /* its thread rings at the end: heard before we look, mostly */
        uint64_t told = d->stands ? QP_LATE_LOOK_NS / 2 : 0;
        if (s->foreseen_ns)
            return min_u64(wake,
                           min_u64(max_u64(now + QP_LATE_LOOK_NS, s->foreseen_ns + told), until));
        /* an end that is foreseen too late, and not told, must not be charged by half of all that
         * time */
        if (early > now && early != QP_NEVER)
            next = max_u64(next, now + (d->stands ? QP_SOLO_TICK_NS : QP_LATE_LOOK_NS));
        if (early > now)
            wake = min_u64(wake, early);
        return min_u64(wake, min_u64(next, until));
    }
    if (s->holder < 0)
        return wake;
    const struct qp_tenant *h = &c->tenant[s->holder];
    if (!s->use_ns && h->wants && now < s->opened_ns + QP_START_NS) {
        if (fixed(s))
            wake = min_u64(wake, s->opened_ns + QP_START_NS);
        else
            c->soft_ns = min_u64(
                c->soft_ns, s->opened_ns + QP_START_NS); /* the next tick charges it as of then */
    }
    if (qp_best_claim(c, k, m, s->holder) < 0)
        return wake;
    uint64_t end = end_of_turn(c, s, m);
    if (!fixed(s) && end > s->slice_end_ns) {
        c->soft_ns = min_u64(c->soft_ns, end);
        end = QP_NEVER;
    }
    return min_u64(wake, min_u64(end, pause_look(s, h, now)));
}
