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

static struct job *jobs; /* main thread only */

struct job *job_get(uint64_t job_id)
{
    struct job *j = jobs;
    while (j && j->id != job_id)
        j = j->next;
    if (!j) {
        if (!(j = calloc(1, sizeof(*j))))
            return NULL;
        j->id = job_id;
        j->next = jobs;
        jobs = j;
    }
    j->tenants++;
    return j;
}

static void kick_others(const struct arbiter *a, const struct job *j, const struct card *card)
{
    uint64_t cards = __atomic_load_n(&j->cards, __ATOMIC_SEQ_CST) & ~job_bit(card);
    for (uint32_t i = 0; cards; i++, cards >>= 1) {
        if (cards & 1)
            card_kick(__atomic_load_n(&a->cards[i], __ATOMIC_ACQUIRE));
    }
}

void job_put(struct arbiter *a, struct tenant *t)
{
    struct job *j = t->gang;
    if (!j)
        return;
    if (t->card) {
        __atomic_fetch_and(&j->cards, ~job_bit(t->card), __ATOMIC_SEQ_CST);
        uint64_t before = __atomic_fetch_and(&j->preempted, ~job_bit(t->card), __ATOMIC_SEQ_CST);
        if (before & job_bit(t->card))
            kick_others(a, j, t->card);
    }
    t->gang = NULL;
    if (--j->tenants)
        return;
    struct job **at = &jobs;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    free(j);
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
        bool now = preempting && q->live && !q->free;
        struct job *j = t->gang;
        uint64_t before = __atomic_load_n(&j->preempted, __ATOMIC_RELAXED);
        if (now == !!(before & job_bit(card)))
            continue;
        if (now)
            __atomic_fetch_or(&j->preempted, job_bit(card), __ATOMIC_SEQ_CST);
        else
            __atomic_fetch_and(&j->preempted, ~job_bit(card), __ATOMIC_SEQ_CST);
        kick_others(card->arbiter, j, card);
    }
}
