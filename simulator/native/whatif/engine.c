/* SPDX-License-Identifier: Apache-2.0
 *
 * The event loop of one card: the card itself (who runs, what a change of context costs), the
 * arbiter's wake-ups, and the decision, which is the arbiter's own code.
 */
#include <stdlib.h>

#include "simulate.h"

#define EPSILON_NS 4u /* of a run on the fluid card: left over by dividing whole nanoseconds */

uint64_t work_left(const struct actor *a)
{
    return a->state == ST_DRAINING ? a->flight_ns : a->run_ns;
}

static bool runs(const struct machine *m, int32_t who)
{
    for (uint32_t i = 0; i < m->nrunning; i++) {
        if (m->running[i] == who)
            return true;
    }
    return false;
}

/* The first one behind `who` that has work, in a ring. */
static int32_t next_running(const struct machine *m, int32_t who)
{
    for (uint32_t i = 0; i < m->nrunning; i++) {
        if (m->running[i] > who)
            return m->running[i];
    }
    return m->running[0];
}

/* When the time slice of the context on the card ends. Slices began with its first work there,
 * which may be still to come: the card is changing to it. */
static uint64_t slice_end(const struct machine *m)
{
    uint64_t ran = m->now > m->slice_from_ns ? m->now - m->slice_from_ns : 0;
    return m->slice_from_ns + (ran / m->timeslice_ns + 1) * m->timeslice_ns;
}

/* Contexts with work take time slices. A card that goes from one to another stands still for a
 * moment. */
static void change_context(struct machine *m)
{
    if (!m->nrunning)
        return;
    bool stays = m->on_card >= 0 && runs(m, m->on_card);
    if (stays && (m->nrunning == 1 || m->now < m->slice_end_ns)) {
        if (m->nrunning > 1 && m->slice_end_ns == QP_NEVER)
            m->slice_end_ns = slice_end(m);
        if (m->nrunning == 1)
            m->slice_end_ns = QP_NEVER;
        return;
    }
    int32_t before = m->on_card;
    m->on_card = next_running(m, before);
    if (before >= 0 && before != m->on_card) {
        m->switches++;
        m->stall_ns = m->switch_ns;
    }
    m->slice_from_ns = m->now + m->stall_ns;
    m->slice_end_ns = m->nrunning > 1 ? m->slice_from_ns + m->timeslice_ns : QP_NEVER;
}

/* The column of the profile that a time lies in. */
static uint64_t bin_of(const struct world *w, uint64_t ns)
{
    return ns * w->bins / w->duration_ns % SM_BINS;
}

void progress(struct world *w, struct machine *m, struct actor *a, uint64_t ran)
{
    if (ran > work_left(a))
        ran = work_left(a);
    a->run_ns -= ran;
    if (a->state == ST_DRAINING)
        a->flight_ns -= ran;
    a->busy_ns += ran;
    a->kernel_part_ns += ran;
    a->kernels += a->kernel_part_ns / a->length_ns;
    a->kernel_part_ns %= a->length_ns;
    a->step_busy_ns += ran;
    a->progress_ns = m->now;
    m->busy_ns += ran;
    a->bins[bin_of(w, m->now - 1)] += ran;
}

/* Does its wish count: does it want the card, and may its class have it? */
static bool entitled(const struct qp_card *c, uint32_t i)
{
    const struct qp_tenant *t = &c->tenant[i];
    return (t->was_runnable || t->was_undrained) &&
           !(c->preempting && t->job_class == QG_CLASS_OFFLINE);
}

/* The only one of its class that wants the card and may have it; -1 if there are more, or none. */
static int32_t holder(const struct machine *m, const struct qp_card *c, uint32_t job_class)
{
    int32_t found = -1;
    for (uint32_t i = 0; i < m->nactors; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        if (t->job_class != job_class || !entitled(c, i) || (t->gate & QG_GATE_CLOSED))
            continue;
        if (found >= 0)
            return -1;
        found = (int32_t)i;
    }
    return found;
}

/* The pauses of such a tenant are time that it is due and that no peer can use: its own time. */
static void book_pauses(const struct world *w, struct machine *m, uint64_t dt)
{
    static const uint32_t classes[2] = {QG_CLASS_ONLINE, QG_CLASS_OFFLINE};
    for (int k = 0; k < 2; k++) {
        int32_t i = holder(m, m->policy_card, classes[k]);
        struct actor *a = i >= 0 ? m->actors[i] : NULL;
        if (a && (a->state == ST_THINKING || a->state == ST_COPYING || a->state == ST_IDLE))
            a->paused_bins[bin_of(w, m->now - 1)] += dt;
    }
}

/* The card works until the time. */
static void advance(struct world *w, struct machine *m, uint64_t to)
{
    uint64_t dt = to - m->now;
    m->now = to;
    if (dt && !w->fluid)
        book_pauses(w, m, dt);
    if (!m->nrunning || !dt)
        return;
    if (w->fluid) {
        fluid_advance(w, m, dt);
        return;
    }
    uint64_t lost = m->stall_ns < dt ? m->stall_ns : dt;
    m->stall_ns -= lost;
    m->switch_lost_ns += lost;
    dt -= lost;
    progress(w, m, m->actors[m->on_card], dt);
}

/* When the run or flight on the card ends, or its time slice. */
static uint64_t next_end(const struct machine *m)
{
    if (!m->nrunning)
        return QP_NEVER;
    uint64_t end = m->now + m->stall_ns + work_left(m->actors[m->on_card]);
    return end < m->slice_end_ns ? end : m->slice_end_ns;
}

static void finish_runs(struct world *w, struct machine *m)
{
    for (uint32_t i = 0; i < m->nrunning;) {
        struct actor *a = m->actors[m->running[i]];
        uint64_t l = work_left(a);
        if (l > (w->fluid ? EPSILON_NS : 0)) {
            i++;
            continue;
        }
        if (a->state == ST_DRAINING)
            a->flight_ns = 0;
        a->run_ns -= l; /* what rounding left */
        actor_ran(w, m, a);
        i = 0; /* the list may have changed; who goes on has a run of more than EPSILON_NS */
    }
}

/* What an ideal division gives in the time that passed, from who wanted the card. fixed-share: the
 * share itself. */
static void book_ideal(const struct world *w, struct machine *m, const struct qp_card *c,
                       uint64_t dt)
{
    uint64_t bin = bin_of(w, m->now ? m->now - 1 : 0);
    uint32_t sum[2] = {0, 0}, n[2] = {0, 0};
    for (uint32_t i = 0; i < m->nactors; i++) {
        int k = c->tenant[i].job_class == QG_CLASS_OFFLINE;
        if (!entitled(c, i))
            continue;
        sum[k] += c->tenant[i].share;
        n[k]++;
    }
    for (uint32_t i = 0; i < m->nactors; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        int k = t->job_class == QG_CLASS_OFFLINE;
        if (!entitled(c, i))
            continue;
        double whole = c->cls[k].policy == QG_POLICY_FIXED_SHARE && sum[k] < 100 ? 100 : sum[k];
        double part = c->cls[k].policy == QG_POLICY_BEST_EFFORT ? 1.0 / n[k] : t->share / whole;
        m->actors[i]->due_ns += part * (double)dt;
        m->actors[i]->due_bins[bin] += part * (double)dt;
    }
}

static void apply(struct world *w, struct machine *m, struct qp_card *c)
{
    for (int opening = 0; opening < 2; opening++) {
        for (uint32_t i = 0; i < m->nactors; i++) {
            struct actor *a = m->actors[i];
            uint32_t gate = c->tenant[i].gate;
            int opens = (gate & QG_GATE_CLOSED) == 0;
            if (a->state == ST_AWAY || gate == a->gate || opens != opening)
                continue;
            if (opening && (a->gate & QG_GATE_CLOSED))
                c->tenant[i].used_from_ns = 0;
            actor_gate(w, m, a, gate);
        }
    }
}

static void decide(struct world *w, struct machine *m)
{
    struct qp_card *c = m->policy_card;
    if (c->last_ns)
        book_ideal(w, m, c, m->now + 1 - c->last_ns);
    for (uint32_t i = 0; i < m->nactors; i++)
        actor_show(m, m->actors[i], &c->tenant[i]);
    qp_decide(c, m->now + 1); /* its clock has no zero */
    if (c->resample) {        /* nothing moves between a decision and its gates */
        c->resample = 0;
        qp_decide(c, m->now + 1);
    }
    m->decisions++;
    apply(w, m, c);
    m->decide_ns =
        c->wake_ns == QP_NEVER ? QP_NEVER : c->wake_ns - 1 + spread(&m->rng, m->arbiter_ns);
}

static bool on_card(const struct machine *m, uint32_t job_class)
{
    for (uint32_t i = 0; i < m->nrunning; i++) {
        if (m->actors[m->running[i]]->job_class == job_class)
            return true;
    }
    return false;
}

/* online_came() noted that online wants the card; here offline has left it. */
static void note_freed(struct machine *m)
{
    if (!m->wanted_ns || on_card(m, QG_CLASS_OFFLINE))
        return;
    latency_add(&m->freed, m->now - m->wanted_ns);
    m->wanted_ns = 0;
}

/* Online's first launch after a pause, while offline is on the card. */
void online_came(struct machine *m)
{
    if (!m->wanted_ns && on_card(m, QG_CLASS_OFFLINE) && !on_card(m, QG_CLASS_ONLINE))
        m->wanted_ns = m->now;
}

static void step(struct machine *m)
{
    for (uint32_t i = 0; i < m->nactors; i++)
        sliding_step(m->actors[i]);
    m->step_end_ns += SM_STEP_NS;
}

/* Each card and each tenant draws from numbers of its own. */
static uint64_t seed_of(const struct world *w, uint64_t number)
{
    uint64_t seed = (w->seed + 1) * 0x9e3779b97f4a7c15ull ^ number * 0xbf58476d1ce4e5b9ull;
    return seed ? seed : 1;
}

static void prepare(const struct world *w, struct machine *m)
{
    struct qp_card *c = m->policy_card;
    qp_init(c);
    c->idle_release_ns = m->idle_release_ns;
    c->online_delay_ns = m->online_delay_ns;
    c->online_share = (uint32_t)m->online_share;
    c->slice_ns = m->slice_ns;
    c->cls[0].policy = m->policy[0];
    c->cls[1].policy = m->policy[1];
    c->ntenants = m->nactors;
    m->rng = seed_of(w, m->number + 1);
    m->on_card = -1;
    m->decide_ns = 0;
    m->step_end_ns = SM_STEP_NS;
    for (uint32_t i = 0; i < m->nactors; i++) {
        struct actor *a = m->actors[i];
        a->timer_ns = a->arrival_ns = QP_NEVER;
        a->rng = seed_of(w, m->number + 1 + ((a - w->actors) + 1ull) * w->ncards);
    }
}

void card_run(struct world *w, struct machine *m)
{
    prepare(w, m);
    while (m->now < w->duration_ns) {
        uint64_t next = w->fluid ? fluid_next(m) : next_end(m);
        for (uint32_t i = 0; i < m->nactors; i++) {
            uint64_t at = actor_next(m->actors[i]);
            if (at < next)
                next = at;
        }
        if (m->decide_ns < next && !w->fluid)
            next = m->decide_ns;
        if (m->step_end_ns < next)
            next = m->step_end_ns;
        if (next > w->duration_ns)
            next = w->duration_ns;
        if (next < m->now)
            next = m->now; /* a delay that has passed already */
        m->events++;
        advance(w, m, next);
        finish_runs(w, m);
        for (uint32_t i = 0; i < m->nactors; i++) {
            if (actor_next(m->actors[i]) <= m->now)
                actor_due(w, m, m->actors[i]);
        }
        note_freed(m);
        if (m->decide_ns <= m->now && !w->fluid)
            decide(w, m);
        if (m->step_end_ns <= m->now)
            step(m);
        change_context(m);
    }
    for (uint32_t i = 0; i < m->nactors; i++) {
        struct actor *a = m->actors[i];
        a->mode_ns[a->mode] += m->now - a->mode_since_ns;
    }
}
