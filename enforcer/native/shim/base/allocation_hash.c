/* SPDX-License-Identifier: Apache-2.0
 *
 * Open addressing with linear probing and backward-shift deletion: no tombstones, so a program that
 * allocates and frees for days stays as fast as in its first second.
 */
#include "base/allocation_hash.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Slots of the first table, 8 KiB. Chosen, not measured: small programs never grow it. */
#define FIRST_SIZE 256u
/* Bytes of a large page on x86-64. From this size on the table asks for large pages. */
#define HUGE ((size_t)2 << 20)

/* A pointer and a piece of a pool hash to the same slot. Finding either then costs one cache miss.
 */
static size_t home(const struct qg_allocations *table, uint8_t kind, uint64_t key)
{
    if (kind == QG_KIND_PIECE)
        kind = QG_KIND_POINTER;
    uint64_t hash = (key ^ ((uint64_t)kind << 56)) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 20) & table->mask;
}

/* Aligned to cache lines, and large ones to large pages: each access to a large table is a random
 * one. */
static struct qg_entry *new_table(size_t count)
{
    size_t bytes = count * sizeof(struct qg_entry);
    struct qg_entry *slots = aligned_alloc(bytes < HUGE ? 64 : HUGE, bytes);
    if (!slots)
        return NULL;
    if (bytes >= HUGE)
        madvise(slots, bytes, MADV_HUGEPAGE);
    return memset(slots, 0, bytes);
}

static bool grow(struct qg_allocations *table)
{
    size_t old = table->slots ? table->mask + 1 : 0;
    size_t size = old ? old * 2 : FIRST_SIZE;
    struct qg_entry *slots = new_table(size);
    if (!slots)
        return false;
    struct qg_allocations bigger = {slots, size - 1, 0};
    for (size_t i = 0; i < old; i++)
        if (table->slots[i].kind)
            qg_allocations_insert(&bigger, &table->slots[i]);
    free(table->slots);
    *table = bigger;
    return true;
}

bool qg_allocations_insert(struct qg_allocations *table, const struct qg_entry *entry)
{
    /* Never more than three quarters full: a probe then always meets an empty slot. */
    if (!table->slots || (table->used + 1) * 4 > (table->mask + 1) * 3)
        if (!grow(table))
            return false;
    size_t at = home(table, entry->kind, entry->key);
    while (table->slots[at].kind)
        at = (at + 1) & table->mask;
    table->slots[at] = *entry;
    table->used++;
    return true;
}

struct qg_entry *qg_allocations_find(struct qg_allocations *table, enum qg_kind kind, uint64_t key)
{
    if (!table->slots)
        return NULL;
    for (size_t at = home(table, (uint8_t)kind, key); table->slots[at].kind;
         at = (at + 1) & table->mask)
        if (table->slots[at].key == key && table->slots[at].kind == kind)
            return &table->slots[at];
    return NULL;
}

static void remove_at(struct qg_allocations *table, size_t hole)
{
    size_t at = hole;
    for (;;) {
        at = (at + 1) & table->mask;
        if (!table->slots[at].kind)
            break;
        size_t want = home(table, table->slots[at].kind, table->slots[at].key);
        if (((at - want) & table->mask) < ((at - hole) & table->mask))
            continue; /* it lies between its home slot and the hole, so it stays */
        table->slots[hole] = table->slots[at];
        hole = at;
    }
    memset(&table->slots[hole], 0, sizeof(table->slots[hole]));
    table->used--;
}

bool qg_allocations_remove(struct qg_allocations *table, enum qg_kind kind, uint64_t key,
                           struct qg_entry *out)
{
    struct qg_entry *entry = qg_allocations_find(table, kind, key);
    if (!entry)
        return false;
    *out = *entry;
    remove_at(table, (size_t)(entry - table->slots));
    return true;
}

/* What dies with its context. */
static bool belongs(const struct qg_entry *entry, uint64_t owner)
{
    return entry->owner == owner &&
           (entry->kind == QG_KIND_POINTER || entry->kind == QG_KIND_ARRAY ||
            entry->kind == QG_KIND_EXTERNAL || entry->kind == QG_KIND_IPC ||
            entry->kind == QG_KIND_CONTEXT || entry->kind == QG_KIND_MODULE ||
            entry->kind == QG_KIND_LIBRARY || entry->kind == QG_KIND_LIMIT);
}

void qg_allocations_change_owner(struct qg_allocations *table, uint64_t owner, uint64_t to)
{
    for (size_t at = 0; table->slots && at <= table->mask; at++)
        if (belongs(&table->slots[at], owner))
            table->slots[at].owner = to;
}

bool qg_allocations_next_of(struct qg_allocations *table, uint64_t owner, size_t *at,
                            struct qg_entry *out)
{
    for (; table->slots && *at <= table->mask; ++*at) {
        if (!belongs(&table->slots[*at], owner))
            continue;
        *out = table->slots[*at];
        /* may move another entry into this slot, so the next call reads it again */
        remove_at(table, *at);
        return true;
    }
    return false;
}

uint32_t qg_allocations_count(const struct qg_allocations *table, enum qg_kind kind, uint64_t owner)
{
    uint32_t count = 0;
    for (size_t at = 0; table->slots && at <= table->mask; at++)
        count += table->slots[at].kind == kind && table->slots[at].owner == owner;
    return count;
}

void qg_allocations_clear(struct qg_allocations *table)
{
    free(table->slots);
    memset(table, 0, sizeof(*table));
}
