/* SPDX-License-Identifier: Apache-2.0
 *
 * Absolute preemption between classes, turns inside each. See policy.h; policy_charge.c,
 * policy_claim.c, policy_turns.c and
 * policy_budget.c are parts.
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
        card->cls[k].holder = card->cls[k].draining = -1;
    }
}

void qp_forget(struct qp_card *card, uint32_t index)
{
    memset(&card->tenant[index], 0, sizeof(card->tenant[index]));
    if (card->last_user == (int32_t)index)
        card->last_user = -1;
    for (int k = 0; k < 2; k++) {
        if (card->cls[k].holder == (int32_t)index)
            card->cls[k].holder = -1;
        if (card->cls[k].draining == (int32_t)index)
            card->cls[k].draining = -1;
    }
}

/* Sorts the tenants by class, once. */
static void gather(struct qp_card *c, struct side m[2])
{
    for (int k = 0; k < 2; k++)
        m[k].registered = m[k].n = m[k].runnable = 0;
    c->awaits_online = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        struct side *s = &m[class_of(t)];
        if ((t->live || t->granted) && class_of(t) == ONLINE)
            c->awaits_online = 1;
        if (!t->live)
            continue;
        s->registered++;
        if (t->free)
            continue;
        s->runnable += !t->suspended || t->undrained;
        s->at[s->n++] = (uint16_t)i;
    }
}

/* Whoever left, became free or changed its class holds no turn of this class any more. */
static void drop_strangers(struct qp_card *c)
{
    for (int k = 0; k < 2; k++) {
        int32_t *who[2] = {&c->cls[k].holder, &c->cls[k].draining};
        for (int i = 0; i < 2; i++) {
            const struct qp_tenant *t = *who[i] >= 0 ? &c->tenant[*who[i]] : NULL;
            if (t && (!t->live || t->free || class_of(t) != k))
                *who[i] = -1;
        }
    }
}

/* The drain we gave up on did finish within QP_DRAIN_MAX_NS: the tenant was slow, not lying. Its
 * penalty is cleared, or work that shares the card would be given up on again and again. */
static void believe(struct qp_tenant *t, uint64_t now)
{
    if (!t->cut_off_ns || t->undrained)
        return;
    uint64_t took = now - t->cut_off_ns;
    t->cut_off_ns = 0;
    if (took > QP_DRAIN_MAX_NS)
        return;
    t->tail_ns = max_u64(t->tail_ns, took);
    t->overdue = 0;
}

/* Online rests since the first look that found it so, as its last kernel may have ended right
 * before, and the release must never come early; or since that kernel's end, where its program
 * waited for it. True: it has begun to, since the last decision. */
static bool begins_rest(struct qp_tenant *t, bool works, uint64_t now)
{
    bool begins = !works && t->rests_ns == QP_NEVER;
    if (works)
        t->rests_ns = QP_NEVER;
    else if (begins)
        t->rests_ns = t->ended_ns ? min_u64(now, t->ended_ns) : now;
    return begins;
}

/* Since when nobody of online works; of who left at work nothing is known. */
static uint64_t all_rest(const struct qp_card *c, uint32_t began, uint64_t now)
{
    uint64_t latest = 0;
    if (began != c->online_working)
        return now;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        if (t->live)
            latest = max_u64(latest, t->rests_ns);
    }
    return latest;
}

/* Notes who works; a tenant seen for the first time counts as idle since now. */
static void observe(struct qp_card *c, uint64_t now)
{
    uint32_t working = 0, began = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        if (!t->live)
            continue;
        believe(t, now);
        if ((t->wants && !t->unsure) || !t->last_work_ns)
            t->last_work_ns = now;
        if (t->wants)
            t->worked = 1;
        else
            t->greedy = 0;
        if (t->wants)
            t->idle_since_ns = 0;
        else if (!t->idle_since_ns)
            t->idle_since_ns = now;
        if (!t->wants && !t->undrained)
            t->busy_since_ns = 0;
        else if (!t->busy_since_ns)
            t->busy_since_ns = now;
        /* who is unsure gets a turn among its peers */
        bool works = ((t->wants && !t->unsure) || t->hung) && class_of(t) == ONLINE;
        working += works;
        began += begins_rest(t, works, now);
    }
    if (working)
        c->online_busy_ns = now;
    else if (c->online_working)
        c->online_busy_ns = all_rest(c, began, now);
    c->online_working = working;
}

/* Had work until just now, counted from the look that first found none: it may have ended right
 * before. */
static bool just_fell_silent(const struct qp_tenant *t, uint64_t now)
{
    return !t->wants && t->worked && now - t->idle_since_ns < QP_PASS_ON_NS;
}

/* Members that have work, or had until just now: a gap between two launches ends no competition. */
static uint32_t count_competing(const struct qp_card *c, const struct side *m, uint64_t now)
{
    uint32_t n = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        n += t->undrained || (!t->suspended && (t->wants || just_fell_silent(t, now)));
    }
    return n;
}

/* Must members of this class run one at a time now? */
static bool contended(const struct qp_card *c, int k, const struct side m[2], uint64_t now)
{
    /* its use is measured and limited also when it is alone */
    if (fixed(&c->cls[k]))
        return m[k].n > 0;
    if (c->cls[k].sliced || m[k].runnable < 2)
        return false;
    if (k == OFFLINE && m[ONLINE].registered)
        return true; /* a bounded window for online's sake */
    if (count_competing(c, &m[k], now) < 2)
        return false;
    if (c->cls[k].policy != QG_POLICY_BEST_EFFORT)
        return true;
    for (uint32_t j = 0; j < m[k].n; j++) { /* one context each: the card itself divides equally */
        if (c->tenant[m[k].at[j]].procs > 1)
            return true;
    }
    return false;
}

/* Online came: notes when, and who is still on the card, and learns who stays there for long. */
static void watch_drains(struct qp_card *c, const struct side *m, uint64_t now)
{
    bool fresh = c->preempting && !c->preempt_from_ns;
    c->preempt_from_ns = !c->preempting ? 0 : fresh ? now : c->preempt_from_ns;
    bool late = c->preempting && now >= c->preempt_from_ns + QP_HOLD_NS;
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        if (fresh)
            t->drains = t->undrained;
        if (!c->preempting || !t->drains || (t->undrained && !late))
            continue;
        t->heavy = t->undrained;
        t->drains = 0;
    }
}

/* Does online's second launch wait? The card divides its time between contexts, so it would come
 * back to what offline left there in the middle of online's work. Nobody waits for work that is
 * known to take long. */
static bool holding(const struct qp_card *c, const struct side *m, uint64_t now)
{
    if (!c->preempting || now >= c->preempt_from_ns + QP_HOLD_NS)
        return false;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (t->undrained && !t->heavy)
            return true;
    }
    return false;
}

/* Decides one class whose members may run now. */
static void arbitrate(struct qp_card *c, int k, const struct side m[2], uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    bool turns = contended(c, k, m, now);
    int32_t open = turns ? qp_take_turns(c, k, &m[k], now) : -1;
    if (!turns) {
        s->holder = qp_best_claim(c, k, &m[k], -1);
        s->draining = -1;
        s->foreseen_ns = 0;
    }
    for (uint32_t j = 0; j < m[k].n; j++) {
        struct qp_tenant *t = &c->tenant[m[k].at[j]];
        t->gate = !turns || open == (int32_t)m[k].at[j] ? 0 : QG_GATE_CLOSED | QG_GATE_WHY_SHARE;
    }
    s->contended = turns;
    s->resumed = 1;
    qp_make_room(c, k, &m[k], now);
}

static void close_class(struct qp_card *c, int k, const struct side *m, uint32_t why)
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
        c->cls[k].foreseen_ns = 0;
        c->cls[k].holder = c->cls[k].draining = -1;
    }
}

/* A turn was opened and nobody knows yet when it will be used: the first launch shall say so. Of a
 * tenant that stood at the gate the next look finds when it began, soon enough where no budget ends
 * meanwhile and no online tenant may come, for whom it must be known who is on the card. */
static bool awaited(const struct qp_card *c, uint32_t i, int k)
{
    const struct qp_class *s = &c->cls[k];
    const struct qp_tenant *t = &c->tenant[i];
    bool tells = t->stands || t->used_from_ns >= s->opened_ns;
    return s->contended && s->holder == (int32_t)i && !s->use_ns &&
           (fixed(s) || c->awaits_online || !tells);
}

/* Does a limit hold for it now? Nobody is limited at 100 %: the clock itself does. */
static bool limited(const struct qp_card *c, const struct qp_tenant *t)
{
    return fixed(&c->cls[class_of(t)]) && !c->ungoverned && !t->free && t->share < 100;
}

/* Bits beside CLOSED: track always; bound what is in flight always (a lone tenant's window is wide,
 * but there is one: else a newcomer would wait for a thousand kernels); ring after idleness and at
 * the first launch of a turn; at once under a limit, which must know how long each pause was, and
 * online where offline may run, and then its second launch waits for what offline has on the card.
 */
static void decorate(struct qp_card *c, const struct side m[2], uint64_t now)
{
    bool at_risk = !c->preempting && m[OFFLINE].n, held = holding(c, &m[OFFLINE], now);
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        if (!t->live)
            continue;
        int k = class_of(t);
        bool governed = !t->free && !c->ungoverned;
        if (t->free)
            t->gate = 0;
        else if (governed && t->suspended)
            t->gate = QG_GATE_CLOSED | QG_GATE_WHY_PREEMPTED;
        t->gate |= QG_GATE_TRACK;
        if (governed)
            t->gate |= QG_GATE_WINDOW;
        if (t->gate & QG_GATE_CLOSED)
            continue;
        bool first = at_risk && k == ONLINE, idle = !t->wants && !t->undrained;
        if (c->cls[k].contended && c->cls[k].early && c->cls[k].holder == (int32_t)i)
            t->gate |= QG_GATE_EARLY;
        idle = idle && (first || limited(c, t) || now - t->last_work_ns >= QP_NOTIFY_NS);
        if (idle || awaited(c, i, k))
            t->gate |= QG_GATE_NOTIFY;
        if (governed && k == ONLINE && ((first && idle) || held))
            t->gate |= QG_GATE_HOLD;
        qp_budget_until(c, i, limited(c, t), now);
    }
}

/* Who runs must be looked at; who stands at a closed gate will still stand there. */
static bool polled(const struct qp_tenant *t)
{
    if (t->gate & QG_GATE_CLOSED)
        return t->undrained;
    return t->wants || t->undrained || !(t->gate & QG_GATE_NOTIFY);
}

/* When members that fell silent just now stop to count, so that all gates may open. */
static uint64_t silence_wake(const struct qp_card *c, int k, const struct side *m, uint64_t now)
{
    uint64_t wake = QP_NEVER;
    if (!c->cls[k].contended || fixed(&c->cls[k]))
        return wake;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (just_fell_silent(t, now))
            wake = min_u64(wake, t->idle_since_ns + QP_PASS_ON_NS);
    }
    return wake;
}

/* How long after this look the next one is due. A limit counts all of an interval in which work
 * ended, so that nobody gets around it whose kernels end right before each look: where work began
 * just now looks are close. */
static uint64_t until_look(const struct qp_card *c, const struct qp_tenant *t, uint64_t tick,
                           uint64_t now)
{
    if (!t->busy_since_ns || !limited(c, t) || (t->gate & QG_GATE_CLOSED))
        return tick;
    return min_u64(tick, max_u64(QP_FINE_NS, (now - t->busy_since_ns) / QP_FINE_PARTS));
}

static uint64_t next_wake(struct qp_card *c, const struct side m[2], bool recovering, uint64_t now)
{
    bool offline = m[OFFLINE].registered > 0;
    uint64_t wake = QP_NEVER, tick = QP_TICK_NS, next_tick = QP_NEVER;
    if (!m[ONLINE].registered && m[OFFLINE].registered < 2)
        tick = QP_SOLO_TICK_NS;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        int32_t drains = c->cls[class_of(t)].draining; /* looked at by the turns themselves */
        if (!t->live || !polled(t) || (drains == (int32_t)i && c->cls[class_of(t)].resumed))
            continue;
        next_tick = min_u64(next_tick, now + until_look(c, t, tick, now));
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
        wake = min_u64(wake, qp_turn_wake(c, k, &m[k], now));
        wake = min_u64(wake, silence_wake(c, k, &m[k], now));
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
        t->flew = t->undrained;
        t->was_busy = t->wants || t->undrained;
        t->wished = claims(t);
        t->wanted = t->wants && !t->suspended;
    }
    c->last_ns = now;
}

void qp_decide(struct qp_card *c, uint64_t now)
{
    struct side m[2];
    gather(c, m);
    drop_strangers(c);
    if (!c->last_ns || now < c->last_ns)
        c->last_ns = now;
    for (int k = 0; k < 2; k++) {
        if (!c->cls[k].booked_ns)
            c->cls[k].booked_ns = now;
        qp_charge(c, k, &m[k], now);
        if (fixed(&c->cls[k]))
            qp_budget_review(c, &m[k], now);
        else
            qp_budget_drop(c, &m[k]);
    }
    observe(c, now);
    bool recovering = now < c->recovery_until_ns;
    c->preempting =
        c->online_working || (c->online_busy_ns && now < c->online_busy_ns + c->idle_release_ns);
    watch_drains(c, &m[OFFLINE], now);
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
    decorate(c, m, now);
    c->wake_ns = next_wake(c, m, recovering, now);
    remember(c, now);
}
