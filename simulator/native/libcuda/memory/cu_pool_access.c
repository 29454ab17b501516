/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may reach the memory of a pool. A card's pool is its own card's, as cards have no peer
 * mappings here; a pool of the host can be opened for cards.
 */
#include "cu_alloc.h"

static CUresult check(CUmemoryPool pool, const CUmemAccessDesc *want)
{
    CUdevice home = cu_pool_device(pool), device;
    bool none = want->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (!none && want->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        want->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    if (cu_on_host(&want->location)) /* a card's memory is not the host's to reach */
        return home < 0 && !none ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (!cu_on_device(&want->location, &device))
        return want->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                                  : CUDA_ERROR_INVALID_VALUE;
    if (device == home)
        return none ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    return home < 0 || none ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* All or nothing. */
CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_POOL, pool) || (count && !map))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        CU_TRY(check(pool, &map[i]));
    for (size_t i = 0; i < count; i++) {
        CUdevice device;
        if (!cu_on_device(&map[i].location, &device) || device == cu_pool_device(pool))
            continue;
        if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
            __atomic_and_fetch(cu_pool_reachable(pool), ~(1u << device), __ATOMIC_RELAXED);
        else
            __atomic_or_fetch(cu_pool_reachable(pool), 1u << device, __ATOMIC_RELAXED);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool,
                                    CUmemLocation *location)
{
    CUdevice device;
    bool reaches = false;
    CU_TRY(cu_ready());
    if (!flags || !cu_handle_ok(CU_POOL, pool) || !location)
        return CUDA_ERROR_INVALID_VALUE;
    if (cu_on_host(location))
        reaches = cu_pool_device(pool) < 0;
    else if (!cu_on_device(location, &device))
        return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                             : CUDA_ERROR_INVALID_VALUE;
    else
        reaches = device == cu_pool_device(pool) ||
                  __atomic_load_n(cu_pool_reachable(pool), __ATOMIC_RELAXED) >> device & 1;
    *flags = reaches ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
