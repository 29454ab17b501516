/* SPDX-License-Identifier: Apache-2.0
 *
 * Charges of pools. After each call that may change what the driver has reserved, the driver is
 * asked. Asking and recording happen under one lock. So of two threads the later answer stays.
 */
#include "memory/pools.h"

#include <stdlib.h>
#include <string.h>

#include "driver/relax.h"
#include "memory/graph_memory.h"

/* Bytes of a MiB. */
#define MIB (1ull << 20)
/* The driver did not answer the query. */
#define UNKNOWN UINT64_MAX

struct qg_pool {
    CUmemoryPool handle;
    struct qg_card *card; /* NULL: host memory, a card that was not granted, or not known yet */
    enum qg_place place;
    bool asked, tells;
    bool holds; /* while it is being destroyed: what is charged for it */
    struct qg_entry held;
    struct qg_pool *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* taken before qg_allocation_lock */
static struct qg_pool *pools;
static CUmemoryPool current[QG_MAX_CARDS]; /* atomic; written under the lock */
static unsigned changes;                   /* atomic: times that the program set another pool */
static uint64_t grain = 2 * MIB;           /* atomic: largest unit of growth seen */
static bool stale;                         /* atomic */
static bool graphs_used[QG_MAX_CARDS];     /* atomic */

void qg_pools_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    pools = NULL; /* not given back: see qg_memory_after_fork */
    memset(current, 0, sizeof(current));
    memset(graphs_used, 0, sizeof(graphs_used));
    stale = false;
}

/* Our own queries to the driver. Another thread may begin a capture just before the driver gets the
 * query, which would spoil it. */
#define ASK(call)                                                                                  \
    ({                                                                                             \
        CUstreamCaptureMode qg_mode;                                                               \
        bool qg_relaxed = qg_relax(&qg_mode);                                                      \
        qg_depth++;                                                                                \
        CUresult qg_answer = (call);                                                               \
        qg_depth--;                                                                                \
        qg_unrelax(qg_relaxed, &qg_mode);                                                          \
        qg_answer;                                                                                 \
    })

/* A driver that knows nothing of the question may answer without writing. */
static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
    cuuint64_t value = UNKNOWN;
    return ASK(QG_REAL(cuMemPoolGetAttribute)(pool, which, &value)) == CUDA_SUCCESS ? value
                                                                                    : UNKNOWN;
}

static uint64_t graph_attribute(struct qg_card *card, CUgraphMem_attribute which)
{
    cuuint64_t value = UNKNOWN;
    return ASK(QG_REAL(cuDeviceGetGraphMemAttribute)(card->ordinal, which, &value)) == CUDA_SUCCESS
               ? value
               : UNKNOWN;
}

/* Under the lock. */
static struct qg_pool *find(CUmemoryPool handle)
{
    struct qg_pool *pool = pools;
    while (pool && pool->handle != handle)
        pool = pool->next;
    return pool;
}

static struct qg_pool *add(CUmemoryPool handle, enum qg_place place, struct qg_card *card)
{
    struct qg_pool *pool = find(handle);
    if (!pool && (pool = calloc(1, sizeof(*pool))) != NULL) {
        pool->next = pools;
        pools = pool;
    }
    if (pool)
        *pool =
            (struct qg_pool){.handle = handle, .place = place, .card = card, .next = pool->next};
    return pool;
}

void qg_pool_made(CUmemoryPool handle, enum qg_place place, struct qg_card *card)
{
    pthread_mutex_lock(&lock);
    add(handle, place, card);
    pthread_mutex_unlock(&lock);
}

void qg_pool_met(CUmemoryPool handle, enum qg_place place, struct qg_card *card)
{
    pthread_mutex_lock(&lock);
    if (!find(handle))
        add(handle, place, card);
    pthread_mutex_unlock(&lock);
}

struct qg_pool *qg_pool_destroying(CUmemoryPool handle)
{
    struct qg_pool *pool;
    pthread_mutex_lock(&lock);
    struct qg_pool **link = &pools;
    while ((pool = *link) != NULL && pool->handle != handle)
        link = &pool->next;
    if (pool) {
        *link = pool->next;
        pool->holds = pool->tells && pool->card &&
                      qg_detach(QG_KIND_POOL, (uint64_t)(uintptr_t)handle, &pool->held);
    }
    pthread_mutex_unlock(&lock);
    return pool;
}

void qg_pool_destroyed(struct qg_pool *pool, bool destroyed)
{
    if (!pool)
        return;
    if (pool->holds && destroyed)
        qg_pieces_orphaned(&pool->held);
    else if (pool->holds)
        qg_reattach(&pool->held);
    pool->holds = false;
    if (destroyed) {
        free(pool);
        return;
    }
    pthread_mutex_lock(&lock);
    pool->next = pools;
    pools = pool;
    pthread_mutex_unlock(&lock);
}

/* Not made by the program: one of the devices' own, also of those that were not granted. */
static enum qg_place place_of_default(CUmemoryPool handle, struct qg_card **card)
{
    int devices = 0;
    if (ASK(QG_REAL(cuDeviceGetCount)(&devices)) != CUDA_SUCCESS)
        devices = 0;
    for (CUdevice i = 0; i < devices; i++) {
        CUmemoryPool its = NULL;
        if (ASK(QG_REAL(cuDeviceGetDefaultMemPool)(&its, i)) == CUDA_SUCCESS && its == handle) {
            *card = qg_card_by_ordinal(i);
            return QG_PLACE_CARD;
        }
    }
    *card = NULL;
    return QG_PLACE_NONE;
}

struct qg_card *qg_pool_card(CUmemoryPool handle)
{
    pthread_mutex_lock(&lock);
    struct qg_pool *pool = find(handle);
    struct qg_card *card = pool ? pool->card : NULL;
    enum qg_place place = pool ? pool->place : place_of_default(handle, &card);
    if (place == QG_PLACE_NONE && (card = qg_card_current()) != NULL)
        place = QG_PLACE_CARD;
    if (!pool)
        add(handle, place, card);
    else if (place != pool->place) {
        pool->place = place;
        pool->card = card;
    }
    pthread_mutex_unlock(&lock);
    return card;
}

bool qg_pool_in_host(CUmemoryPool handle)
{
    pthread_mutex_lock(&lock);
    const struct qg_pool *pool = find(handle);
    bool in_host = pool && pool->place == QG_PLACE_HOST;
    pthread_mutex_unlock(&lock);
    return in_host;
}

CUmemoryPool qg_pool_current(struct qg_card *card)
{
    CUmemoryPool *cached = &current[card - qg_cards],
                 pool = __atomic_load_n(cached, __ATOMIC_ACQUIRE);
    if (pool)
        return pool;
    unsigned before = __atomic_load_n(&changes, __ATOMIC_ACQUIRE);
    if (ASK(QG_REAL(cuDeviceGetMemPool)(&pool, card->ordinal)) != CUDA_SUCCESS || !pool)
        return NULL;
    pthread_mutex_lock(&lock);
    if (!find(pool))
        add(pool, QG_PLACE_CARD, card);
    /* else the answer may be older than what was set since */
    if (before == __atomic_load_n(&changes, __ATOMIC_RELAXED))
        __atomic_store_n(cached, pool, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return pool;
}

void qg_pool_changed(void)
{
    pthread_mutex_lock(&lock);
    __atomic_add_fetch(&changes, 1, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < QG_MAX_CARDS; i++)
        __atomic_store_n(&current[i], NULL, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}

bool qg_pool_reports_size(CUmemoryPool handle)
{
    pthread_mutex_lock(&lock);
    struct qg_pool *pool = find(handle);
    if (pool && !pool->asked) {
        pool->tells = attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != UNKNOWN;
        pool->asked = true;
    }
    bool tells = pool && pool->tells;
    pthread_mutex_unlock(&lock);
    return tells;
}

bool qg_pool_lost(CUmemoryPool handle)
{
    pthread_mutex_lock(&lock);
    const struct qg_pool *pool = find(handle);
    bool told = pool && pool->place != QG_PLACE_NONE;
    pthread_mutex_unlock(&lock);
    return !told && attribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == UNKNOWN;
}

static uint64_t held(enum qg_kind kind, uint64_t key)
{
    struct qg_entry entry;
    return qg_find_entry(kind, key, &entry) ? entry.size : 0;
}

/* Under the lock. */
static uint64_t correct(struct qg_card *card, enum qg_kind kind, uint64_t key, uint64_t reserved,
                        uint64_t now)
{
    uint64_t before = held(kind, key);
    if (now == UNKNOWN)
        now = before;
    if (now != before || reserved)
        qg_set_charge(card, reserved, kind, key, now);
    return now > before ? now - before : 0;
}

uint64_t qg_pool_poll(CUmemoryPool handle, struct qg_card *card, uint64_t reserved)
{
    pthread_mutex_lock(&lock);
    uint64_t grown = correct(card, QG_KIND_POOL, (uint64_t)(uintptr_t)handle, reserved,
                             attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    pthread_mutex_unlock(&lock);
    uint64_t unit = __atomic_load_n(&grain, __ATOMIC_RELAXED);
    while (grown > unit && unit < 64 * MIB && grown % (unit * 2) == 0)
        unit *= 2;
    __atomic_store_n(&grain, unit, __ATOMIC_RELAXED);
    return grown;
}

uint64_t qg_graphs_poll(struct qg_card *card, uint64_t reserved)
{
    unsigned index = (unsigned)(card - qg_cards);
    __atomic_store_n(&graphs_used[index], true, __ATOMIC_RELAXED);
    pthread_mutex_lock(&lock);
    uint64_t grown = correct(card, QG_KIND_GRAPH, index, reserved,
                             graph_attribute(card, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT));
    pthread_mutex_unlock(&lock);
    return grown;
}

bool qg_pool_spare(CUmemoryPool handle, uint64_t size)
{
    uint64_t reserved = attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    uint64_t used = attribute(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    return reserved != UNKNOWN && used != UNKNOWN && reserved >= used && reserved - used >= size;
}

bool qg_graphs_spare(struct qg_card *card, uint64_t size)
{
    uint64_t reserved = graph_attribute(card, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    uint64_t used = graph_attribute(card, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    return reserved != UNKNOWN && used != UNKNOWN && reserved >= used && reserved - used >= size;
}

uint64_t qg_pool_rounded(uint64_t size)
{
    uint64_t unit = __atomic_load_n(&grain, __ATOMIC_RELAXED);
    return size > UINT64_MAX - unit ? size : (size + unit - 1) / unit * unit;
}

/* True: a later poll may find fewer bytes. Unused memory is above the threshold, and the card has
 * not reached its free yet. */
static bool may_shrink(CUmemoryPool handle, uint64_t reserved)
{
    if (!reserved)
        return false;
    uint64_t keeps = attribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    uint64_t used = attribute(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    return keeps != UNKNOWN && used != UNKNOWN && reserved > keeps && reserved > used;
}

/* All pools of a card (NULL: of all cards), trimmed or only polled. True: bytes were given back. */
static bool look_at_all(struct qg_card *card, bool trim)
{
    bool less = false;
    pthread_mutex_lock(&lock);
    for (struct qg_pool *pool = pools; pool; pool = pool->next) {
        uint64_t key = (uint64_t)(uintptr_t)pool->handle;
        if (!pool->tells || !pool->card || (card && pool->card != card))
            continue;
        uint64_t before = held(QG_KIND_POOL, key);
        if (trim && before)
            ASK(QG_REAL(cuMemPoolTrimTo)(pool->handle, 0));
        correct(pool->card, QG_KIND_POOL, key, 0,
                attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
        less |= held(QG_KIND_POOL, key) < before;
        if (may_shrink(pool->handle, held(QG_KIND_POOL, key)))
            qg_pools_stale();
    }
    for (unsigned i = 0; i < QG_MAX_CARDS; i++) {
        if (!__atomic_load_n(&graphs_used[i], __ATOMIC_RELAXED) || (card && card != &qg_cards[i]))
            continue;
        uint64_t before = held(QG_KIND_GRAPH, i);
        if (trim && before) {
            ASK(QG_REAL(cuDeviceGraphMemTrim)(qg_cards[i].ordinal));
            qg_graph_memory_trimmed();
        }
        correct(&qg_cards[i], QG_KIND_GRAPH, i, 0,
                graph_attribute(&qg_cards[i], CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT));
        less |= held(QG_KIND_GRAPH, i) < before;
    }
    pthread_mutex_unlock(&lock);
    return less;
}

bool qg_pools_trim(struct qg_card *card)
{
    return look_at_all(card, true);
}

void qg_pools_stale(void)
{
    __atomic_store_n(&stale, true, __ATOMIC_RELEASE);
}

void qg_pools_poll(void)
{
    if (QG_LIKELY(!__atomic_load_n(&stale, __ATOMIC_ACQUIRE)) ||
        !__atomic_exchange_n(&stale, false, __ATOMIC_ACQ_REL))
        return;
    look_at_all(NULL, false);
}
