/* SPDX-License-Identifier: Apache-2.0
 *
 * Gang suspend: one job on several cards. Its ranks wait for each other, so when one card preempts
 * the job, the other cards suspend it as well. Otherwise its waiting ranks would spin and use time
 * that other tenants need. The state is two words per job, one bit per card. No thread holds the
 * locks of two cards: a card's thread sets its own bit and wakes the threads of the other cards.
 */
#include <stdlib.h>

#include "base/base.h"
#include "gate/gate.h"
#include "model/model.h"
#include "policy/policy.h"

static struct gang *gangs; /* main thread only */

struct gang *gang_get(uint64_t job_id)
{
    struct gang *g = gangs;
    while (g && g->id != job_id)
        g = g->next;
    if (!g) {
        if (!(g = calloc(1, sizeof(*g))))
            return NULL;
        g->id = job_id;
        g->next = gangs;
        gangs = g;
    }
    g->tenants++;
    return g;
}

static void kick_others(const struct arbiter *a, const struct gang *g, const struct card *card)
{
    uint64_t cards = __atomic_load_n(&g->cards, __ATOMIC_SEQ_CST) & ~job_bit(card);
    for (uint32_t i = 0; cards; i++, cards >>= 1) {
        if (cards & 1)
            card_kick(__atomic_load_n(&a->cards[i], __ATOMIC_ACQUIRE));
    }
}

void gang_put(struct arbiter *a, struct tenant *t)
{
    struct gang *g = t->gang;
    if (!g)
        return;
    if (t->card) {
        __atomic_fetch_and(&g->cards, ~job_bit(t->card), __ATOMIC_SEQ_CST);
        uint64_t before = __atomic_fetch_and(&g->preempted, ~job_bit(t->card), __ATOMIC_SEQ_CST);
        if (before & job_bit(t->card))
            kick_others(a, g, t->card);
    }
    t->gang = NULL;
    if (--g->tenants)
        return;
    struct gang **at = &gangs;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    free(g);
}

void gang_enter(struct tenant *t)
{
    __atomic_fetch_or(&t->gang->cards, job_bit(t->card), __ATOMIC_SEQ_CST);
}

/* Reports to the other cards of each job whether this card preempts it. A card that is closed only
 * because of another card does not report it, or the two would keep each other closed. */
void gang_report(struct card *card)
{
    bool preempting =
        card->policy.preempting && !card->policy.ungoverned && (card->flags & QG_CARD_GANG_SUSPEND);
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        if (!t || t->id.job_class != QG_CLASS_OFFLINE)
            continue;
        const struct qp_tenant *q = &card->policy.tenant[i];
        bool now = preempting && q->live && !q->ungoverned;
        struct gang *g = t->gang;
        uint64_t before = __atomic_load_n(&g->preempted, __ATOMIC_RELAXED);
        if (now == !!(before & job_bit(card)))
            continue;
        if (now)
            __atomic_fetch_or(&g->preempted, job_bit(card), __ATOMIC_SEQ_CST);
        else
            __atomic_fetch_and(&g->preempted, ~job_bit(card), __ATOMIC_SEQ_CST);
        kick_others(card->arbiter, g, card);
    }
}
