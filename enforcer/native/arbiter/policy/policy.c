/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of one decision: online preempts offline, and the members of each class share the card
 * by quanta. policy_charge.c charges use, policy_quantum.c begins and ends quanta, and
 * policy_budget.c limits fixed shares.
 */
#include "policy/policy.h"

#include <string.h>

#include "policy/policy_parts.h"

void qp_init(struct qp_card *card)
{
    memset(card, 0, sizeof(*card));
    card->wake_ns = QP_NEVER;
    for (int k = 0; k < 2; k++) {
        card->cls[k].policy = QG_POLICY_BURST_SHARE;
        card->cls[k].current = card->cls[k].draining = -1;
    }
}

void qp_forget(struct qp_card *card, uint32_t index)
{
    memset(&card->tenant[index], 0, sizeof(card->tenant[index]));
    memset(&card->history[index], 0, sizeof(card->history[index]));
    for (int k = 0; k < 2; k++) {
        if (card->cls[k].current == (int32_t)index)
            card->cls[k].current = -1;
        if (card->cls[k].draining == (int32_t)index)
            card->cls[k].draining = -1;
    }
}

/* A held tenant whose work has left the card takes no part: the others share as if it were not
 * there. Its quantum or drain ends first, as any other does. */
static bool is_away(const struct qp_card *c, uint32_t i)
{
    const struct qp_tenant *t = &c->tenant[i];
    const struct qp_class *s = &c->cls[class_of(t)];
    return t->held && !t->undrained && !t->was_undrained && s->current != (int32_t)i &&
           s->draining != (int32_t)i;
}

/* Sorts the tenants by class, once per decision. */
static void gather(const struct qp_card *c, struct members m[2])
{
    for (int k = 0; k < 2; k++)
        m[k].registered = m[k].n = m[k].may_run = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        struct members *s = &m[class_of(t)];
        if (!t->live || is_away(c, i))
            continue;
        s->registered++;
        if (t->ungoverned)
            continue;
        s->may_run += !is_barred(t) || t->undrained;
        s->at[s->n++] = (uint16_t)i;
    }
}

/* A tenant that left, became free or changed its class has no quantum and no drain here. */
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

/* Notes since when an online tenant is idle: the end of its last kernel if its program reported
 * it. Else it is this sample: the kernel may have ended just before, and offline must never be
 * released early. Returns true if it became idle since the last decision. */
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
        if (c->tenant[i].live)
            latest = max_u64(latest, c->tenant[i].online_idle_since_ns);
    }
    return latest;
}

/* Notes a pause that ended. */
static void note_pause(struct qp_tenant *t, uint64_t now)
{
    uint64_t pause = min_u64(now - t->idle_since_ns, QP_GAP_NS);
    t->pause_ns = t->pause_ns - t->pause_ns / 8 + pause / 8;
    t->returned = 1;
}

/* Notes for each tenant whether it has work, and since when offline may not run. */
static void note_inputs(struct qp_card *c, const struct members *offline, uint64_t now)
{
    uint32_t working = 0, began = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        if (!t->live)
            continue;
        bool runnable = t->runnable && !t->held;
        t->had_work_ns += t->was_runnable ? now - c->last_ns : 0;
        if (!runnable)
            t->backlogged = t->returned = 0;
        else if (t->idle_since_ns)
            note_pause(t, now);
        t->idle_since_ns = runnable ? 0 : t->idle_since_ns ? t->idle_since_ns : now;
        bool works = t->preempts && !t->held && class_of(t) == ONLINE;
        working += works;
        began += becomes_idle(t, works, now);
    }
    if (!working && c->online_working)
        c->online_busy_ns = online_idle_since(c, began, now);
    qp_release(c, offline, working > 0, now);
    if (working)
        c->online_busy_ns = now;
    c->online_working = working;
    c->preempt_from_ns = !c->preempting ? 0 : c->preempt_from_ns ? c->preempt_from_ns : now;
}

/* Had work just now: the competition goes on during a gap between two launches. */
static bool just_became_idle(const struct qp_tenant *t, uint64_t now)
{
    return t->idle_since_ns && now - t->idle_since_ns < QP_GAP_NS;
}

/* Must the members of this class run one at a time now? */
static bool contended(const struct qp_card *c, int k, const struct members m[2], uint64_t now)
{
    const struct qp_class *s = &c->cls[k];
    uint32_t competing = 0;
    if (is_fixed_share(s))
        return m[k].n > 0; /* it limits a tenant that is alone, too */
    if (s->sliced || s->way == QP_WAY_OPEN || m[k].may_run < 2)
        return false;
    if (k == OFFLINE && m[ONLINE].registered)
        return true; /* the window of the one open gate bounds what online waits for */
    for (uint32_t j = 0; j < m[k].n; j++) {
        const struct qp_tenant *t = &c->tenant[m[k].at[j]];
        competing += t->undrained || (!is_barred(t) && (t->runnable || just_became_idle(t, now)));
    }
    return competing >= 2;
}

/* Does online's second launch wait? The card divides its time between contexts. Without this wait
 * it would return to offline's work in the middle of online's. */
static bool holding(const struct qp_card *c, const struct members *offline, uint64_t now)
{
    if (!c->preempting || now >= c->preempt_from_ns + QP_HOLD_NS)
        return false;
    for (uint32_t j = 0; j < offline->n; j++) {
        if (c->tenant[offline->at[j]].undrained)
            return true;
    }
    return false;
}

/* The last of the ways that a class may try. One open gate at a time bounds what online waits
 * for. */
static enum qp_way last_way(const struct qp_class *s, int k, const struct members m[2])
{
    if (is_fixed_share(s) || s->sliced || m[k].n < 2)
        return QP_WAY_QUANTA;
    return k == ONLINE || m[ONLINE].registered ? QP_WAY_LEND : QP_WAY_OPEN;
}

/* Decides one class whose members may run now. */
static void arbitrate(struct qp_card *c, int k, const struct members m[2], uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    qp_choose_way(c, k, &m[k], last_way(s, k, m), now);
    bool one_only = contended(c, k, m, now);
    int32_t open = one_only ? qp_choose_open(c, k, &m[k], now) : -1;
    if (!one_only) {
        s->current = qp_select_next(c, k, &m[k], -1);
        s->draining = -1;
    }
    for (uint32_t j = 0; j < m[k].n; j++) {
        bool opens = !one_only || open == (int32_t)m[k].at[j];
        c->tenant[m[k].at[j]].gate = opens ? 0 : QG_GATE_CLOSED | QG_GATE_WHY_SHARE;
    }
    s->contended = one_only;
    s->resumed = 1;
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
        c->cls[k].current = c->cls[k].draining = -1;
    }
}

/* Does a limit hold for it now? */
static bool limit_holds(const struct qp_card *c, const struct qp_tenant *t)
{
    return is_limited(&c->cls[class_of(t)], t) && !c->ungoverned && !t->ungoverned;
}

/* Does the next launch ring? An idle tenant is not polled any more after a while. Online's first
 * launch, one under a limit, and the first of a quantum ring at once. */
static bool notifies(const struct qp_card *c, uint32_t i, bool at_risk, uint64_t now)
{
    const struct qp_tenant *t = &c->tenant[i];
    const struct qp_class *s = &c->cls[class_of(t)];
    if (s->contended && s->current == (int32_t)i && !s->use_from_ns)
        return true;
    if (t->runnable || t->undrained)
        return false;
    return at_risk || limit_holds(c, t) || now - t->idle_since_ns >= QP_GAP_NS;
}

/* Does the end of its work ring? Others wait for the pauses of its quantum. */
static bool rings_when_idle(const struct qp_card *c, uint32_t i, const struct members m[2])
{
    int k = class_of(&c->tenant[i]);
    const struct qp_class *s = &c->cls[k];
    return s->contended && s->current == (int32_t)i && lends_at_once(s, &c->tenant[i]) &&
           qp_select_next(c, k, &m[k], (int32_t)i) >= 0;
}

/* Adds the bits beside CLOSED. WINDOW: always for governed tenants. A lone tenant's window is wide,
 * but without one a newcomer would wait for a thousand queued kernels. HOLD: online's second launch
 * waits until offline's work has left the card. */
static void add_gate_bits(struct qp_card *c, const struct members m[2], uint64_t now)
{
    bool held = holding(c, &m[OFFLINE], now);
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        bool governed = !t->ungoverned && !c->ungoverned, online = class_of(t) == ONLINE;
        bool at_risk = online && !c->preempting && m[OFFLINE].n;
        /* a pause inside a request is measured by the launch that ends it */
        bool measured = online && c->online_delay_ns && m[OFFLINE].n;
        if (!t->live)
            continue;
        if (t->held)
            t->gate = QG_GATE_CLOSED | QG_GATE_WHY_MEMORY;
        else if (t->ungoverned)
            t->gate = 0;
        else if (governed && (t->suspended || t->late))
            t->gate = QG_GATE_CLOSED | QG_GATE_WHY_PREEMPTED;
        t->gate |= QG_GATE_TRACK | (governed ? QG_GATE_WINDOW : 0);
        t->until_ns = 0;
        if (!is_open(t))
            continue;
        bool idle = !t->runnable && !t->undrained;
        if (rings_when_idle(c, i, m))
            t->gate |= QG_GATE_IDLE;
        if (notifies(c, i, at_risk || measured, now))
            t->gate |= QG_GATE_NOTIFY;
        else if (limit_holds(c, t))
            qp_budget_until(c, i, now);
        if (governed && online && ((at_risk && idle) || held))
            t->gate |= QG_GATE_HOLD;
    }
}

/* When the state of a tenant has to be sampled again. With an open gate it may change at any time;
 * without work behind a closed gate it cannot. qp_quantum_wake asks for the polls of a drain. */
static uint64_t sample_at(const struct qp_card *c, uint32_t i, uint64_t tick, uint64_t now)
{
    const struct qp_tenant *t = &c->tenant[i];
    const struct qp_class *s = &c->cls[class_of(t)];
    if (!t->live || (s->draining == (int32_t)i && s->resumed))
        return QP_NEVER;
    if (!t->undrained && (!is_open(t) || (!t->runnable && t->gate & QG_GATE_NOTIFY)))
        return QP_NEVER;
    return now + tick;
}

/* When members that became idle just now stop to compete, so that all gates may open. Under
 * fixed-share they never do. */
static uint64_t gap_ends_at(const struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    const struct qp_class *s = &c->cls[k];
    uint64_t wake = QP_NEVER;
    for (uint32_t j = 0; s->contended && !is_fixed_share(s) && j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (!is_barred(t) && just_became_idle(t, now))
            wake = min_u64(wake, t->idle_since_ns + QP_GAP_NS);
    }
    return wake;
}

static void set_wake(struct qp_card *c, const struct members m[2], uint64_t now)
{
    bool offline = m[OFFLINE].registered > 0, shared = m[ONLINE].registered || m[OFFLINE].n > 1;
    uint64_t tick = shared ? QP_TICK_NS : QP_SOLO_TICK_NS, wake = QP_NEVER, sample = QP_NEVER;
    uint64_t release = c->online_working ? max_u64(c->release_ns, tick) : c->release_ns;
    uint64_t last = c->online_busy_ns + c->idle_release_ns;
    for (uint32_t i = 0; i < c->ntenants; i++)
        sample = min_u64(sample, sample_at(c, i, tick, now));
    if (offline && c->preempting)
        wake = min_u64(wake, c->online_busy_ns + release);
    else if (offline && c->online_busy_ns && now < last)
        wake = min_u64(wake, last); /* opens the gates of late tenants */
    if (holding(c, &m[OFFLINE], now))
        wake = min_u64(wake, min_u64(now + QP_DRAIN_POLL_NS, c->preempt_from_ns + QP_HOLD_NS));
    if (offline && now < c->recovery_until_ns)
        wake = min_u64(wake, c->recovery_until_ns);
    for (int k = 0; !c->ungoverned && k < 2; k++) {
        if (k == OFFLINE && !c->cls[k].resumed)
            continue;
        wake = min_u64(wake, qp_quantum_wake(c, k, &m[k], now));
        wake = min_u64(wake, gap_ends_at(c, k, &m[k], now));
        wake = min_u64(wake, qp_way_wake(c, k, &m[k]));
    }
    c->due_ns = wake;
    wake = min_u64(wake, sample);
    c->wake_ns = wake <= now ? now + QP_DRAIN_POLL_NS : wake;
}

/* What the next decision compares with. */
static void remember(struct qp_card *c, uint64_t now)
{
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        t->was_undrained = t->undrained;
        t->was_runnable = t->runnable && !is_barred(t);
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
        qp_budget_review(c, k, &m[k], now);
    }
    note_inputs(c, &m[OFFLINE], now);
    gather(c, m); /* again, because `late` changed */
    if (c->ungoverned) {
        open_all(c);
    } else {
        arbitrate(c, ONLINE, m, now);
        if (c->preempting)
            close_class(c, OFFLINE, &m[OFFLINE], QG_GATE_WHY_PREEMPTED);
        else if (now < c->recovery_until_ns)
            close_class(c, OFFLINE, &m[OFFLINE], QG_GATE_WHY_RECOVERY);
        else
            arbitrate(c, OFFLINE, m, now);
    }
    add_gate_bits(c, m, now);
    set_wake(c, m, now);
    remember(c, now);
}
