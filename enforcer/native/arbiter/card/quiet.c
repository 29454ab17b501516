/* SPDX-License-Identifier: Apache-2.0
 *
 * Ticks at which nothing happens. Most look at a tenant that works and find that it still does.
 * Then the last decision stands: it is neither taken anew nor are the other tenants touched, which
 * is most of what a tick costs. What was left out is made up for, as of the last such tick, before
 * anything else is done, so that the books are the same.
 */
#include "base/base.h"
#include "card/card.h"
#include "model/model.h"
#include "observe/observe.h"
#include "policy/policy.h"

/* between two full steps: threads at gates, leases and doubts are looked at then */
#define QUIET_MAX_NS (8 * QP_MS)

/* What of a tenant goes into decision and books, and a look may change. */
struct seen {
    bool pending, unmarked, ran, busy;
    uint32_t runnable, undrained;
    uint64_t used_from_ns;
};

static struct seen seen_of(const struct tenant *t)
{
    const struct qp_tenant *q = &t->card->policy.tenant[t->index];
    return (struct seen){t->sample.pending, t->sample.unfenced, t->sample.ran,  t->sample.busy,
                         q->runnable,       q->undrained,       q->used_from_ns};
}

static void put_back(struct tenant *t, const struct seen *s)
{
    struct qp_tenant *q = &t->card->policy.tenant[t->index];
    t->sample.pending = s->pending;
    t->sample.unfenced = s->unmarked;
    t->sample.ran = s->ran;
    t->sample.busy = s->busy;
    q->runnable = s->runnable;
    q->undrained = s->undrained;
    q->used_from_ns = s->used_from_ns;
}

static bool same(const struct seen *a, const struct seen *b)
{
    return a->runnable == b->runnable && a->undrained == b->undrained && a->busy == b->busy &&
           a->used_from_ns == b->used_from_ns;
}

void quiet_catch_up(struct card *card)
{
    if (card->idle_tick_ns > card->policy.last_ns) {
        qp_decide(&card->policy, card->idle_tick_ns);
        account(card, card->idle_tick_ns);
    }
    card->idle_tick_ns = 0;
}

/* Budgets of fixed shares end between two ticks and are looked at in each. */
static bool may_be_quiet(const struct card *card)
{
    const struct qp_class *cls = card->policy.cls;
    return !card->hw && cls[0].policy != QG_POLICY_FIXED_SHARE &&
           cls[1].policy != QG_POLICY_FIXED_SHARE;
}

/* Only who works stays the same by itself: who fell silent is told to ring soon, and then passes
 * its turn on. */
void quiet_after(struct card *card, uint64_t due_ns, uint64_t now)
{
    card->nwatched = 0;
    card->due_ns = due_ns;
    card->decide_at_ns = may_be_quiet(card) ? now + QUIET_MAX_NS : 0;
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

bool quiet_tick(struct card *card, uint64_t now)
{
    bool quiet = true;
    struct seen before[AR_MAX_WATCHED], after[AR_MAX_WATCHED];
    if (!card->ticking || now >= card->due_ns || now >= card->decide_at_ns ||
        card->policy.last_ns > now)
        return false;
    for (uint32_t i = 0; i < card->nwatched; i++) {
        if (!card->tenants[card->watched[i]] || card->tenants[card->watched[i]]->bell.rung)
            return false;
    }
    for (uint32_t i = 0; i < card->nwatched; i++) {
        struct tenant *t = card->tenants[card->watched[i]];
        before[i] = seen_of(t);
        sample_full(t, now);
        after[i] = seen_of(t);
        quiet &= same(&before[i], &after[i]) && !t->sample.ending;
    }
    if (quiet) {
        card->idle_tick_ns = now;
        return true;
    }
    if (!card->idle_tick_ns)
        return false;
    for (uint32_t i = 0; i < card->nwatched; i++)
        put_back(card->tenants[card->watched[i]], &before[i]);
    quiet_catch_up(card);
    for (uint32_t i = 0; i < card->nwatched; i++)
        put_back(card->tenants[card->watched[i]], &after[i]);
    return false;
}
