/* SPDX-License-Identifier: Apache-2.0
 *
 * Page-locked and registered host memory.
 */
#include "cu_alloc.h"
#include "cu_context.h"

#include <sys/mman.h>

CUresult CUDAAPI cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    void *base = cu_alloc_reserve(bytes, PROT_READ | PROT_WRITE);
    struct cu_alloc alloc = {
        .base = (CUdeviceptr)base, .size = bytes, .ctx = ctx, .kind = HOST, .flags = flags};
    if (!base)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (cu_alloc_insert(&alloc) != CUDA_SUCCESS) {
        munmap(base, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = base;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocHost_v2(void **out, size_t bytes)
{
    return cuMemHostAlloc(out, bytes, 0);
}

CUresult CUDAAPI cuMemFreeHost(void *ptr)
{
    CU_TRY(cu_ready());
    struct cu_alloc *alloc = cu_alloc_take((CUdeviceptr)ptr, HOST, HOST);
    if (!alloc)
        return CUDA_ERROR_INVALID_VALUE;
    cu_alloc_release(alloc);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned int flags)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (!ptr || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&cu_alloc_lock);
    bool taken = cu_alloc_find((CUdeviceptr)ptr) || cu_alloc_find((CUdeviceptr)ptr + bytes - 1);
    pthread_rwlock_unlock(&cu_alloc_lock);
    if (taken)
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct cu_alloc alloc = {
        .base = (CUdeviceptr)ptr, .size = bytes, .ctx = ctx, .kind = REGISTERED, .flags = flags};
    CU_TRY(cu_alloc_insert(&alloc));
    struct sim_rep rep;
    return cu_request(SIM_REQ_PIN, alloc.base, bytes, &rep, sizeof rep, NULL, 0);
}

CUresult CUDAAPI cuMemHostUnregister(void *ptr)
{
    CU_TRY(cu_ready());
    struct cu_alloc *alloc = cu_alloc_take((CUdeviceptr)ptr, REGISTERED, REGISTERED);
    if (!alloc)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    cu_alloc_release(alloc);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *ptr, unsigned int flags)
{
    CU_TRY(cu_ready());
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&cu_alloc_lock);
    const struct cu_alloc *alloc = cu_alloc_find((CUdeviceptr)ptr);
    bool ok = alloc && alloc->kind >= PINNED;
    pthread_rwlock_unlock(&cu_alloc_lock);
    *out = ok ? (CUdeviceptr)ptr : 0; /* unified addressing: the same address */
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned int *flags, void *ptr)
{
    CU_TRY(cu_ready());
    pthread_rwlock_rdlock(&cu_alloc_lock);
    const struct cu_alloc *alloc = cu_alloc_find((CUdeviceptr)ptr);
    if (alloc && flags)
        *flags = alloc->flags;
    pthread_rwlock_unlock(&cu_alloc_lock);
    return alloc && flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
