/* SPDX-License-Identifier: Apache-2.0
 *
 * Idle ticks. Most ticks sample tenants at work and find them still at work. Then the last decision
 * holds: no new one is made, and no other tenant is sampled, which would be most of the cost of a
 * tick. Before anything else happens, decision and accounts catch up to the time of the last idle
 * tick, so the totals are the same as without idle ticks.
 */
#include "base/base.h"
#include "card/card.h"
#include "model/model.h"
#include "observe/observe.h"
#include "policy/policy.h"

/* ns: Two full steps are at most this far apart: only they check threads at gates, leases and
 * doubts. Evidence: none. */
#define IDLE_TICKS_NS (8 * QP_MS)

/* Inputs of the decision and the accounts that a sample may change. */
struct inputs {
    bool pending, unfenced, ran, busy;
    uint32_t runnable, undrained, preempts;
    uint64_t used_from_ns;
};

static struct inputs inputs_of(const struct tenant *t)
{
    const struct qp_tenant *q = &t->card->policy.tenant[t->index];
    return (struct inputs){t->sample.pending, t->sample.unfenced, t->sample.ran, t->sample.busy,
                           q->runnable,       q->undrained,       q->preempts,   q->used_from_ns};
}

static void restore_inputs(struct tenant *t, const struct inputs *s)
{
    struct qp_tenant *q = &t->card->policy.tenant[t->index];
    t->sample.pending = s->pending;
    t->sample.unfenced = s->unfenced;
    t->sample.ran = s->ran;
    t->sample.busy = s->busy;
    q->runnable = s->runnable;
    q->undrained = s->undrained;
    q->preempts = s->preempts;
    q->used_from_ns = s->used_from_ns;
}

static bool same(const struct inputs *a, const struct inputs *b)
{
    return a->runnable == b->runnable && a->undrained == b->undrained && a->busy == b->busy &&
           a->used_from_ns == b->used_from_ns;
}

void idle_tick_catch_up(struct card *card)
{
    if (card->idle_tick_ns > card->policy.last_ns) {
        qp_decide(&card->policy, card->idle_tick_ns);
        account(card, card->idle_tick_ns);
    }
    card->idle_tick_ns = 0;
}

/* A budget of fixed-share may end between two ticks, and hardware preemption reviews its groups in
 * each tick. So neither has idle ticks. */
static bool may_idle(const struct card *card)
{
    const struct qp_class *cls = card->policy.cls;
    return !card->hw && cls[0].policy != QG_POLICY_FIXED_SHARE &&
           cls[1].policy != QG_POLICY_FIXED_SHARE;
}

/* Lists the tenants that the next idle ticks sample. Only the state of a working tenant lasts by
 * itself. One that became idle is soon asked to ring, and passes its quantum on, which needs
 * decisions. */
void idle_tick_prepare(struct card *card, uint64_t due_ns, uint64_t now)
{
    card->nwatched = 0;
    card->due_ns = due_ns;
    card->decide_at_ns = may_idle(card) ? now + IDLE_TICKS_NS : 0;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        const struct tenant *t = card->tenants[i];
        bool closed = t && t->gate->flags & QG_GATE_CLOSED;
        if (!t || !t->nprocs ||
            (closed && !t->sample.pending && !t->sample.unfenced && !t->sample.launched))
            continue;
        if (!closed && !t->sample.busy && (t->gate->flags & QG_GATE_NOTIFY))
            continue;
        if (card->nwatched == AR_MAX_WATCHED || t->sample.ending ||
            !card->policy.tenant[i].runnable) {
            card->decide_at_ns = 0;
            return;
        }
        card->watched[card->nwatched++] = (uint16_t)i;
    }
}

bool idle_tick(struct card *card, uint64_t now)
{
    bool unchanged = true;
    struct inputs before[AR_MAX_WATCHED], after[AR_MAX_WATCHED];
    if (!card->ticking || now >= card->due_ns || now >= card->decide_at_ns ||
        card->policy.last_ns > now)
        return false;
    for (uint32_t i = 0; i < card->nwatched; i++) {
        if (!card->tenants[card->watched[i]] || card->tenants[card->watched[i]]->bell.rung)
            return false;
    }
    for (uint32_t i = 0; i < card->nwatched; i++) {
        struct tenant *t = card->tenants[card->watched[i]];
        before[i] = inputs_of(t);
        sample_full(t, now);
        after[i] = inputs_of(t);
        unchanged &= same(&before[i], &after[i]) && !t->sample.ending;
    }
    if (unchanged) {
        card->idle_tick_ns = now;
        return true;
    }
    if (!card->idle_tick_ns)
        return false;
    for (uint32_t i = 0; i < card->nwatched; i++)
        restore_inputs(card->tenants[card->watched[i]], &before[i]);
    idle_tick_catch_up(card);
    for (uint32_t i = 0; i < card->nwatched; i++)
        restore_inputs(card->tenants[card->watched[i]], &after[i]);
    return false;
}
