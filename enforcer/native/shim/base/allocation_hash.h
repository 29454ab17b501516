/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process holds: a hash table from a driver handle to its size, card and owner. Pure data
 * structure; the caller locks. Insert, find and remove take constant time at any number of live
 * entries.
 */
#ifndef QG_ALLOCATION_HASH_H
#define QG_ALLOCATION_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Handles of different kinds may have the same number, so the kind is part of the key. */
enum qg_kind {
    QG_KIND_NONE = 0,
    QG_KIND_POINTER = 1,
    QG_KIND_HANDLE = 2,
    QG_KIND_ARRAY = 3,
    QG_KIND_MAPPING = 4, /* of a handle, at an address; holds no bytes */
    QG_KIND_POOL = 5,    /* what the driver has reserved for a memory pool */
    QG_KIND_PIECE = 6,   /* an allocation out of a pool; holds no bytes */
    /* what the driver has reserved for the graphs of a card; the key is the card's index */
    QG_KIND_GRAPH = 7,
    QG_KIND_EXEC = 8,     /* an executable graph with memory nodes; holds no bytes */
    QG_KIND_EXTERNAL = 9, /* imported external memory */
    QG_KIND_IPC = 10,     /* memory of another process, by its address here */
    QG_KIND_CONTEXT = 13, /* a context; its bytes are the card's (contexts.c), none are here */
    QG_KIND_ORPHAN = 12,  /* a pool that was destroyed while pieces of it live; refs counts them */
    QG_KIND_TIE = 11,     /* a use of a handle by an array or a multicast object; holds no bytes */
    QG_KIND_MODULE = 16,  /* variables of a module, by its handle */
    QG_KIND_LIBRARY = 17, /* variables of a library in a context; refs: number of the library */
    QG_KIND_LIMIT = 18    /* a limit of a context; refs: what it was, see hooks/memory/limit.c */
};

/* made here, by another process; no memory of its own */
enum qg_foreign { QG_OWN, QG_FOREIGN, QG_MULTICAST };

struct qg_entry { /* 32 bytes: two to a cache line */
    uint64_t key;
    uint64_t size; /* bytes charged; of a mapping: bytes mapped */
    union {
        uint64_t owner;       /* context (pointer, array), handle (mapping, tie), pool (piece) */
        struct {              /* of a handle */
            uint32_t maps;    /* live mappings and ties */
            uint32_t foreign; /* enum qg_foreign */
        };
    };
    /* handle: creations and retains not yet released; ipc: opens; exec: see
     * hooks/memory/graph_nodes.c; tie: bytes, in QG_TIE_UNIT */
    uint32_t refs;
    uint16_t share; /* place in the list of shared memory + 1; 0: not shared */
    uint8_t kind;
    uint8_t card;
};
/* Bytes per unit of a tie's length, so that 32 bits hold it. Smaller than any allocation unit. */
#define QG_TIE_UNIT 256u
_Static_assert(sizeof(struct qg_entry) == 32, "an entry lies across two cache lines");

struct qg_allocations {
    struct qg_entry *slots;
    size_t mask; /* number of slots - 1 */
    size_t used;
};

/* False when memory for the table cannot be had. The key must not be in the table already. */
bool qg_allocations_insert(struct qg_allocations *table, const struct qg_entry *entry);

/* The entry, or NULL. Valid until the next insert or remove. */
struct qg_entry *qg_allocations_find(struct qg_allocations *table, enum qg_kind kind, uint64_t key);

/* Copies the entry out and removes it; false if there is none. */
bool qg_allocations_remove(struct qg_allocations *table, enum qg_kind kind, uint64_t key,
                           struct qg_entry *out);

/* Takes one entry of a context out; false when it has none left. at: where to go on, 0 at first. */
bool qg_allocations_next_of(struct qg_allocations *table, uint64_t owner, size_t *at,
                            struct qg_entry *out);

/* Gives everything that a context owns to another owner. */
void qg_allocations_change_owner(struct qg_allocations *table, uint64_t owner, uint64_t to);

/* Number of entries of a kind that belong to an owner. Visits every slot. */
uint32_t qg_allocations_count(const struct qg_allocations *table, enum qg_kind kind,
                              uint64_t owner);

/* Forgets everything and gives the table back. */
void qg_allocations_clear(struct qg_allocations *table);

#endif
