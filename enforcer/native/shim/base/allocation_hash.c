/* SPDX-License-Identifier: Apache-2.0
 *
 * Open addressing with linear probing and backward-shift deletion: no tombstones, so a program that
 * allocates and frees for days stays as fast as in its first second.
 */
#include "base/allocation_hash.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FIRST_SIZE 256u
#define HUGE       ((size_t)2 << 20)

/* A pointer and a piece of a pool have the same home: to look for the one and then the other misses
 * the cache once. */
static size_t home(const struct qg_ledger *ledger, uint8_t kind, uint64_t key)
{
    if (kind == QG_KIND_PIECE)
        kind = QG_KIND_POINTER;
    uint64_t hash = (key ^ ((uint64_t)kind << 56)) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 20) & ledger->mask;
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

static bool grow(struct qg_ledger *ledger)
{
    size_t old = ledger->slots ? ledger->mask + 1 : 0;
    size_t size = old ? old * 2 : FIRST_SIZE;
    struct qg_entry *slots = new_table(size);
    if (!slots)
        return false;
    struct qg_ledger bigger = {slots, size - 1, 0};
    for (size_t i = 0; i < old; i++)
        if (ledger->slots[i].kind)
            qg_ledger_insert(&bigger, &ledger->slots[i]);
    free(ledger->slots);
    *ledger = bigger;
    return true;
}

bool qg_ledger_insert(struct qg_ledger *ledger, const struct qg_entry *entry)
{
    /* Never more than three quarters full: a probe then always meets an empty slot. */
    if (!ledger->slots || (ledger->used + 1) * 4 > (ledger->mask + 1) * 3)
        if (!grow(ledger))
            return false;
    size_t at = home(ledger, entry->kind, entry->key);
    while (ledger->slots[at].kind)
        at = (at + 1) & ledger->mask;
    ledger->slots[at] = *entry;
    ledger->used++;
    return true;
}

struct qg_entry *qg_ledger_find(struct qg_ledger *ledger, enum qg_kind kind, uint64_t key)
{
    if (!ledger->slots)
        return NULL;
    for (size_t at = home(ledger, (uint8_t)kind, key); ledger->slots[at].kind;
         at = (at + 1) & ledger->mask)
        if (ledger->slots[at].key == key && ledger->slots[at].kind == kind)
            return &ledger->slots[at];
    return NULL;
}

static void remove_at(struct qg_ledger *ledger, size_t hole)
{
    size_t at = hole;
    for (;;) {
        at = (at + 1) & ledger->mask;
        if (!ledger->slots[at].kind)
            break;
        size_t want = home(ledger, ledger->slots[at].kind, ledger->slots[at].key);
        if (((at - want) & ledger->mask) < ((at - hole) & ledger->mask))
            continue; /* it lies between its home and the hole: stays */
        ledger->slots[hole] = ledger->slots[at];
        hole = at;
    }
    memset(&ledger->slots[hole], 0, sizeof(ledger->slots[hole]));
    ledger->used--;
}

bool qg_ledger_remove(struct qg_ledger *ledger, enum qg_kind kind, uint64_t key,
                      struct qg_entry *out)
{
    struct qg_entry *entry = qg_ledger_find(ledger, kind, key);
    if (!entry)
        return false;
    *out = *entry;
    remove_at(ledger, (size_t)(entry - ledger->slots));
    return true;
}

/* What dies with its context. */
static bool belongs(const struct qg_entry *entry, uint64_t owner)
{
    return entry->owner == owner &&
           (entry->kind == QG_KIND_POINTER || entry->kind == QG_KIND_ARRAY ||
            entry->kind == QG_KIND_EXTERNAL || entry->kind == QG_KIND_IPC);
}

void qg_ledger_change_owner(struct qg_ledger *ledger, uint64_t owner, uint64_t to)
{
    for (size_t at = 0; ledger->slots && at <= ledger->mask; at++)
        if (belongs(&ledger->slots[at], owner))
            ledger->slots[at].owner = to;
}

bool qg_ledger_next_of(struct qg_ledger *ledger, uint64_t owner, size_t *at, struct qg_entry *out)
{
    for (; ledger->slots && *at <= ledger->mask; ++*at) {
        if (!belongs(&ledger->slots[*at], owner))
            continue;
        *out = ledger->slots[*at];
        remove_at(ledger, *at); /* may move another entry here: the next call looks again */
        return true;
    }
    return false;
}

uint32_t qg_ledger_count(const struct qg_ledger *ledger, enum qg_kind kind, uint64_t owner)
{
    uint32_t count = 0;
    for (size_t at = 0; ledger->slots && at <= ledger->mask; at++)
        count += ledger->slots[at].kind == kind && ledger->slots[at].owner == owner;
    return count;
}

void qg_ledger_clear(struct qg_ledger *ledger)
{
    free(ledger->slots);
    memset(ledger, 0, sizeof(*ledger));
}
