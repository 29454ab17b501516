/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of contexts. What a context costs is known once the driver has made it, and then only to
 * NVML. So what the last ones of this job cost is reserved before (gate page: mem_context). qgpud
 * charges what a context takes beside it (mem_extra). What was reserved too much is given back here
 * as soon as the true cost is known: a card has one sum for all its contexts.
 */
#include "memory/contexts.h"

#include "link/link.h"
#include "memory/allocation_table.h"

/* The driver makes one primary context of a device at a time as well. Held across its call, so that
 * two threads do not reserve for one context. */
static pthread_mutex_t primaries[QG_MAX_ORDINALS] = {[0 ... QG_MAX_ORDINALS - 1] =
                                                         PTHREAD_MUTEX_INITIALIZER};

void qg_contexts_after_fork(void)
{
    for (unsigned i = 0; i < QG_MAX_ORDINALS; i++)
        pthread_mutex_init(&primaries[i], NULL);
}

/* Bytes to reserve; 0 until the arbiter knows a cost. */
static uint64_t cost(struct qg_card *card)
{
    const struct qg_pages *pages = qg_pages_of(card);
    return pages ? __atomic_load_n(&pages->gate->mem_context, __ATOMIC_ACQUIRE) : 0;
}

bool qg_context_begins(CUdevice device, struct qg_making *making)
{
    *making = (struct qg_making){.primary = -1};
    if (!qg_governed || qg_depth)
        return true;
    struct qg_card *card = qg_card_by_ordinal(device);
    if (!card)
        return true; /* the driver itself returns the error */
    if (!qg_pages_of(card) && qg_link_for_memory(card)) {
        qg_refuse_for(card, 0, "context");
        return false;
    }
    uint64_t bytes = cost(card);
    if (bytes && !qg_reserve_for(card, bytes, "context"))
        return false;
    making->card = card;
    making->bytes = bytes;
    return true;
}

static bool active(CUdevice device)
{
    unsigned int flags;
    int yes = 0;
    return QG_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &yes) == CUDA_SUCCESS && yes;
}

bool qg_primary_begins(CUdevice device, struct qg_making *making)
{
    *making = (struct qg_making){.primary = -1};
    if (!qg_governed || qg_depth || device < 0 || device >= QG_MAX_ORDINALS)
        return true;
    pthread_mutex_lock(&primaries[device]);
    bool admitted = active(device) || qg_context_begins(device, making);
    if (admitted)
        making->primary = device;
    else
        pthread_mutex_unlock(&primaries[device]);
    return admitted;
}

/* The entry has a number of its own: a new context may get the handle of one that is just ending.
 * It is the context's, so it ends with it. */
static void count(struct qg_card *card, uint64_t bytes, CUcontext context)
{
    static uint64_t number;
    pthread_mutex_lock(&qg_allocation_lock);
    card->contexts++;
    card->context_bytes += bytes;
    qg_add_used(card, bytes);
    pthread_mutex_unlock(&qg_allocation_lock);
    qg_charge(card, bytes, QG_KIND_CONTEXT, __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED),
              (uint64_t)(uintptr_t)context, 0);
}

void qg_context_made(const struct qg_making *making, CUcontext context)
{
    if (making->card && context)
        count(making->card, making->bytes, context);
    else if (making->card)
        qg_unreserve(making->card, making->bytes);
    if (making->primary >= 0)
        pthread_mutex_unlock(&primaries[making->primary]);
}

void qg_context_ended(struct qg_card *card)
{
    uint64_t bytes =
        card->contexts > 1 ? card->context_bytes / card->contexts : card->context_bytes;
    card->contexts -= card->contexts != 0;
    card->context_bytes -= bytes;
    qg_subtract_used(card, bytes);
}

bool qg_contexts_settle(struct qg_card *card)
{
    uint64_t each = cost(card), more = 0;
    pthread_mutex_lock(&qg_allocation_lock);
    /* a cost that rose is in mem_extra already */
    if (each && card->context_bytes / each >= card->contexts)
        more = card->context_bytes - each * card->contexts;
    card->context_bytes -= more;
    if (more)
        qg_subtract_used(card, more);
    pthread_mutex_unlock(&qg_allocation_lock);
    return more;
}

void qg_contexts_poll(void)
{
    for (unsigned i = 0; i < QG_MAX_CARDS; i++)
        if (qg_pages_of(&qg_cards[i]))
            qg_contexts_settle(&qg_cards[i]);
}
