/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process holds: a hash table from a driver handle to its size, card and owner. Pure data structure; the
 * caller locks. Insert, find and remove take constant time at any number of live entries.
 */
#ifndef QG_LEDGER_H
#define QG_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Handles of different kinds may have the same number, so the kind is part of the key. */
enum qg_kind { QG_KIND_NONE = 0, QG_KIND_POINTER = 1, QG_KIND_HANDLE = 2, QG_KIND_ARRAY = 3, QG_KIND_MAPPING = 4 };

struct qg_entry {
    uint64_t key;
    uint64_t size;  /* bytes charged; of a mapping: bytes mapped */
    uint64_t owner; /* context (pointer, array) or the handle that is mapped (mapping) */
    uint32_t refs;  /* handle: creations and retains not yet released */
    uint32_t maps;  /* handle: live mappings */
    uint8_t kind;
    uint8_t card;
};

struct qg_ledger {
    struct qg_entry *slots;
    size_t mask; /* number of slots - 1 */
    size_t used;
};

/* False when memory for the table cannot be had. The key must not be in the table already. */
bool qg_ledger_insert(struct qg_ledger *ledger, const struct qg_entry *entry);

/* The entry, or NULL. Valid until the next insert or remove. */
struct qg_entry *qg_ledger_find(struct qg_ledger *ledger, enum qg_kind kind, uint64_t key);

/* Copies the entry out and removes it; false if there is none. */
bool qg_ledger_remove(struct qg_ledger *ledger, enum qg_kind kind, uint64_t key, struct qg_entry *out);

/* Removes every pointer and array of a context; adds their bytes to freed[card]. */
void qg_ledger_drop_owner(struct qg_ledger *ledger, uint64_t owner, uint64_t *freed);

/* Gives every pointer and array of one owner to another. */
void qg_ledger_change_owner(struct qg_ledger *ledger, uint64_t owner, uint64_t to);

/* Forgets everything and gives the table back. */
void qg_ledger_clear(struct qg_ledger *ledger);

#endif
