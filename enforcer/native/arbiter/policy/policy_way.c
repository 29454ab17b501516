/* SPDX-License-Identifier: Apache-2.0
 *
 * Three ways to share a card among the members of a class: quanta; quanta whose pauses are lent to
 * others at once; all gates open, where the card itself divides its time. Programs that pause
 * between kernels leave a part of their quanta unused. What fills the pauses best depends on the
 * lengths of kernels and pauses, on what a change of context costs, and on the weights. So the ways
 * are tried for a moment each, and the launches of each member are compared. Another way is taken
 * only if no member launches less in it than under quanta, and left when a member does.
 *
 * The counts are the jobs' own words. With too few launches a member keeps its class in quanta, and
 * the others have their parts. With too many it does not change that the others must not lose.
 */
#include "policy/policy_parts.h"

/* 1/n: Most that a member may lose by a way, and twice the least that all together must gain.
 * Evidence: simulator (docs/measurements/2026-11-29-gain-simulated.md). */
#define WAY_PART 32u
/* count: Launches of each member that make a comparison good. Evidence: simulator
 * (docs/measurements/2026-11-29-gain-simulated.md). */
#define WAY_LAUNCHES 32u
/* times: A trial with fewer launches ends after WAY_LONGEST * QP_WAY_NS. Evidence: simulator
 * (docs/measurements/2026-11-29-gain-simulated.md). */
#define WAY_LONGEST 4u
/* count: More launches in a trial are not believed. No sum of products wraps. Evidence: bound. */
#define WAY_MOST (1ull << 20)
/* 1/n: A trial of open gates is checked after each such part of QP_WAY_NS, and ends when a member
 * launches a quarter less. Evidence: simulator (docs/measurements/2026-11-29-gain-simulated.md). */
#define WAY_LOOKS 8u

static struct qp_tenant *member(struct qp_card *c, const struct members *m, uint32_t j)
{
    return &c->tenant[m->at[j]];
}

/* Quanta keep the weights; open gates are watched closely. */
static uint64_t look_after(const struct qp_class *s)
{
    return s->way == QP_WAY_OPEN ? QP_WAY_NS / WAY_LOOKS : QP_WAY_NS;
}

static void begin_counts(struct qp_card *c, struct qp_class *s, const struct members *m,
                         uint64_t now)
{
    s->counted_ns = 0;
    s->look_ns = now + look_after(s);
    s->unused_ns = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = member(c, m, j);
        t->launches_before = t->launches;
        t->service_before_ns = t->service_ns;
        t->had_work_before_ns = t->had_work_ns;
    }
}

/* Takes another way. Where pauses are lent, all deficits rise together. That does not change the
 * order, but a member that pauses under quanta would lose its credit, and the others keep theirs:
 * so all are moved back by weight, to a sum of 0. */
static void take_way(struct qp_card *c, struct qp_class *s, const struct members *m, uint32_t way)
{
    int64_t deficits = 0, sum = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        deficits += member(c, m, j)->deficit_ns;
        sum += weight(s, member(c, m, j));
    }
    for (uint32_t j = 0; way != s->way && j < m->n; j++) {
        struct qp_tenant *t = member(c, m, j);
        t->deficit_ns = clamp_deficit(t->deficit_ns - deficits * weight(s, t) / sum);
    }
    if (way != s->way)
        s->began_weight = 0; /* of another scale */
    s->way = way;
}

static void begin_trial(struct qp_card *c, struct qp_class *s, const struct members *m,
                        uint32_t way, uint64_t now)
{
    s->trial = 1;
    take_way(c, s, m, way);
    begin_counts(c, s, m, now);
}

/* Stays with a way for a while, each time for longer. */
static void settle_way(struct qp_card *c, struct qp_class *s, const struct members *m, uint32_t way,
                       uint64_t now)
{
    s->trial = 0;
    take_way(c, s, m, way);
    begin_counts(c, s, m, now);
    s->settled_until_ns = now + s->rest_ns;
    s->look_ns = way == QP_WAY_QUANTA ? s->settled_until_ns : now + QP_WAY_NS;
    s->rest_ns = min_u64(2 * s->rest_ns, QP_WAY_REST_NS);
}

/* The counters are the job's own words, so they are bounded here. */
static uint64_t counted(const struct qp_tenant *t)
{
    uint64_t n = t->launches > t->launches_before ? t->launches - t->launches_before : 0;
    return min_u64(n, WAY_MOST);
}

/* What the best way so far would have given it since the trial began. */
static uint64_t expected(const struct qp_class *s, const struct qp_tenant *t)
{
    return s->best_ns ? t->best_launches * s->counted_ns / s->best_ns : 0;
}

static uint64_t worked(const struct qp_tenant *t)
{
    return t->had_work_ns - t->had_work_before_ns;
}

/* Open gates keep no weights. So a member that has work must launch often enough to show a loss. */
static bool all_known(struct qp_card *c, const struct qp_class *s, const struct members *m)
{
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = member(c, m, j);
        if (worked(t) > s->counted_ns / WAY_PART && counted(t) < WAY_LAUNCHES)
            return false;
    }
    return true;
}

/* Have the counts become large enough? */
static bool is_complete(struct qp_card *c, const struct qp_class *s, const struct members *m)
{
    uint64_t age = s->counted_ns, least = WAY_LAUNCHES;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = member(c, m, j);
        uint64_t n = counted(t);
        bool says = n || worked(t) > age / WAY_PART; /* an idle one has no say */
        least = says ? min_u64(least, n) : least;
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

/* What its part by weight is worth: its launches in as much time of its own quanta. */
static uint64_t guaranteed(const struct qp_class *s, const struct qp_tenant *t, int64_t sum)
{
    uint64_t own = s->counted_ns * (uint64_t)weight(s, t) / (uint64_t)sum;
    return t->quanta_service_ns ? t->quanta_launches * own / t->quanta_service_ns : 0;
}

/* Does a member lose by this way? Lending keeps the weights, so there it is enough that each has
 * what its part by weight is worth: a tenant that filled pauses before may get less. Programs
 * launch in bursts, so a count that is not complete shows only a loss of a quarter. */
static bool any_loses(struct qp_card *c, const struct qp_class *s, const struct members *m,
                      bool complete)
{
    uint64_t most = complete ? WAY_PART : 4;
    int64_t sum = 0;
    for (uint32_t j = 0; j < m->n; j++)
        sum += weight(s, member(c, m, j));
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = member(c, m, j);
        uint64_t due = expected(s, t), got = counted(t);
        if (s->way == QP_WAY_LEND)
            due = min_u64(due, guaranteed(s, t, sum));
        if (due > got && due - got > due / most + 2)
            return true;
    }
    return false;
}

/* Do all together gain? Each counts by its own launches, as these differ in length. */
static bool all_gain(struct qp_card *c, const struct qp_class *s, const struct members *m)
{
    uint64_t parts = 0, n = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = member(c, m, j);
        uint64_t due = expected(s, t);
        if (!due)
            continue;
        n++;
        parts += min_u64(counted(t), 16 * due) * 2 * WAY_PART / due;
    }
    return n && parts >= n * (2 * WAY_PART + 1);
}

/* Open gates know no weights and are not charged. Where they were only tried, a member pays for
 * what it used beyond its part, as its launches cost otherwise. It is credited nothing: the counts
 * may be false. */
static void charge_open(struct qp_card *c, int k, const struct members *m)
{
    int64_t used[QP_MAX_TENANTS], total = (int64_t)c->cls[k].counted_ns, sum = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = member(c, m, j);
        uint64_t each = t->quanta_launches ? t->quanta_service_ns / t->quanta_launches : 0;
        used[j] = (int64_t)min_u64(counted(t) * each, QP_DEFICIT_MAX_NS);
        sum += weight(&c->cls[k], t);
    }
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = member(c, m, j);
        int64_t part = total * weight(&c->cls[k], t) / sum;
        if (used[j] > part)
            t->deficit_ns = clamp_deficit(t->deficit_ns + part - used[j]);
    }
}

/* The way that was measured just now is the best one so far. */
static void note_best(struct qp_card *c, struct qp_class *s, const struct members *m)
{
    s->best_by_weight = s->way == QP_WAY_OPEN ? s->best_by_weight : s->way;
    s->best = s->way;
    s->best_ns = s->counted_ns;
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = member(c, m, j);
        t->best_launches = counted(t);
        t->best_work_ns = worked(t);
        if (s->way != QP_WAY_QUANTA)
            continue;
        t->quanta_launches = counted(t);
        t->quanta_service_ns = t->service_ns - t->service_before_ns;
    }
}

/* A trial has ended: the next way is tried, or the best one taken. A way is better if all members
 * together launch more in it, and none launches less. */
static void end_trial(struct qp_card *c, int k, const struct members *m, bool loses, uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    if (s->way == QP_WAY_QUANTA && s->unused_ns <= s->counted_ns / WAY_PART) {
        begin_trial(c, s, m, QP_WAY_QUANTA, now);
        return;
    }
    bool known = s->way != QP_WAY_OPEN || all_known(c, s, m);
    bool better = s->way == QP_WAY_QUANTA || (!loses && known && all_gain(c, s, m));
    if (better)
        note_best(c, s, m);
    else if (s->way == QP_WAY_OPEN)
        charge_open(c, k, m);
    bool barred = now < s->barred_until_ns && s->way + 1 >= s->barred_way;
    if (s->way == s->last_way || barred)
        settle_way(c, s, m, s->best, now);
    else
        begin_trial(c, s, m, s->way + 1, now);
}

/* Has a member less than its part by weight is worth, and not because it wants less? One that has
 * work all the time wants it; one that pauses is slower in its time with work than in the trial.
 * Then others need more of the card than they did, or one of them hogs it. */
static bool suffers(const struct qp_class *s, const struct qp_tenant *t, int64_t sum)
{
    uint64_t age = s->counted_ns, work = worked(t), got = counted(t);
    uint64_t part = guaranteed(s, t, sum), spare = s->way == QP_WAY_OPEN ? WAY_PART : WAY_LOOKS;
    if (work < age / WAY_LOOKS)
        return false;
    if (t->best_work_ns < s->best_ns / WAY_PART)
        return s->way == QP_WAY_OPEN; /* it was idle in the trial, and nothing is known of it */
    bool slower = got < t->best_launches * work / t->best_work_ns * 3 / 4;
    bool less = part > got && part - got > part / spare + 2;
    return less && (slower || work >= age - age / WAY_LOOKS);
}

static bool any_suffers(struct qp_card *c, const struct qp_class *s, const struct members *m)
{
    int64_t sum = 0;
    bool any = false;
    for (uint32_t j = 0; j < m->n; j++)
        sum += weight(s, member(c, m, j));
    for (uint32_t j = 0; j < m->n; j++)
        any |= suffers(s, member(c, m, j), sum);
    return any;
}

/* Leaves a way in which a member suffers, and does not try it again for a while, each time for
 * longer: also for new members, or a tenant that comes and goes would have a trial each time. */
static void leave_way(struct qp_card *c, struct qp_class *s, const struct members *m, uint64_t now)
{
    s->barred_way = s->way;
    s->bar_ns = min_u64(max_u64(2 * s->bar_ns, QP_WAY_REST_LEAST_NS), QP_WAY_REST_NS);
    s->barred_until_ns = now + s->bar_ns;
    settle_way(c, s, m, s->way == QP_WAY_OPEN ? s->best_by_weight : QP_WAY_QUANTA, now);
}

/* What was measured is watched while it holds, and measured again then. Quanta rotate slowly, so
 * lending is looked at seldom. */
static void review_settled(struct qp_card *c, struct qp_class *s, const struct members *m,
                           uint64_t now)
{
    bool known = s->counted_ns >= (s->way == QP_WAY_OPEN ? 1 : WAY_LONGEST) * QP_WAY_NS;
    if (s->way != QP_WAY_QUANTA && known && any_suffers(c, s, m)) {
        leave_way(c, s, m, now);
    } else if (now >= s->settled_until_ns) {
        s->bar_ns = s->way == s->barred_way ? 0 : s->bar_ns; /* it lasted */
        begin_trial(c, s, m, QP_WAY_QUANTA, now);
    } else {
        if (known && is_complete(c, s, m))
            begin_counts(c, s, m, now);
        s->look_ns = min_u64(now + QP_WAY_NS, s->settled_until_ns);
    }
}

/* Another member, or one that left: what was measured is void. */
static bool has_changed(struct qp_card *c, int k, const struct members *m)
{
    struct qp_class *s = &c->cls[k];
    bool changed = s->members != m->n;
    for (uint32_t i = 0, j = 0; i < c->ntenants; i++) {
        bool is_member = j < m->n && m->at[j] == i;
        struct qp_tenant *t = &c->tenant[i];
        j += is_member;
        if (class_of(t) != k)
            continue;
        changed |= is_member && !t->compared;
        t->compared = is_member;
    }
    s->members = m->n;
    return changed;
}

/* Chooses the way of a class. `last`: the last way that it may try. */
void qp_choose_way(struct qp_card *c, int k, const struct members *m, enum qp_way last,
                   uint64_t now)
{
    struct qp_class *s = &c->cls[k];
    bool changed = has_changed(c, k, m) || s->last_way != last, free = last != QP_WAY_QUANTA;
    s->last_way = last;
    if (changed || !free) {
        s->rest_ns = QP_WAY_REST_LEAST_NS;
        begin_trial(c, s, m, QP_WAY_QUANTA, now);
        s->look_ns = free ? s->look_ns : QP_NEVER;
        return;
    }
    s->counted_ns += s->resumed ? now - c->last_ns : 0;
    count_unused(c, k, m, now);
    if (now < s->look_ns)
        return;
    bool complete = is_complete(c, s, m);
    bool loses = s->trial && s->way != QP_WAY_QUANTA && any_loses(c, s, m, complete);
    if (!s->trial)
        review_settled(c, s, m, now);
    else if (complete || (loses && s->way == QP_WAY_OPEN))
        end_trial(c, k, m, loses, now);
    else
        s->look_ns = now + look_after(s);
}

/* When it is due again. Without work there is nothing to look at, nor without competition. */
uint64_t qp_way_wake(const struct qp_card *c, int k, const struct members *m)
{
    const struct qp_class *s = &c->cls[k];
    bool due = false;
    for (uint32_t j = 0; !due && j < m->n; j++)
        due = c->tenant[m->at[j]].runnable;
    return due && (s->contended || s->way == QP_WAY_OPEN) ? s->look_ns : QP_NEVER;
}
