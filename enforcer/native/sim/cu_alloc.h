/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of everything that an address can belong to: allocations, mappings, host memory.
 */
#ifndef QGPU_SIM_CU_ALLOC_H
#define QGPU_SIM_CU_ALLOC_H

#include "cu.h"

/* VIRTUAL: a mapping of cuMemMap. Up to MANAGED it is memory of the card. */
enum kind { VIRTUAL, DEVICE, MANAGED, HOST, REGISTERED };

struct cu_alloc {
    CUdeviceptr base;
    uint64_t size, id;
    CUcontext ctx;
    enum kind kind;
    uint8_t *shadow; /* NULL until needed */
    uint8_t *made;   /* one bit per chunk that has contents of its own */
    uint32_t fill;   /* contents of the others, a 32-bit pattern */
    unsigned flags; /* VIRTUAL: ordinal of the device */
};

extern pthread_rwlock_t cu_alloc_lock;

/* Under the lock: the entry that an address lies in, or NULL. */
struct cu_alloc *cu_alloc_find(CUdeviceptr ptr);

/* These lock. take: the entry with exactly this base and a kind from low to high, out of the table, or NULL. */
CUresult cu_alloc_insert(const struct cu_alloc *entry);
struct cu_alloc *cu_alloc_take(CUdeviceptr base, enum kind low, enum kind high);

/* Of an entry that was taken out. */
void cu_alloc_release(struct cu_alloc *alloc);

/* Address space; NULL if there is none. */
void *cu_alloc_reserve(size_t size, int access);

#endif
