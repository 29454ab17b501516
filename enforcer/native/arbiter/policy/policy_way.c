/* SPDX-License-Identifier: Apache-2.0
 *
 * Two ways to share a card among the members of a class: quanta, or all gates open, where the card
 * itself divides its time. Programs that pause between kernels leave a quantum partly unused, and
 * other programs would fill the pauses; but a change of context for each pause may cost more than
 * it brings, and open gates know no weights. So both ways are tried for a moment, and the launches
 * of each member are compared. The gates stay open if nobody launches less than with quanta.
 *
 * A member that reports false counts decides only about itself: with too few launches at open gates
 * it gets quanta, and with too many it does not change that the others must not lose.
 */
#include "policy/policy_parts.h"

/* 1/n: Most that a member may lose at open gates, and least that all together must gain. Evidence:
 * simulator (docs/measurements/2026-11-29-gain-simulated.md). */
#define WAY_PART 32u
/* count: Launches of each member that make a comparison good. Evidence: simulator
 * (docs/measurements/2026-11-29-gain-simulated.md). */
#define WAY_LAUNCHES 64u
/* times: A comparison with fewer launches ends after so many times QP_WAY_NS. Evidence: none. */
#define WAY_LONGEST 4u

static struct qp_tenant *member(struct qp_card *c, const struct members *m, uint32_t j)
{
    return &c->tenant[m->at[j]];
}

/* Begins to count launches. */
static void begin_trial(struct qp_card *c, struct qp_class *s, const struct members *m,
                        uint32_t trial, uint64_t now)
{
    s->trial = trial;
    s->open = trial == QP_TRY_OPEN;
    s->trial_from_ns = now;
    s->trial_due_ns = now + (s->open ? QP_WAY_NS / 8 : QP_WAY_NS);
    s->unused_ns = 0;
    for (uint32_t j = 0; j < m->n; j++)
        member(c, m, j)->launches_before = member(c, m, j)->launches;
}

/* Stays with one way for a while, each time for longer. */
static void settle_way(struct qp_class *s, bool open, uint64_t now)
{
    s->open = open;
    s->trial = QP_TRY_NONE;
    s->trial_from_ns = now;
    s->trial_due_ns = now + s->rest_ns;
    s->rest_ns = min_u64(2 * s->rest_ns, QP_WAY_REST_NS);
}

static uint64_t counted(const struct qp_tenant *t)
{
    return t->launches > t->launches_before ? t->launches - t->launches_before : 0;
}

/* What quanta would have given it since the trial began. */
static uint64_t with_quanta(const struct qp_class *s, const struct qp_tenant *t, uint64_t now)
{
    return s->quanta_ns ? t->quanta_launches * (now - s->trial_from_ns) / s->quanta_ns : 0;
}

/* Have the counts become large enough? */
static bool is_complete(struct qp_card *c, const struct qp_class *s, const struct members *m,
                        uint64_t now)
{
    uint64_t age = now - s->trial_from_ns, least = WAY_LAUNCHES;
    for (uint32_t j = 0; j < m->n; j++) {
        uint64_t n = counted(member(c, m, j));
        least = n ? min_u64(least, n) : least; /* one without any launch has no say */
    }
    return age >= QP_WAY_NS && (least >= WAY_LAUNCHES || age >= WAY_LONGEST * QP_WAY_NS);
}

/* The time of quanta that their tenant did not use while others waited. */
static void count_unused(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    const struct qp_tenant *cur = s->current >= 0 ? &c->tenant[s->current] : NULL;
    if (!s->contended || !cur || !is_open(cur) || cur->undrained ||
        qp_select_next(c, k, m, s->current) < 0)
        return;
    uint64_t dt = now - c->last_ns;
    s->unused_ns += cur->was_undrained ? dt / 2 : dt;
}

/* Quanta were measured: are open gates worth a try? */
static void end_of_quanta(struct qp_card *c, struct qp_class *s, const struct members *m,
                          uint64_t now)
{
    uint64_t age = now - s->trial_from_ns;
    if (s->unused_ns <= age / WAY_PART) {
        begin_trial(c, s, m, QP_TRY_QUANTA, now);
        return;
    }
    s->quanta_ns = age;
    for (uint32_t j = 0; j < m->n; j++)
        member(c, m, j)->quanta_launches = counted(member(c, m, j));
    begin_trial(c, s, m, QP_TRY_OPEN, now);
}

/* Does a member lose? `early`: more than by chance. */
static bool any_loses(struct qp_card *c, const struct qp_class *s, const struct members *m,
                      bool early, uint64_t now)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = member(c, m, j);
        uint64_t due = with_quanta(s, t, now), got = counted(t);
        uint64_t less = due > got ? due - got : 0;
        if (less > due / WAY_PART + 1 && (!early || less * less > 4 * due))
            return true;
    }
    return false;
}

/* Do all together gain? Each counts by its own launches, as these differ in length. */
static bool all_gain(struct qp_card *c, const struct qp_class *s, const struct members *m,
                     uint64_t now)
{
    uint64_t parts = 0, n = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = member(c, m, j);
        uint64_t due = with_quanta(s, t, now);
        if (!due)
            continue;
        n++;
        parts += min_u64(counted(t), 16 * due) * WAY_PART / due;
    }
    return n && parts >= n * (WAY_PART + 1);
}

/* Another member, or one that left: what was measured is void. */
static bool has_changed(struct qp_card *c, struct qp_class *s, const struct members *m)
{
    bool changed = s->members != m->n;
    for (uint32_t j = 0; j < m->n; j++) {
        changed |= !member(c, m, j)->compared;
        member(c, m, j)->compared = 1;
    }
    s->members = m->n;
    return changed;
}

/* Chooses the way of a class. `may_open`: all its gates may be open at the same time. */
void qp_choose_way(struct qp_card *c, int k, const struct members *m, bool may_open, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    bool changed = has_changed(c, s, m);
    if (changed || !may_open) {
        s->rest_ns = QP_WAY_REST_LEAST_NS;
        begin_trial(c, s, m, may_open ? QP_TRY_QUANTA : QP_TRY_NONE, now);
        s->trial_due_ns = may_open ? s->trial_due_ns : QP_NEVER;
        return;
    }
    count_unused(c, k, m, now);
    if (now < s->trial_due_ns)
        return;
    bool complete = is_complete(c, s, m, now);
    if (s->trial == QP_TRY_NONE)
        begin_trial(c, s, m, QP_TRY_QUANTA, now);
    else if (s->trial == QP_TRY_QUANTA && complete)
        end_of_quanta(c, s, m, now);
    else if (s->trial == QP_TRY_OPEN && any_loses(c, s, m, !complete, now))
        settle_way(s, false, now);
    else if (s->trial == QP_TRY_OPEN && complete)
        settle_way(s, all_gain(c, s, m, now), now);
    else
        s->trial_due_ns = now + (s->open ? QP_WAY_NS / 8 : QP_WAY_NS);
}

/* When it is due again; without competition there is nothing to compare. */
uint64_t qp_way_wake(const struct qp_card *c, int k)
{
    const struct qp_class *s = &c->cls[k];
    return s->contended || s->open ? s->trial_due_ns : QP_NEVER;
}
