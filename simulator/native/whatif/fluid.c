/* SPDX-License-Identifier: Apache-2.0
 *
 * The ideal that a scheduler is compared with: a card that divides itself at any instant, without
 * quanta, drains, wake-ups or changes of context. Offline has nothing until online was idle for
 * idle_release. Within a class each running tenant has its part: by weight (burst-share), equal
 * parts (best-effort), or N % (fixed-share).
 */
#include "simulate.h"

static bool online_runs(const struct machine *m)
{
    for (uint32_t i = 0; i < m->nrunning; i++) {
        if (m->actors[m->running[i]]->job_class == QG_CLASS_ONLINE)
            return true;
    }
    return false;
}

static bool suspended(const struct machine *m, const struct actor *a)
{
    return a->job_class == QG_CLASS_OFFLINE && (online_runs(m) || m->now < m->online_until_ns);
}

/* The part of the card that the tenant has now, 0 to 1. */
double fluid_speed(const struct machine *m, const struct actor *a)
{
    uint32_t sum = 0, n = 0, policy = m->policy[a->job_class == QG_CLASS_OFFLINE];
    if (suspended(m, a))
        return 0;
    for (uint32_t i = 0; i < m->nrunning; i++) {
        const struct actor *peer = m->actors[m->running[i]];
        if (peer->job_class != a->job_class)
            continue;
        sum += peer->share;
        n++;
    }
    if (policy == QG_POLICY_BEST_EFFORT)
        return 1.0 / n;
    if (policy == QG_POLICY_FIXED_SHARE && sum < 100)
        sum = 100;
    return (double)a->share / sum;
}

/* When the next run ends, or offline has the card again, if nothing changes before. */
uint64_t fluid_next(const struct machine *m)
{
    uint64_t next = m->now < m->online_until_ns ? m->online_until_ns : QP_NEVER;
    for (uint32_t i = 0; i < m->nrunning; i++) {
        const struct actor *a = m->actors[m->running[i]];
        double speed = fluid_speed(m, a);
        if (speed <= 0)
            continue;
        double takes =
            (double)work_left(a) / speed; /* of endless work more than a uint64_t holds */
        if (takes < (double)(next - m->now))
            next = m->now + (uint64_t)takes;
    }
    return next;
}

/* The card has worked for dt, until now. */
void fluid_advance(struct world *w, struct machine *m, uint64_t dt)
{
    double speed[QP_MAX_TENANTS];
    uint64_t to = m->now;
    m->now = to - dt;
    if (online_runs(m))
        m->online_until_ns = to + (m->online_delay_ns ? 0 : m->idle_release_ns);
    for (uint32_t i = 0; i < m->nrunning; i++)
        speed[i] = fluid_speed(m, m->actors[m->running[i]]);
    m->now = to;
    for (uint32_t i = 0; i < m->nrunning; i++)
        progress(w, m, m->actors[m->running[i]], (uint64_t)((double)dt * speed[i]));
}
