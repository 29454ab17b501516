/* SPDX-License-Identifier: Apache-2.0
 *
 * The device's current pool is asked for once and kept. Here another thread sets a new one while
 * the driver's answer is on its way: the answer may serve the call that asked, and no later one.
 */
#include <stdio.h>

#include "hooks/memory/graph_nodes.h"
#include "memory/pools.h"
#include "track/streams.h"

#define OLD ((CUmemoryPool)0x10)
#define NEW ((CUmemoryPool)0x20)

void *qg_real[QG_NSYMBOLS];
struct qg_card qg_cards[QG_MAX_CARDS];
__thread int qg_depth;

static CUmemoryPool set = OLD;
static bool meanwhile;
static unsigned asked;

bool qg_relax(CUstreamCaptureMode *mode)
{
    return (void)mode, false;
}
void qg_unrelax(bool relaxed, CUstreamCaptureMode *mode)
{
    (void)relaxed, (void)mode;
}
struct qg_card *qg_card_current(void)
{
    return &qg_cards[0];
}
struct qg_card *qg_card_by_ordinal(CUdevice ordinal)
{
    return &qg_cards[ordinal];
}
void qg_graph_memory_trimmed(void)
{
}
bool qg_find_entry(enum qg_kind kind, uint64_t key, struct qg_entry *out)
{
    return (void)kind, (void)key, (void)out, false;
}
bool qg_detach(enum qg_kind kind, uint64_t key, struct qg_entry *out)
{
    return (void)kind, (void)key, (void)out, false;
}
void qg_reattach(const struct qg_entry *entry)
{
    (void)entry;
}
void qg_pieces_orphaned(const struct qg_entry *pool)
{
    (void)pool;
}
void qg_set_charge(struct qg_card *card, uint64_t reserved, enum qg_kind kind, uint64_t key,
                   uint64_t size)
{
    (void)card, (void)reserved, (void)kind, (void)key, (void)size;
}

static CUresult current_pool(CUmemoryPool *pool, CUdevice device)
{
    (void)device;
    *pool = set;
    asked++;
    if (meanwhile) {
        set = NEW;
        qg_pool_changed();
    }
    meanwhile = false;
    return CUDA_SUCCESS;
}

#define CHECK(what)                                                                                \
    if (!(what)) {                                                                                 \
        printf("line %d: %s\n", __LINE__, #what);                                                  \
        return 1;                                                                                  \
    }

int main(void)
{
    qg_real[QG_SYM_cuDeviceGetMemPool] = (void *)current_pool;
    CHECK(qg_pool_current(&qg_cards[0]) == OLD && qg_pool_current(&qg_cards[0]) == OLD &&
          asked == 1);
    qg_pool_changed();
    meanwhile = true;
    CHECK(qg_pool_current(&qg_cards[0]) == OLD);
    CHECK(qg_pool_current(&qg_cards[0]) == NEW);
    CHECK(qg_pool_current(&qg_cards[0]) == NEW && asked == 3);
    return 0;
}
