/* SPDX-License-Identifier: Apache-2.0
 *
 * Quanta inside one class: when a quantum ends, how long its drain is awaited, and when the next
 * one begins.
 */
#include "policy/policy_parts.h"

/* May the next gate open before the drain is over? Not in an offline class that an online tenant
 * may preempt: it would wait for the work of both. Not under a limit, which must know exactly which
 * tenant used the card. */
static bool may_open_early(const struct qp_card *c, int k)
{
    return !is_fixed_share(&c->cls[k]) && !(k == OFFLINE && c->awaits_online);
}

/* Length of a long quantum. A tenant with less than half an equal part gets shorter ones, and more
 * often. Otherwise the others would be without the card for all of its part at once. */
static uint64_t long_quantum(const struct qp_card *c, const struct qp_class *s)
{
    uint64_t longest = (s->competitors > 2 ? QP_LONG_QUANTUM_MANY : QP_LONG_QUANTUM) * c->slice_ns;
    if (s->competitors < 2)
        return longest;
    uint64_t fair = longest * (uint64_t)weight(s, &c->tenant[s->current]) * s->competitors /
                    (uint64_t)s->weight_sum;
    return max_u64(longest / 2, min_u64(2 * fair, longest));
}

/* Begins a slice. A quantum may last longer if the waiting tenants are in the offline class or wait
 * for a budget, and are backlogged. They gain nothing from a short one, and each hand-over costs
 * time. The drain after the closing is part of the quantum. */
void qp_begin_slice(struct qp_card *c, int k, uint64_t from)
{
    struct qp_class *s = &c->cls[k];
    bool may_last = k == OFFLINE || is_fixed_share(s);
    uint64_t longer = long_quantum(c, s), drain = c->tenant[s->current].mean_drain_ns;
    s->slice_end_ns = from + c->slice_ns;
    s->quantum_end_ns = may_last ? from + longer - min_u64(drain, longer / 2) : s->slice_end_ns;
}

/* No tenant competes: the gate of one member is open, so that its first launch need not wait. */
static int32_t any_member(const struct qp_card *c, const struct members *m)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (!t->suspended && !t->out_of_budget)
            return m->at[j];
    }
    return -1;
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

/* How long the current tenant may be without work, by how its last pauses ended. After a drain
 * timeout of the class it is longer. Each hand-over may then cost another timeout, and the programs
 * of the tenant that timed out may keep this tenant's programs off the processors. */
static uint64_t pause_limit(const struct qp_class *s, const struct qp_tenant *cur)
{
    if (s->recent_timeout)
        return QP_COMPETES_NS;
    return cur->real_pauses == QP_LATE_THREAD  ? QP_LATE_PAUSE_NS
           : cur->real_pauses < QP_REAL_PAUSES ? QP_PAUSE_NS
                                               : QP_SHORT_PAUSE_NS;
}

/* When a current tenant without work passes its quantum on. A sample finds launches that came
 * before it, so the pause has lasted at least since that sample. */
static uint64_t pass_on_at(const struct qp_class *s, const struct qp_tenant *cur)
{
    return max_u64(cur->inactive_since_ns ? cur->inactive_since_ns : cur->idle_since_ns,
                   s->opened_ns) +
           pause_limit(s, cur);
}

/* A tenant that passed its quantum on and was runnable again soon was only late. It gets more time
 * before the next hand-over. */
static void judge_pause(struct qp_tenant *t, uint64_t now)
{
    if (!t->passed_on || !t->runnable)
        return;
    t->passed_on = 0;
    if (now - t->paused_ns < QP_LATE_THREAD_NS)
        t->real_pauses = QP_LATE_THREAD;
    else
        t->real_pauses = t->real_pauses == QP_LATE_THREAD
                             ? 0
                             : t->real_pauses + (t->real_pauses < QP_REAL_PAUSES);
}

/* Time of the next sample that may find the current tenant without work. It is needed if no
 * unfinished work is known, or if the tenant makes pauses. If its programs predict the end of its
 * work, the sample comes after most of that time. The end may come sooner than predicted; ticks
 * sample the tenant anyway, so a wrong prediction gains nothing. */
static uint64_t pause_poll_at(const struct qp_class *s, const struct qp_tenant *cur, uint64_t now)
{
    if (cur->inactive_since_ns || !cur->runnable)
        return max_u64(pass_on_at(s, cur), now + QP_DRAIN_POLL_NS);
    if (!cur->paused_ns || now - cur->paused_ns >= QP_PAUSE_MEMORY_NS)
        return QP_NEVER;
    uint64_t ahead = cur->predicted_end_ns > now ? cur->predicted_end_ns - now : 0;
    if (ahead > 2 * QP_TICK_NS)
        return now + ahead / 4 * 3;
    if (ahead)
        return now + (ahead > QP_PAUSE_NS ? ahead / 2 : ahead + QP_SHORT_PAUSE_NS);
    if (cur->real_pauses == QP_LATE_THREAD && !s->recent_timeout)
        return now + QP_PAUSE_POLL_NS;
    uint64_t used = now - max_u64(s->use_from_ns, s->opened_ns),
             least = min_u64(pause_limit(s, cur), QP_LATE_PAUSE_NS);
    return now + max_u64(least, min_u64(used / 4, QP_PAUSE_NS));
}

/* Drain timeout of a tenant. A drain far longer than its recent ones means that it hangs. Under
 * fixed-share it pays for the wait from its own share. A next tenant would have to pay for a card
 * that stands still, so the timeout is the longest one. */
static uint64_t drain_timeout(const struct qp_class *s, const struct qp_tenant *t)
{
    uint64_t usual = max_u64(QP_DRAIN_MULTIPLE * t->max_drain_ns, QP_DRAIN_TIMEOUT_MIN_NS);
    bool known = t->max_drain_ns && !is_fixed_share(s);
    return (known ? min_u64(usual, QP_DRAIN_TIMEOUT_NS) : QP_DRAIN_TIMEOUT_NS) >> t->drain_timeouts;
}

/* Does the current tenant have to give the card to another one now? */
static bool quantum_over(const struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    const struct qp_class *s = &c->cls[k];
    const struct qp_tenant *cur = &c->tenant[s->current];
    if (cur->suspended || cur->out_of_budget)
        return true;
    int32_t other = qp_select_next(c, k, m, s->current);
    if (other < 0)
        return false;
    if (!cur->runnable && now >= pass_on_at(s, cur))
        return true;
    return now >= quantum_end(c, s, m) && !qp_goes_first(s, cur, &c->tenant[other]);
}

/* Time from the closing of a gate to the first poll of its tenant. */
static uint64_t first_poll_delay(const struct qp_tenant *t)
{
    return max_u64(t->short_drain_ns / 4 * 3, QP_DRAIN_POLL_NS);
}

/* Learns how long the tenant takes to drain, and at least takes, so that it is not polled all the
 * time. A time that is too short costs a few polls; one that is too long leaves the card idle. So
 * short_drain_ns falls at once and grows slowly, and few drains are shorter, even if they differ a
 * hundredfold. Those few would cost more than all others together: such a tenant is also polled a
 * few times before that time. */
static void learn_drain(struct qp_tenant *t, uint64_t took, bool seen)
{
    if (!seen || took < first_poll_delay(t))
        t->uneven_drains = QP_UNEVEN_DRAINS;
    else if (t->uneven_drains)
        t->uneven_drains--;
    uint64_t mean = t->short_drain_ns + took / 8 - t->short_drain_ns / 8;
    uint64_t most = t->short_drain_ns + max_u64(t->short_drain_ns / 8, 5 * QP_DRAIN_POLL_NS);
    t->short_drain_ns = seen ? min_u64(mean, most) : t->short_drain_ns / 4;
    t->mean_drain_ns = t->mean_drain_ns + took / 8 - t->mean_drain_ns / 8;
    t->max_drain_ns = max_u64(took, t->max_drain_ns - t->max_drain_ns / 8);
    t->max_drain_long_ns = max_u64(took, t->max_drain_long_ns - t->max_drain_long_ns / 32);
}

/* Next poll of the draining tenant. Before the first_poll_delay it is polled only if its drains
 * vary much. After that the interval grows with the time waited. If one of its threads waits at its
 * gate, that thread reports the end by a ring. Polls then only cover a late thread. Not under a
 * limit, where the delay until the end is known is taken from a share. */
static uint64_t drain_poll_at(const struct qp_class *s, const struct qp_tenant *t, uint64_t now)
{
    uint64_t first = s->drain_from_ns + first_poll_delay(t), waited = now - s->drain_from_ns;
    if (t->at_gate && !is_fixed_share(s))
        return max_u64(first, now + QP_REPORTED_POLL_NS);
    if (now >= first)
        return now + max_u64(QP_DRAIN_POLL_NS, min_u64(waited / 32, QP_TICK_NS));
    uint64_t polls = is_fixed_share(s) ? QP_FIXED_POLLS : QP_UNEVEN_POLLS;
    return t->uneven_drains
               ? min_u64(first, now + max_u64(first_poll_delay(t) / polls, QP_DRAIN_POLL_NS))
               : first;
}

static void note_pass_on(struct qp_tenant *cur, uint64_t now)
{
    cur->paused_ns = cur->inactive_since_ns ? cur->inactive_since_ns
                     : cur->idle_since_ns   ? cur->idle_since_ns
                                            : now;
    cur->passed_on = 1;
}

/* When the next gate may open although the draining tenant's work has not ended: shortly before the
 * end that its programs predict. Then the next tenant's first kernel is there when the card is
 * free. Not after too many wrong predictions. */
static uint64_t early_open_at(const struct qp_card *c, int k, const struct qp_class *s)
{
    const struct qp_tenant *d = &c->tenant[s->draining];
    if (s->predicted_end_ns || !d->undrained || d->predicted_end_ns < s->drain_from_ns ||
        d->misses >= QP_MISSES_MAX / 2)
        return QP_NEVER;
    if (!may_open_early(c, k))
        return QP_NEVER;
    return d->predicted_end_ns - QP_LEAD_NS;
}

/* Rates the prediction: right if the work has ended, wrong if it goes on beside the next tenant's.
 * A tenant whose predictions are not used any more is tried again after many quanta: its kernels
 * may have become regular. */
static void judge_prediction(struct qp_class *s, struct qp_tenant *d)
{
    bool overlapped = s->predicted_end_ns != 0;
    uint32_t right = overlapped ? QP_MISS / 2 : s->seen_draining;
    s->predicted_end_ns = 0;
    if (!d->undrained)
        d->misses -= d->misses < right ? d->misses : right;
    else if (overlapped)
        d->misses = d->misses + QP_MISS < QP_MISSES_MAX / 2 ? d->misses + QP_MISS : QP_MISSES_MAX;
}

static uint64_t drain_deadline(const struct qp_class *s)
{
    return s->predicted_end_ns ? min_u64(s->drain_until_ns, s->predicted_end_ns + QP_OVERLAP_NS)
                               : s->drain_until_ns;
}

/* Ends the quantum of the current tenant when its time is over. Returns true while its last work is
 * awaited. */
static bool hand_over(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    s->recent_timeout = s->last_timeout_ns && now - s->last_timeout_ns < QP_TIMEOUT_MEMORY_NS;
    /* the class was closed meanwhile: that time says nothing about the drain */
    if (!s->resumed)
        s->drain_from_ns = now;
    if (s->draining < 0)
        s->predicted_end_ns = 0; /* the draining tenant left the card for good */
    if (s->current >= 0 && s->draining < 0 && quantum_over(c, k, m, now)) {
        c->tenant[s->current].backlogged = c->tenant[s->current].runnable;
        if (!c->tenant[s->current].runnable)
            note_pass_on(&c->tenant[s->current], now);
        s->draining = s->current;
        s->current = -1;
        s->seen_draining = 0;
        s->closed_idle =
            !c->tenant[s->draining].undrained && !(c->tenant[s->draining].gate & QG_GATE_CLOSED);
        c->resample |= s->closed_idle;
        s->drain_from_ns = now;
        s->drain_until_ns = now + drain_timeout(s, &c->tenant[s->draining]);
    }
    if (s->draining < 0)
        return false;
    struct qp_tenant *d = &c->tenant[s->draining];
    if (s->closed_idle && c->resample)
        return true;
    s->closed_idle = s->closed_idle && !d->undrained;
    if (d->undrained && now < drain_deadline(s)) {
        if (now > s->drain_from_ns)
            s->seen_draining = 1;
        return true;
    }
    bool overlapped = s->predicted_end_ns;
    judge_prediction(s, d);
    if (now > s->drain_from_ns && !s->closed_idle)
        learn_drain(d, now - s->drain_from_ns, s->seen_draining);
    if (d->undrained && !overlapped) {
        s->last_timeout_ns = now;
        d->timed_out_close_ns = s->drain_from_ns;
    }
    /* The tenant hangs, or reports work that it does not have. Its next timeouts are shorter, as it
     * cannot be charged in full for the time that others lose. */
    d->drain_timeouts = !d->undrained                             ? 0
                        : overlapped                              ? d->drain_timeouts
                        : d->drain_timeouts < QP_TIMEOUT_HALVINGS ? d->drain_timeouts + 1
                                                                  : QP_TIMEOUT_HALVINGS;
    s->draining = -1;
    return false;
}

static void begin_quantum(struct qp_card *c, int k, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    struct qp_tenant *cur = &c->tenant[s->current];
    cur->timed_out_close_ns = 0;
    bool goes_on = !(cur->gate & QG_GATE_CLOSED) && cur->undrained; /* it ran alone until now */
    s->opened_early = s->draining >= 0;
    s->opened_ns = now;
    s->use_from_ns = goes_on ? now : 0;
    qp_begin_slice(c, k, goes_on ? now : now + QP_START_NS);
    if (goes_on)
        c->last_user = s->current;
}

/* Opens the next gate shortly before the predicted end of the draining work. */
static void open_early(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    if (s->current >= 0 || now < early_open_at(c, k, s))
        return;
    int32_t next = qp_select_next(c, k, m, -1);
    if (next < 0 || next == s->draining)
        return;
    s->current = next;
    s->predicted_end_ns = c->tenant[s->draining].predicted_end_ns;
    begin_quantum(c, k, now);
}

/* Returns the index of the one member whose gate is open, or -1 while a former one drains. */
int32_t qp_choose_open(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    bool fresh = !s->resumed || !s->contended;
    for (uint32_t j = 0; j < m->n; j++)
        judge_pause(&c->tenant[m->at[j]], now);
    if (hand_over(c, k, m, now)) {
        open_early(c, k, m, now);
        return s->current;
    }
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

/* Time for which the current tenant surely keeps the card before tenant i gets it: until the
 * quantum ends, then until its credit per weight has fallen to that of tenant i, or until tenant i
 * has a budget again. */
static uint64_t keeps_card_before(struct qp_card *c, int k, uint32_t i, uint64_t quantum,
                                  uint64_t now)
{
    const struct qp_class *s = &c->cls[k];
    const struct qp_tenant *cur = &c->tenant[s->current], *t = &c->tenant[i];
    if (t->out_of_budget)
        return max_u64(t->backlogged ? quantum : 0, qp_budget_opens(c, i, now) - now);
    int64_t ahead = cur->deficit_ns - t->deficit_ns * weight(s, cur) / weight(s, t);
    return t->backlogged && ahead > 0 ? max_u64(quantum, (uint64_t)ahead) : quantum;
}

/* The same for all other tenants, as long as none comes that is not runnable now. */
static uint64_t keeps_card_for(struct qp_card *c, int k, const struct members *m, uint64_t now,
                               uint64_t most)
{
    const struct qp_class *s = &c->cls[k];
    uint64_t end = quantum_end(c, s, m), quantum = end > now ? end - now : 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (s->current == (int32_t)m->at[j] || !t->runnable || t->suspended)
            continue;
        most = min_u64(most, keeps_card_before(c, k, m->at[j], quantum, now));
    }
    return most;
}

/* Did another member work or pause lately? If it comes back it would find all the queued work
 * before its own. */
static bool may_come_back(const struct qp_card *c, const struct qp_class *s,
                          const struct members *m, uint64_t now)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (s->current == (int32_t)m->at[j] || t->suspended || !t->ever_runnable)
            continue;
        if (!t->runnable && now - t->last_runnable_ns < QP_PAUSE_MEMORY_NS)
            return true;
        if (t->paused_ns && now - t->paused_ns < QP_PAUSE_MEMORY_NS)
            return true;
    }
    return false;
}

/* In the middle of a long quantum kernels of unknown length may queue up. Then the card does not
 * wait for the program between two of them. What is queued ends long before the quantum does. */
void qp_allow_deep_window(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    const struct qp_class *s = &c->cls[k];
    for (uint32_t j = 0; j < m->n; j++)
        c->tenant[m->at[j]].deep_window = 0;
    if (!s->contended || s->current < 0 || s->draining >= 0 || may_come_back(c, s, m, now))
        return;
    struct qp_tenant *cur = &c->tenant[s->current];
    /* all of that must fit into the budget */
    uint64_t flight = QP_DEEP_WINDOW_US * 1000ull + QP_TICK_NS;
    if (cur->max_drain_ns < QP_DEEP_DRAIN_NS ||
        keeps_card_for(c, k, m, now, QP_DEEP_QUANTUM_NS) < QP_DEEP_QUANTUM_NS)
        return;
    cur->deep_window =
        !is_fixed_share(s) || qp_budget_lasts(c, (uint32_t)s->current, now, flight) >= flight;
}

/* When the quanta of a class need the next decision. */
uint64_t qp_quantum_wake(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    const struct qp_class *s = &c->cls[k];
    if (!s->contended)
        return QP_NEVER;
    uint64_t wake = is_fixed_share(s) ? qp_budget_wake(c, k, m, now) : QP_NEVER;
    if (s->draining >= 0) {
        const struct qp_tenant *d = &c->tenant[s->draining];
        uint64_t next = drain_poll_at(s, d, now);
        uint64_t early = early_open_at(c, k, s), until = drain_deadline(s);
        /* its thread rings at the end, mostly before this poll */
        uint64_t ring_delay = d->at_gate ? QP_OVERLAP_POLL_NS / 2 : 0;
        if (s->predicted_end_ns)
            return min_u64(
                wake, min_u64(max_u64(now + QP_OVERLAP_POLL_NS, s->predicted_end_ns + ring_delay),
                              until));
        /* The end may come before the predicted time, without a ring. Charging half the time since
         * the last sample would then be wrong, so the tenant is polled until then. */
        if (early > now && early != QP_NEVER)
            next = max_u64(next, now + (d->at_gate ? QP_SOLO_TICK_NS : QP_OVERLAP_POLL_NS));
        if (early > now)
            wake = min_u64(wake, early);
        return min_u64(wake, min_u64(next, until));
    }
    if (s->current < 0)
        return wake;
    const struct qp_tenant *cur = &c->tenant[s->current];
    if (!s->use_from_ns && cur->runnable && now < s->opened_ns + QP_START_NS) {
        if (is_fixed_share(s))
            wake = min_u64(wake, s->opened_ns + QP_START_NS);
        else
            c->soft_ns = min_u64(
                c->soft_ns, s->opened_ns + QP_START_NS); /* the next tick charges it as of then */
    }
    if (qp_select_next(c, k, m, s->current) < 0)
        return wake;
    uint64_t end = quantum_end(c, s, m);
    if (!is_fixed_share(s) && end > s->slice_end_ns) {
        c->soft_ns = min_u64(c->soft_ns, end);
        end = QP_NEVER;
    }
    return min_u64(wake, min_u64(end, pause_poll_at(s, cur, now)));
}
