/* SPDX-License-Identifier: Apache-2.0
 *
 * Reserved addresses, and mappings of physical memory there.
 */
#include "cu_vmm.h"

#include <stdlib.h>
#include <sys/mman.h>

struct range {
    CUdeviceptr base;
    size_t size;
    uint64_t number; /* from 1; never again */
    struct range *next;
};

static struct range *ranges;
static uint64_t last_number;

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
                                     CUdeviceptr wish, unsigned long long flags)
{
    CU_TRY(cu_ready());
    if (alignment < CU_VMM_GRANULARITY)
        alignment = CU_VMM_GRANULARITY;
    (void)wish; /* a hint */
    if (!ptr || !cu_vmm_whole(size) || flags || alignment & (alignment - 1) ||
        size + alignment < size)
        return CUDA_ERROR_INVALID_VALUE;
    struct range *range = malloc(sizeof *range);
    char *base = range ? cu_alloc_reserve(size + alignment, PROT_NONE) : NULL;
    if (!base) {
        free(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    char *start = (char *)(((uintptr_t)base + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (start > base)
        munmap(base, (size_t)(start - base));
    munmap(start + size, (size_t)(base + alignment - start));
    *range = (struct range){.base = (CUdeviceptr)start, .size = size};
    pthread_mutex_lock(&cu_vmm_lock);
    range->number = ++last_number;
    range->next = ranges;
    ranges = range;
    pthread_mutex_unlock(&cu_vmm_lock);
    *ptr = range->base;
    return CUDA_SUCCESS;
}

/* First mapping that begins in the range, or NULL. */
static struct cu_alloc *mapped(CUdeviceptr base, size_t size)
{
    struct cu_alloc *found = NULL;
    pthread_rwlock_rdlock(&cu_alloc_lock);
    for (size_t at = 0; at < size && !found; at += CU_VMM_GRANULARITY)
        found = cu_alloc_find(base + at);
    pthread_rwlock_unlock(&cu_alloc_lock);
    return found;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    CU_TRY(cu_ready());
    struct range *found = NULL;
    pthread_mutex_lock(&cu_vmm_lock);
    for (struct range **link = &ranges; *link; link = &(*link)->next)
        if ((*link)->base == ptr && (*link)->size == size && !mapped(ptr, size)) {
            found = *link;
            *link = found->next;
            break;
        }
    pthread_mutex_unlock(&cu_vmm_lock);
    if (!found)
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)found->base, found->size);
    free(found);
    return CUDA_SUCCESS;
}

/* Under cu_vmm_lock: the number of the reservation that all of it is in, or 0. */
static uint64_t reserved(CUdeviceptr ptr, size_t size)
{
    for (const struct range *at = ranges; at; at = at->next)
        if (ptr >= at->base && ptr - at->base <= at->size && size <= at->size - (ptr - at->base))
            return at->number;
    return 0;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CU_TRY(cu_ready());
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cu_vmm_lock);
    struct cu_physical *physical = cu_vmm_find(handle);
    if (physical && !flags && cu_vmm_whole(size) && ptr % CU_VMM_GRANULARITY == 0 &&
        offset % CU_VMM_GRANULARITY == 0 && offset <= physical->size &&
        size <= physical->size - offset && reserved(ptr, size) && !mapped(ptr, size)) {
        struct cu_alloc alloc = {.base = ptr, .size = size, .id = handle, .kind = VIRTUAL};
        alloc.shadow = physical->contents + offset;
        alloc.range = reserved(ptr, size);
        CUdevice device;
        alloc.flags = cu_on_device(&physical->prop.location, &device) ? (unsigned)device : 0;
        status = cu_alloc_insert(&alloc);
        physical->maps += status == CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&cu_vmm_lock);
    return status;
}

/* Whether cu_vmm_whole mappings cover the range exactly. */
static bool covered(CUdeviceptr ptr, size_t size)
{
    bool yes = cu_vmm_whole(size);
    pthread_rwlock_rdlock(&cu_alloc_lock);
    for (size_t at = 0; yes && at < size;) {
        const struct cu_alloc *alloc = cu_alloc_find(ptr + at);
        yes =
            alloc && alloc->kind == VIRTUAL && alloc->base == ptr + at && alloc->size <= size - at;
        at += yes ? alloc->size : 0;
    }
    pthread_rwlock_unlock(&cu_alloc_lock);
    return yes;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CU_TRY(cu_ready());
    struct cu_physical *gone = NULL;
    pthread_mutex_lock(&cu_vmm_lock);
    bool valid = covered(ptr, size);
    for (size_t at = 0; valid && at < size;) {
        struct cu_alloc *alloc = cu_alloc_take(ptr + at, VIRTUAL, VIRTUAL);
        struct cu_physical *physical = cu_vmm_find(alloc->id), *unused;
        at += alloc->size;
        physical->maps--;
        if ((unused = cu_vmm_if_unused(physical)) != NULL) {
            unused->next = gone;
            gone = unused;
        }
        cu_alloc_release(alloc);
    }
    pthread_mutex_unlock(&cu_vmm_lock);
    while (gone) {
        struct cu_physical *next = gone->next;
        cu_vmm_give_back(gone);
        gone = next;
    }
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Rights are checked for form only: a mapping may be used without. */
CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
                                size_t count)
{
    CU_TRY(cu_ready());
    return desc && count && mapped(ptr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    CU_TRY(cu_ready());
    pthread_mutex_lock(&cu_vmm_lock);
    pthread_rwlock_rdlock(&cu_alloc_lock);
    const struct cu_alloc *alloc = cu_alloc_find((CUdeviceptr)addr);
    CUmemGenericAllocationHandle found = alloc && alloc->kind == VIRTUAL ? alloc->id : 0;
    pthread_rwlock_unlock(&cu_alloc_lock);
    struct cu_physical *physical = found ? cu_vmm_find(found) : NULL;
    if (handle && physical) {
        physical->refs++;
        *handle = found;
    }
    pthread_mutex_unlock(&cu_vmm_lock);
    return handle && physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
