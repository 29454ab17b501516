/* SPDX-License-Identifier: Apache-2.0
 *
 * Multicast objects: a team of cards, and memory of each bound to one range. What is bound stays
 * until it is unbound or the object is gone. Objects cannot be given to other processes here, and
 * what is written through one arrives nowhere.
 */
#include "cu_alloc.h"
#include "cu_context.h"

#include <string.h>

#define GRANULARITY (2ull << 20)

CUresult CUDAAPI cuMulticastGetGranularity(size_t *out, const CUmulticastObjectProp *prop,
                                           CUmulticastGranularity_flags option)
{
    (void)option;
    CU_TRY(cu_ready());
    if (!out || !prop)
        return CUDA_ERROR_INVALID_VALUE;
    *out = GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle *object,
                                   const CUmulticastObjectProp *prop)
{
    CU_TRY(cu_ready());
    if (!object || !prop || !prop->numDevices || !prop->size || prop->size % GRANULARITY ||
        prop->flags)
        return CUDA_ERROR_INVALID_VALUE;
    return prop->handleTypes ? CUDA_ERROR_NOT_SUPPORTED : cu_vmm_object(object, prop->size);
}

CUresult CUDAAPI cuMulticastAddDevice(CUmemGenericAllocationHandle object, CUdevice dev)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    return cu_vmm_fits(object, true, 0, GRANULARITY) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static const void *holder(CUmemGenericAllocationHandle object)
{
    return (void *)(uintptr_t)object;
}

static uint64_t place(CUdevice device, uint64_t at)
{
    return at | (uint64_t)(uint32_t)device << 56;
}

static CUresult bind(CUmemGenericAllocationHandle object, CUdevice device, size_t at,
                     CUmemGenericAllocationHandle memory, size_t from, size_t size)
{
    CUmemAllocationProp prop;
    if (!cu_vmm_fits(object, true, at, size) || !cu_vmm_fits(memory, false, from, size))
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cuMemGetAllocationPropertiesFromHandle(&prop, memory));
    if (device >= 0 && prop.location.id != device)
        return CUDA_ERROR_INVALID_DEVICE;
    return cu_vmm_tie(holder(object), place(prop.location.id, at), memory);
}

/* An address of cuMemMap(): the handle behind it, which the mapping keeps. */
static CUresult bind_address(CUmemGenericAllocationHandle object, CUdevice device, size_t at,
                             CUdeviceptr ptr, size_t size)
{
    CUmemGenericAllocationHandle memory;
    CU_TRY(cuMemRetainAllocationHandle(&memory, (void *)ptr));
    pthread_rwlock_rdlock(&cu_alloc_lock);
    const struct cu_alloc *alloc = cu_alloc_find(ptr);
    size_t from = alloc ? ptr - alloc->base : 0;
    pthread_rwlock_unlock(&cu_alloc_lock);
    CUresult status = bind(object, device, at, memory, from, size);
    cuMemRelease(memory);
    return status;
}

CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t at,
                                    CUmemGenericAllocationHandle memory, size_t from, size_t size,
                                    unsigned long long flags)
{
    CU_TRY(cu_ready());
    return flags ? CUDA_ERROR_INVALID_VALUE : bind(object, -1, at, memory, from, size);
}

CUresult CUDAAPI cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice dev, size_t at,
                                       CUmemGenericAllocationHandle memory, size_t from,
                                       size_t size, unsigned long long flags)
{
    CU_TRY(cu_ready());
    return flags ? CUDA_ERROR_INVALID_VALUE : bind(object, dev, at, memory, from, size);
}

CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t at,
                                     CUdeviceptr ptr, size_t size, unsigned long long flags)
{
    CU_TRY(cu_ready());
    return flags ? CUDA_ERROR_INVALID_VALUE : bind_address(object, -1, at, ptr, size);
}

CUresult CUDAAPI cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice dev,
                                        size_t at, CUdeviceptr ptr, size_t size,
                                        unsigned long long flags)
{
    CU_TRY(cu_ready());
    return flags ? CUDA_ERROR_INVALID_VALUE : bind_address(object, dev, at, ptr, size);
}

CUresult CUDAAPI cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice dev, size_t at,
                                   size_t size)
{
    CU_TRY(cu_ready());
    bool valid =
        cu_vmm_fits(object, true, at, size) && cu_vmm_untie(holder(object), place(dev, at));
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
