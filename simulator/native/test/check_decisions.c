/* SPDX-License-Identifier: Apache-2.0
 *
 * What holds after each decision, whatever the tenants do. Linked into the sanitized qgpu-simulate
 * by --wrap; a broken rule ends the program with a sentence. At the end of each card it writes one
 * line to stderr: card, ns charged, ns that ran, sum of the deficits.
 *
 * CHECK_EVERY_NS=N in the environment decides anew after N ns at the latest.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "simulate.h"

#define FAR_NS    (5000 * QP_MS)
#define WINDOW_NS (1000 * QP_MS) /* of fixed-share: when it is full, a tenant waits for its end */

void __real_qp_decide(struct qp_card *c, uint64_t now);
void __wrap_qp_decide(struct qp_card *c, uint64_t now);
void __real_card_run(struct world *w, struct machine *m);
void __wrap_card_run(struct world *w, struct machine *m);

static uint64_t every_ns; /* of CHECK_EVERY_NS; 0: as the decision wants */

__attribute__((constructor)) static void read_environment(void)
{
    const char *every = getenv("CHECK_EVERY_NS");
    every_ns = every ? strtoull(every, NULL, 10) : 0;
}

static void rule(bool holds, const char *broken, uint64_t now)
{
    if (holds)
        return;
    fprintf(stderr, "%llu ns: %s\n", (unsigned long long)now, broken);
    _exit(3);
}

static bool open_gate(const struct qp_tenant *t)
{
    return !(t->gate & QG_GATE_CLOSED);
}

struct count {
    uint32_t members;
    uint32_t governed, runnable, open; /* without those of isolation none */
};

static struct count count(const struct qp_card *c, uint32_t job_class)
{
    struct count n = {0};
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        if (!t->live || t->job_class != job_class)
            continue;
        n.members++;
        if (t->ungoverned)
            continue;
        n.governed++;
        n.runnable += t->runnable != 0;
        n.open += open_gate(t);
    }
    return n;
}

static bool online_busy(const struct qp_card *c, uint64_t now)
{
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        if (t->live && t->preempts && t->job_class == QG_CLASS_ONLINE)
            return true;
    }
    /* under `auto` the hold, which may be 0 */
    uint64_t release = c->online_delay_ns ? c->release_ns : c->idle_release_ns;
    return c->online_busy_ns && now < c->online_busy_ns + release;
}

/* Offline never runs beside online, and where members compete one gate at most is open,
 * unless open gates were measured to be better. */
static void check_gates(const struct qp_card *c, uint64_t now)
{
    struct count online = count(c, QG_CLASS_ONLINE), offline = count(c, QG_CLASS_OFFLINE);
    const struct count *of[2] = {&online, &offline};
    rule(!online_busy(c, now) || !offline.open, "an offline gate is open beside online", now);
    for (int k = 0; k < 2; k++) {
        bool strict = k == 1 && online.members;
        bool compete = of[k]->governed > 1 && (strict || of[k]->runnable > 1);
        rule(c->cls[k].way != QP_WAY_OPEN || (!strict && c->cls[k].policy != QG_POLICY_FIXED_SHARE),
             "a limited class has all gates open", now);
        if ((compete && c->cls[k].way != QP_WAY_OPEN) || c->cls[k].policy == QG_POLICY_FIXED_SHARE)
            rule(of[k]->open <= 1, "two gates of one class are open", now);
    }
}

/* A tenant that waits is decided upon again, soon enough for its debts and its window. */
static void check_wake(const struct qp_card *c, uint64_t now)
{
    int64_t least = 0;
    uint64_t window = 0;
    bool waits = false;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        if (!t->live || !t->runnable || open_gate(t))
            continue;
        waits = true;
        least = t->budget_ns < least ? t->budget_ns : least;
        window = t->out_of_budget ? WINDOW_NS : window;
    }
    uint64_t soon = c->idle_release_ns + (uint64_t)-least * 100 + window + 300 * QP_MS;
    rule(c->wake_ns > now, "the next wake-up lies in the past", now);
    rule(!waits || c->wake_ns <= now + soon, "a tenant waits and no wake-up comes", now);
}

static void check_bounds(const struct qp_card *c, uint64_t now)
{
    for (uint32_t i = 0; i < c->ntenants; i++) {
        int64_t deficit = c->tenant[i].deficit_ns;
        rule(deficit <= QP_DEFICIT_MAX_NS && deficit >= -QP_DEFICIT_MAX_NS,
             "a deficit is out of bounds", now);
    }
}

/* If nothing happens, sleeping until wake_ns is as good as deciding all the time. But under
 * fixed-share a gate may move a tick late. No tenant is sampled more often than
 * QP_DRAIN_POLL_NS. */
static void check_sleep(const struct qp_card *c, uint64_t now)
{
    static _Thread_local struct qp_card then;
    uint64_t wake = c->wake_ns == QP_NEVER ? now + FAR_NS : c->wake_ns;
    if (wake <= now + QP_DRAIN_POLL_NS)
        return;
    memcpy(&then, c, offsetof(struct qp_card, tenant) + c->ntenants * sizeof(c->tenant[0]));
    memcpy(then.history, c->history, c->ntenants * sizeof(c->history[0]));
    __real_qp_decide(&then, wake - QP_DRAIN_POLL_NS);
    if (then.resample) {
        then.resample = 0;
        __real_qp_decide(&then, wake - QP_DRAIN_POLL_NS);
    }
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        bool fixed = c->cls[t->job_class == QG_CLASS_OFFLINE].policy == QG_POLICY_FIXED_SHARE;
        bool tick = fixed && wake - now <= QP_TICK_NS;
        rule(!t->live || tick || open_gate(t) == open_gate(&then.tenant[i]),
             "a gate was due before the wake-up", now);
    }
}

void __wrap_qp_decide(struct qp_card *c, uint64_t now)
{
    __real_qp_decide(c, now);
    if (c->resample) /* the caller decides once more at once */
        return;
    check_gates(c, now);
    check_wake(c, now);
    check_bounds(c, now);
    check_sleep(c, now);
    if (every_ns && c->wake_ns > now + every_ns)
        c->wake_ns = now + every_ns;
}

void __wrap_card_run(struct world *w, struct machine *m)
{
    uint64_t charged[2] = {0, 0}, ran = 0;
    int64_t deficits = 0;
    __real_card_run(w, m);
    for (uint32_t i = 0; i < m->nactors; i++) {
        const struct qp_tenant *t = &m->policy_card->tenant[i];
        charged[t->job_class == QG_CLASS_OFFLINE] += t->service_ns;
        deficits += t->deficit_ns;
        rule(t->service_ns <= m->now, "a tenant was charged more than the time that passed",
             m->now);
        ran += m->actors[i]->busy_ns;
    }
    fprintf(stderr, "%u %llu %llu %lld\n", m->number, (unsigned long long)(charged[0] + charged[1]),
            (unsigned long long)ran, (long long)deficits);
}
