/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of one decision: online preempts offline, and the members of each class share the card
 * by quanta. policy_charge.c charges use, policy_select.c chooses the next tenant, policy_quantum.c
 * begins and ends quanta, and policy_budget.c limits fixed shares.
 */
#include "policy/policy.h"

#include <string.h>

#include "policy/policy_parts.h"

void qp_init(struct qp_card *card)
{
    memset(card, 0, sizeof(*card));
    card->wake_ns = QP_NEVER;
    card->last_user = -1;
    for (int k = 0; k < 2; k++) {
        card->cls[k].policy = QG_POLICY_BURST_SHARE;
        card->cls[k].current = card->cls[k].draining = -1;
    }
}

void qp_forget(struct qp_card *card, uint32_t index)
{
    memset(&card->tenant[index], 0, sizeof(card->tenant[index]));
    if (card->last_user == (int32_t)index)
        card->last_user = -1;
    for (int k = 0; k < 2; k++) {
        if (card->cls[k].current == (int32_t)index)
            card->cls[k].current = -1;
        if (card->cls[k].draining == (int32_t)index)
            card->cls[k].draining = -1;
    }
}

/* Sorts the tenants by class, once per decision. */
static void gather(struct qp_card *c, struct members m[2])
{
    for (int k = 0; k < 2; k++)
        m[k].registered = m[k].n = m[k].may_run = 0;
    c->awaits_online = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        struct members *s = &m[class_of(t)];
        if ((t->live || t->granted) && class_of(t) == ONLINE)
            c->awaits_online = 1;
        if (!t->live)
            continue;
        s->registered++;
        if (t->ungoverned)
            continue;
        s->may_run += !t->suspended || t->undrained;
        s->at[s->n++] = (uint16_t)i;
    }
}

/* A tenant that left, became free or changed its class has no quantum and no drain in this
 * class. */
static void drop_departed(struct qp_card *c)
{
    for (int k = 0; k < 2; k++) {
        int32_t *place[2] = {&c->cls[k].current, &c->cls[k].draining};
        for (int i = 0; i < 2; i++) {
            const struct qp_tenant *t = *place[i] >= 0 ? &c->tenant[*place[i]] : NULL;
            if (t && (!t->live || t->ungoverned || class_of(t) != k))
                *place[i] = -1;
        }
    }
}

/* A drain that timed out has ended within QP_DRAIN_TIMEOUT_NS after all: the tenant was slow and
 * did not lie. Its timeout is restored to the full length. Otherwise work that shares the card, and
 * is slow for that reason, would time out again and again. */
static void forgive_timeout(struct qp_tenant *t, uint64_t now)
{
    if (!t->timed_out_close_ns || t->undrained)
        return;
    uint64_t took = now - t->timed_out_close_ns;
    t->timed_out_close_ns = 0;
    if (took > QP_DRAIN_TIMEOUT_NS)
        return;
    t->max_drain_ns = max_u64(t->max_drain_ns, took);
    t->drain_timeouts = 0;
}

/* Notes since when an online tenant is idle. That is the end of its last kernel if its program
 * waited for it and reported it. Else it is this sample, the first without work: the kernel may
 * have ended just before, and offline must never be released early. Returns true if it became idle
 * since the last decision. */
static bool becomes_idle(struct qp_tenant *t, bool works, uint64_t now)
{
    bool begins = !works && t->online_idle_since_ns == QP_NEVER;
    if (works)
        t->online_idle_since_ns = QP_NEVER;
    else if (begins)
        t->online_idle_since_ns = t->reported_end_ns ? min_u64(now, t->reported_end_ns) : now;
    return begins;
}

/* Time since when all online tenants are idle. If one of them left while it had work, its end is
 * not known: now. */
static uint64_t online_idle_since(const struct qp_card *c, uint32_t began, uint64_t now)
{
    uint64_t latest = 0;
    if (began != c->online_working)
        return now;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        if (t->live)
            latest = max_u64(latest, t->online_idle_since_ns);
    }
    return latest;
}

/* Notes for each tenant whether it has work. A tenant seen for the first time counts as idle since
 * now. */
static void note_inputs(struct qp_card *c, uint64_t now)
{
    uint32_t working = 0, began = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        if (!t->live)
            continue;
        forgive_timeout(t, now);
        if ((t->runnable && !t->doubted) || !t->last_runnable_ns)
            t->last_runnable_ns = now;
        if (t->runnable)
            t->ever_runnable = 1;
        else
            t->backlogged = 0;
        if (t->runnable)
            t->idle_since_ns = 0;
        else if (!t->idle_since_ns)
            t->idle_since_ns = now;
        if (!t->runnable && !t->undrained)
            t->busy_since_ns = 0;
        else if (!t->busy_since_ns)
            t->busy_since_ns = now;
        /* a doubted tenant gets quanta among its peers, but keeps offline closed no longer */
        bool works = ((t->runnable && !t->doubted) || t->hung) && class_of(t) == ONLINE;
        working += works;
        began += becomes_idle(t, works, now);
    }
    if (working)
        c->online_busy_ns = now;
    else if (c->online_working)
        c->online_busy_ns = online_idle_since(c, began, now);
    c->online_working = working;
}

/* Had work less than QP_COMPETES_NS before now. Counted from the first sample without work, as the
 * work may have ended just before that. */
static bool just_became_idle(const struct qp_tenant *t, uint64_t now)
{
    return !t->runnable && t->ever_runnable && now - t->idle_since_ns < QP_COMPETES_NS;
}

/* Members that have work, or had some just now: the competition goes on during a gap between two
 * launches. */
static uint32_t count_competing(const struct qp_card *c, const struct members *m, uint64_t now)
{
    uint32_t n = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        n += t->undrained || (!t->suspended && (t->runnable || just_became_idle(t, now)));
    }
    return n;
}

/* Must the members of this class run one at a time now? */
static bool contended(const struct qp_card *c, int k, const struct members m[2], uint64_t now)
{
    /* fixed-share measures and limits a tenant that is alone, too */
    if (is_fixed_share(&c->cls[k]))
        return m[k].n > 0;
    if (c->cls[k].sliced || m[k].may_run < 2)
        return false;
    if (k == OFFLINE && m[ONLINE].registered)
        return true; /* the window of the one open gate bounds what online waits for */
    if (count_competing(c, &m[k], now) < 2)
        return false;
    if (c->cls[k].policy != QG_POLICY_BEST_EFFORT)
        return true;
    /* with one context each the card itself divides its time equally */
    for (uint32_t j = 0; j < m[k].n; j++) {
        if (c->tenant[m[k].at[j]].procs > 1)
            return true;
    }
    return false;
}

/* When online preempts, notes the time and the offline tenants with work on the card. Then learns
 * of each whether its work takes longer than QP_HOLD_NS to leave the card. */
static void time_online_drains(struct qp_card *c, const struct members *m, uint64_t now)
{
    bool fresh = c->preempting && !c->preempt_from_ns;
    c->preempt_from_ns = !c->preempting ? 0 : fresh ? now : c->preempt_from_ns;
    bool late = c->preempting && now >= c->preempt_from_ns + QP_HOLD_NS;
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        if (fresh)
            t->drain_unknown = t->undrained;
        if (!c->preempting || !t->drain_unknown || (t->undrained && !late))
            continue;
        t->slow_drain = t->undrained;
        t->drain_unknown = 0;
    }
}

/* Does online's second launch wait? The card divides its time between contexts. Without this wait
 * it would return to offline's work in the middle of online's. The wait is pointless for work that
 * is known to take long. */
static bool holding(const struct qp_card *c, const struct members *m, uint64_t now)
{
    if (!c->preempting || now >= c->preempt_from_ns + QP_HOLD_NS)
        return false;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (t->undrained && !t->slow_drain)
            return true;
    }
    return false;
}

/* Decides one class whose members may run now. */
static void arbitrate(struct qp_card *c, int k, const struct members m[2], uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    bool one_only = contended(c, k, m, now);
    int32_t open = one_only ? qp_choose_open(c, k, &m[k], now) : -1;
    if (!one_only) {
        s->current = qp_select_next(c, k, &m[k], -1);
        s->draining = -1;
        s->predicted_end_ns = 0;
    }
    for (uint32_t j = 0; j < m[k].n; j++) {
        struct qp_tenant *t = &c->tenant[m[k].at[j]];
        t->gate = !one_only || open == (int32_t)m[k].at[j] ? 0 : QG_GATE_CLOSED | QG_GATE_WHY_SHARE;
    }
    s->contended = one_only;
    s->resumed = 1;
    qp_allow_deep_window(c, k, &m[k], now);
}

static void close_class(struct qp_card *c, int k, const struct members *m, uint32_t why)
{
    for (uint32_t j = 0; j < m->n; j++)
        c->tenant[m->at[j]].gate = QG_GATE_CLOSED | why;
    c->cls[k].resumed = 0;
}

static void open_all(struct qp_card *c)
{
    for (uint32_t i = 0; i < c->ntenants; i++)
        c->tenant[i].gate = 0;
    for (int k = 0; k < 2; k++) {
        c->cls[k].contended = 0;
        c->cls[k].predicted_end_ns = 0;
        c->cls[k].current = c->cls[k].draining = -1;
    }
}

/* A quantum was opened and its first use is not known yet, so the first launch has to ring. If
 * threads waited at the gate the next sample finds the first use, too. That is early enough unless
 * a budget may end meanwhile, or an online tenant may come: then it must be known which tenant is
 * on the card. */
static bool first_use_unknown(const struct qp_card *c, uint32_t i, int k)
{
    const struct qp_class *s = &c->cls[k];
    const struct qp_tenant *t = &c->tenant[i];
    bool reports = t->at_gate || t->used_from_ns >= s->opened_ns;
    return s->contended && s->current == (int32_t)i && !s->use_from_ns &&
           (is_fixed_share(s) || c->awaits_online || !reports);
}

/* Does a limit hold for it now? A share of 100 % needs none: time itself is the limit. */
static bool limit_holds(const struct qp_card *c, const struct qp_tenant *t)
{
    return is_fixed_share(&c->cls[class_of(t)]) && !c->ungoverned && !t->ungoverned &&
           t->share < 100;
}

/* Adds the bits beside CLOSED. TRACK: always. WINDOW: always for governed tenants. A lone tenant's
 * window is wide, but without one a newcomer would wait for a thousand queued kernels. NOTIFY:
 * after QP_NOTIFY_NS without work, and at the first launch of a quantum. Without that delay under a
 * limit, which must know the length of each pause, and for online while offline may run. HOLD:
 * online's second launch waits until offline's work has left the card. */
static void add_gate_bits(struct qp_card *c, const struct members m[2], uint64_t now)
{
    bool at_risk = !c->preempting && m[OFFLINE].n, held = holding(c, &m[OFFLINE], now);
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        if (!t->live)
            continue;
        int k = class_of(t);
        bool governed = !t->ungoverned && !c->ungoverned;
        if (t->ungoverned)
            t->gate = 0;
        else if (governed && t->suspended)
            t->gate = QG_GATE_CLOSED | QG_GATE_WHY_PREEMPTED;
        t->gate |= QG_GATE_TRACK;
        if (governed)
            t->gate |= QG_GATE_WINDOW;
        if (t->gate & QG_GATE_CLOSED)
            continue;
        bool first = at_risk && k == ONLINE, idle = !t->runnable && !t->undrained;
        if (c->cls[k].contended && c->cls[k].opened_early && c->cls[k].current == (int32_t)i)
            t->gate |= QG_GATE_EARLY;
        idle = idle && (first || limit_holds(c, t) || now - t->last_runnable_ns >= QP_NOTIFY_NS);
        if (idle || first_use_unknown(c, i, k))
            t->gate |= QG_GATE_NOTIFY;
        if (governed && k == ONLINE && ((first && idle) || held))
            t->gate |= QG_GATE_HOLD;
        qp_budget_until(c, i, limit_holds(c, t), now);
    }
}

/* Does the tenant's state have to be sampled? With an open gate it may change at any time. Without
 * work behind a closed gate it cannot change. */
static bool polled(const struct qp_tenant *t)
{
    if (t->gate & QG_GATE_CLOSED)
        return t->undrained;
    return t->runnable || t->undrained || !(t->gate & QG_GATE_NOTIFY);
}

/* When members that became idle just now stop to compete, so that all gates may open. */
static uint64_t idle_wake(const struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    uint64_t wake = QP_NEVER;
    if (!c->cls[k].contended || is_fixed_share(&c->cls[k]))
        return wake;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (just_became_idle(t, now))
            wake = min_u64(wake, t->idle_since_ns + QP_COMPETES_NS);
    }
    return wake;
}

/* Time until the next sample of a tenant. A limit charges all of an interval in which work ended.
 * Otherwise a tenant whose kernels end right before each sample would evade it. So work that began
 * just now is sampled at short intervals. */
static uint64_t sample_interval(const struct qp_card *c, const struct qp_tenant *t, uint64_t tick,
                                uint64_t now)
{
    if (!t->busy_since_ns || !limit_holds(c, t) || (t->gate & QG_GATE_CLOSED))
        return tick;
    return min_u64(tick, max_u64(QP_FINE_NS, (now - t->busy_since_ns) / QP_FINE_PARTS));
}

static uint64_t next_wake(struct qp_card *c, const struct members m[2], bool recovering,
                          uint64_t now)
{
    bool offline = m[OFFLINE].registered > 0;
    uint64_t wake = QP_NEVER, tick = QP_TICK_NS, next_tick = QP_NEVER;
    if (!m[ONLINE].registered && m[OFFLINE].registered < 2)
        tick = QP_SOLO_TICK_NS;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        /* qp_quantum_wake asks for the polls of the draining tenant */
        int32_t draining = c->cls[class_of(t)].draining;
        if (!t->live || !polled(t) || (draining == (int32_t)i && c->cls[class_of(t)].resumed))
            continue;
        next_tick = min_u64(next_tick, now + sample_interval(c, t, tick, now));
    }
    uint64_t release = c->online_working ? max_u64(c->idle_release_ns, tick) : c->idle_release_ns;
    if (offline && c->preempting)
        wake = min_u64(wake, c->online_busy_ns + release);
    if (holding(c, &m[OFFLINE], now))
        wake = min_u64(wake, min_u64(now + QP_DRAIN_POLL_NS, c->preempt_from_ns + QP_HOLD_NS));
    if (offline && recovering)
        wake = min_u64(wake, c->recovery_until_ns);
    c->soft_ns = QP_NEVER;
    for (int k = 0; !c->ungoverned && k < 2; k++) {
        if (k == OFFLINE && !c->cls[k].resumed)
            continue;
        wake = min_u64(wake, qp_quantum_wake(c, k, &m[k], now));
        wake = min_u64(wake, idle_wake(c, k, &m[k], now));
    }
    c->due_ns = wake;
    wake = min_u64(wake, next_tick);
    return wake <= now ? now + QP_DRAIN_POLL_NS : wake;
}

/* What the next decision compares with. */
static void remember(struct qp_card *c, uint64_t now)
{
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        t->was_undrained = t->undrained;
        t->was_busy = t->runnable || t->undrained;
        t->was_competing = competes(t);
        t->was_runnable = t->runnable && !t->suspended;
    }
    c->last_ns = now;
}

void qp_decide(struct qp_card *c, uint64_t now)
{
    struct members m[2];
    gather(c, m);
    drop_departed(c);
    if (!c->last_ns || now < c->last_ns)
        c->last_ns = now;
    for (int k = 0; k < 2; k++) {
        if (!c->cls[k].charged_until_ns)
            c->cls[k].charged_until_ns = now;
        qp_charge(c, k, &m[k], now);
        if (is_fixed_share(&c->cls[k]))
            qp_budget_review(c, &m[k], now);
        else
            qp_budget_drop(c, &m[k]);
    }
    note_inputs(c, now);
    bool recovering = now < c->recovery_until_ns;
    c->preempting =
        c->online_working || (c->online_busy_ns && now < c->online_busy_ns + c->idle_release_ns);
    time_online_drains(c, &m[OFFLINE], now);
    if (c->ungoverned) {
        open_all(c);
    } else {
        arbitrate(c, ONLINE, m, now);
        if (c->preempting)
            close_class(c, OFFLINE, &m[OFFLINE], QG_GATE_WHY_PREEMPTED);
        else if (recovering)
            close_class(c, OFFLINE, &m[OFFLINE], QG_GATE_WHY_RECOVERY);
        else
            arbitrate(c, OFFLINE, m, now);
    }
    add_gate_bits(c, m, now);
    c->wake_ns = next_wake(c, m, recovering, now);
    remember(c, now);
}
