/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual memory: what cu_vmm.c (physical memory) and cu_vmm_map.c (addresses, mappings) share.
 */
#ifndef QGPU_SIM_CU_VMM_H
#define QGPU_SIM_CU_VMM_H

#include "cu_alloc.h"

#define CU_VMM_GRANULARITY (2ull << 20)

struct cu_physical {
    CUmemGenericAllocationHandle handle;
    uint64_t size, id;
    uint64_t hold; /* of an import: it keeps the maker's memory on the card */
    CUcontext ctx;
    uint32_t ctx_id;
    CUmemAllocationProp prop;
    uint8_t *contents;
    uint8_t *away; /* where the pages of the contents are meanwhile, as in struct cu_alloc */
    bool shared;   /* with other processes, either way */
    int file;      /* of the contents, for other processes; -1: cannot be shared */
    /* not ours in the books of the card: imported (its maker has it there), or memory of the
     * host */
    bool borrowed;
    bool object; /* of a multicast team: what it shows is bound to it */
    unsigned refs, maps;
    struct cu_physical *next;
};

extern pthread_mutex_t cu_vmm_lock; /* of both: physical memory, ranges, ties */

static inline bool cu_vmm_whole(uint64_t size)
{
    return size && size % CU_VMM_GRANULARITY == 0;
}

/* Under cu_vmm_lock. if_unused: out of the list when nothing holds it any more, or NULL; the caller
 * gives it back without the lock. */
struct cu_physical *cu_vmm_find(CUmemGenericAllocationHandle handle);
struct cu_physical *cu_vmm_first(void);
struct cu_physical *cu_vmm_if_unused(struct cu_physical *physical);
void cu_vmm_give_back(struct cu_physical *gone);

#endif
