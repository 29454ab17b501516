/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds cards and tenants, and answers simple questions about them.
 */
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "model/model.h"
#include "policy/policy.h"

struct card *card_find(const struct arbiter *a, const char *uuid)
{
    for (uint32_t i = 0; i < a->ncards; i++) {
        if (strncmp(a->cards[i]->uuid, uuid, QG_UUID_LEN) == 0)
            return a->cards[i];
    }
    return NULL;
}

struct tenant *tenant_find(const struct card *card, uint64_t job_id)
{
    for (uint32_t i = 0; i < QP_MAX_TENANTS; i++) {
        if (card->tenants[i] && card->tenants[i]->id.job_id == job_id)
            return card->tenants[i];
    }
    return NULL;
}

const char *tenant_name(const struct tenant *t)
{
    return t->id.home[0] ? t->id.home : t->card->uuid;
}

struct tenant *tenant_twin(const struct arbiter *a, uint64_t job_id, const char *name,
                           const struct card *card, bool confirmed)
{
    struct tenant *found = NULL;
    for (uint32_t i = 0; i < a->ncards; i++) {
        struct tenant *t = a->cards[i] == card ? NULL : tenant_find(a->cards[i], job_id);
        if (t && !t->id.revoked && (t->id.confirmed || !confirmed) &&
            strncmp(tenant_name(t), name, QG_UUID_LEN) == 0 &&
            (!found || t->usage.granted_ns > found->usage.granted_ns))
            found = t;
    }
    return found;
}

struct tenant *tenant_named(const struct arbiter *a, uint64_t job_id, const char *uuid)
{
    struct tenant *t = tenant_twin(a, job_id, uuid, NULL, false);
    struct card *card = t ? NULL : card_find(a, uuid);
    if (card)
        t = tenant_find(card, job_id);
    return t && !t->id.revoked ? t : NULL;
}

void card_kick(struct card *card)
{
    uint64_t one = 1;
    if (write(card->eventfd, &one, sizeof(one)) < 0)
        return; /* the eventfd is full, so its thread is awake already */
}

void wants_changed(struct card *card)
{
    uint64_t one = 1;
    if (__atomic_exchange_n(&card->wants, true, __ATOMIC_SEQ_CST))
        return; /* the main thread has not looked yet, or looks again by itself */
    if (write(card->arbiter->wants_fd, &one, sizeof(one)) < 0)
        return; /* the eventfd is full, so the main thread is awake already */
}

uint64_t reaped_extra(const struct tenant *t)
{
    uint64_t sum = t->memory.overhead + t->memory.overflow;
    for (uint32_t i = 0; i < t->memory.nreaped; i++)
        sum += t->memory.reaped[i].bytes;
    return sum;
}

bool gang_suspended(const struct tenant *t)
{
    if (!(t->card->flags & QG_CARD_GANG_SUSPEND) || t->id.job_class != QG_CLASS_OFFLINE)
        return false;
    return __atomic_load_n(&t->gang->preempted, __ATOMIC_SEQ_CST) & ~job_bit(t->card);
}
