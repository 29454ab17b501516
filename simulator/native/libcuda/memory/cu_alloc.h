/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of everything that an address can belong to: allocations, mappings, host memory.
 */
#ifndef QGPU_SIM_CU_ALLOC_H
#define QGPU_SIM_CU_ALLOC_H

#include "cu.h"

/* VIRTUAL: a mapping of cuMemMap. Up to MANAGED it is memory of the card; PINNED comes out of a
 * pool of the host. */
enum kind { VIRTUAL, DEVICE, MANAGED, PINNED, HOST, REGISTERED };

#define CU_DOMAINS 2 /* locality domains of a device */

/* Whether a location is on a device that is there (of its locality domains, all parts of the
 * whole), and on which. */
bool cu_on_device(const CUmemLocation *location, CUdevice *device);
bool cu_on_host(const CUmemLocation *location);

/* Whose the address space of an entry is, and what its end gives back. */
/* POOLED: cu_pool.c; BORROWED: address space its own, memory another's */
enum owner { OWN, POOLED, BORROWED };

struct cu_alloc {
    CUdeviceptr base;
    uint64_t size, id;
    CUcontext ctx;
    enum kind kind;
    enum owner owner;
    CUmemoryPool pool; /* POOLED */
    uint8_t *shadow;   /* NULL until needed */
    uint8_t *away;     /* its pages while checkpointed, else NULL */
    bool shared;       /* with other processes, either way */
    uint8_t *made;     /* one bit per chunk that has contents of its own */
    uint32_t fill;     /* contents of the others, a 32-bit pattern */
    unsigned flags;    /* VIRTUAL, BORROWED: ordinal of the device */
    uint64_t range;    /* VIRTUAL: number of its reservation */
};

extern pthread_rwlock_t cu_alloc_lock;

/* Under the lock: the entry that an address lies in, or NULL; the entry at a place, or NULL. */
struct cu_alloc *cu_alloc_find(CUdeviceptr ptr);
struct cu_alloc *cu_alloc_at(size_t place);

/* These lock. take: the entry with exactly this base and a kind from low to high, out of the table,
 * or NULL. */
CUresult cu_alloc_insert(const struct cu_alloc *entry);
struct cu_alloc *cu_alloc_take(CUdeviceptr base, enum kind low, enum kind high);

/* Of an entry that was taken out. */
void cu_alloc_release(struct cu_alloc *alloc);

/* Address space for memory with another owner: an import (shared), memory of a graph. It ends with
 * the context, which need not be of the memory's device. hold: a number of SIM_REQ_HOLD, or 0. */
CUresult cu_alloc_borrow(CUdeviceptr *out, size_t bytes, CUcontext ctx, CUdevice device,
                         uint64_t hold, bool shared);

/* The context that keeps a device's memory on the device side: the primary one, or the current one.
 */
CUresult cu_keeper(const struct cu_device *device, CUcontext *ctx);

/* cu_pool.c. returned: the address goes back to its pool. */
CUresult cu_pool_alloc(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream);
CUmemoryPool cu_pool_current(CUdevice device);
void cu_pool_returned(const struct cu_alloc *alloc);
void cu_pool_forget(CUcontext ctx);
/* a pool of another process: nothing comes out of it */
CUresult cu_pool_import(CUmemoryPool *out, CUdevice device);
CUdevice cu_pool_device(CUmemoryPool pool); /* -1: of the host */
/* the devices besides its own that have access, a bit each, and CU_POOL_EXPORTED */
#define CU_POOL_EXPORTED (1u << 31)
uint32_t *cu_pool_reachable(CUmemoryPool pool);

/* Physical memory of cuMemCreate as another process gets it: a file of its contents and then this.
 */
struct cu_export {
    uint32_t magic, index; /* of the card on the node */
    uint64_t size, id;
    uint32_t ctx, reserved; /* with id: the card's name for it */
};
#define CU_EXPORT_OF_HOST  UINT32_MAX /* as index: memory of the host's NUMA node, device -1 */
#define CU_EXPORT_PHYSICAL 0x58455051u
#define CU_EXPORT_POOL     0x58455052u
/* cu_export.c: the descriptor that an exporter is given, and that of the contents behind one, which
 * is the caller's; -1: there is none. Behind a device it is there while the maker has the memory.
 */
int cu_export_open(int contents);
int cu_export_contents(int fd);
bool cu_export_read(int fd, uint32_t magic, struct cu_export *out, CUdevice *device);

/* Address space; NULL if there is none. */
void *cu_alloc_reserve(size_t size, int access);

/* cu_share.c: atomic; pools that were exported, and external memory */
extern unsigned cu_shared;

/* cu_memory.c */
void cu_memory_forget(CUcontext ctx);
/* DEVICE or MANAGED memory of a context, and its end after all work of the context */
CUresult cu_memory_new(CUdeviceptr *out, size_t bytes, enum kind kind, CUcontext ctx);
void cu_memory_end(CUdeviceptr base, CUcontext ctx);
/* Managed memory of no context, which takes nothing of a card (ctx NULL ends it), and a context's
 * charge for such. */
CUresult cu_memory_managed_new(CUdeviceptr *out, size_t bytes);
CUresult cu_memory_charge(uint64_t *id, size_t bytes, CUcontext ctx);
void cu_memory_discharge(uint64_t id, CUcontext ctx);

/* cu_contents.c */
bool cu_memory_known(CUdeviceptr ptr); /* of the card, or registered with it */
/* Whole or not at all, also over mappings of one reservation that follow each other. */
CUresult cu_memory_copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes);
CUresult cu_memory_fill(CUdeviceptr dst, uint32_t value, unsigned width, size_t count);
CUresult cu_memory_address(CUdeviceptr ptr, size_t bytes, uint64_t *address);
bool cu_memory_is_device(CUdeviceptr ptr);
/* CUDA_SUCCESS: all of it may be accessed at once, as far as the driver knows it */
CUresult cu_memory_reach(CUdeviceptr ptr, size_t bytes);
/* which of the copies it is, SIM_OP_HTOD to SIM_OP_PEER, by where memory is */
uint32_t cu_memory_direction(CUdeviceptr dst, CUdeviceptr src);
/* CUDA_SUCCESS: within one managed allocation (cu_copy2d.c) */
CUresult cu_memory_managed(CUdeviceptr ptr, size_t bytes);

/* cu_vmm.c: memory by handle that is kept by an array or a multicast object (the holder) */
CUresult cu_vmm_tie(const void *holder, uint64_t place, CUmemGenericAllocationHandle handle);
bool cu_vmm_untie(const void *holder, uint64_t place);
void cu_vmm_holder_gone(const void *holder);
/* without memory of a card */
CUresult cu_vmm_object(CUmemGenericAllocationHandle *handle, uint64_t size);
bool cu_vmm_fits(CUmemGenericAllocationHandle handle, bool object, uint64_t from, uint64_t size);

/* cu_pool.c */
/* after a wait: what pools hold beyond their threshold goes back to the card */
void cu_pool_settle(void);

#endif
