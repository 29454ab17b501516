/* SPDX-License-Identifier: Apache-2.0
 *
 * What a pointer is.
 */
#include "cu_alloc.h"

#include <string.h>

/* Bytes of an attribute's value; 0: no such attribute. Tokens for P2P are 16 bytes. */
static size_t size_of(CUpointer_attribute what)
{
    switch (what) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return sizeof(int);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        return sizeof(bool);
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return sizeof(uint64_t);
    default:
        return 0;
    }
}

static int device_of(const struct cu_alloc *alloc)
{
    if (alloc->kind == VIRTUAL || alloc->owner == BORROWED)
        return (int)alloc->flags;
    return cu_handle_ok(CU_CTX, alloc->ctx) ? (int)(alloc->ctx->device - cu.devices) : 0;
}

static CUresult attribute(void *data, CUpointer_attribute what, const struct cu_alloc *alloc,
                          CUdeviceptr ptr)
{
    bool plain = alloc->kind == DEVICE && alloc->owner == OWN;
    switch (what) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = alloc->ctx;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = alloc->kind >= PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = ptr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = alloc->kind <= DEVICE ? NULL : (void *)ptr;
        return alloc->kind <= DEVICE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = alloc->kind == MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = device_of(alloc);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = alloc->base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = alloc->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = alloc->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: /* calls move contents at once: nothing to be set */
        *(unsigned *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(int *)data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(bool *)data = true;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(bool *)data = plain;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        *(bool *)data = false;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(uint64_t *)data = 0; /* of memory that is not made by cuMemCreate: none */
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = alloc->owner == POOLED ? alloc->pool : NULL;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult CUDAAPI cuPointerGetAttribute(void *data, CUpointer_attribute what, CUdeviceptr ptr)
{
    CU_TRY(cu_ready());
    if (!data)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&cu_alloc_lock);
    const struct cu_alloc *alloc = cu_alloc_find(ptr);
    CUresult status = alloc ? attribute(data, what, alloc, ptr) : CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&cu_alloc_lock);
    return status;
}

/* What an attribute is of a pointer that the driver does not know: nothing, but of no device. */
static void unknown(void *data, CUpointer_attribute what)
{
    memset(data, 0, size_of(what));
    if (what == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)data = (int)CU_DEVICE_INVALID;
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes,
                                        void **data, CUdeviceptr ptr)
{
    CU_TRY(cu_ready());
    if (!n || !attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++)
        if (!data[i] || !size_of(attributes[i]))
            return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&cu_alloc_lock);
    const struct cu_alloc *alloc = cu_alloc_find(ptr);
    for (unsigned i = 0; i < n; i++)
        if (!alloc || attribute(data[i], attributes[i], alloc, ptr) != CUDA_SUCCESS)
            unknown(data[i], attributes[i]);
    pthread_rwlock_unlock(&cu_alloc_lock);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute what, CUdeviceptr ptr)
{
    CU_TRY(cu_ready());
    if (!value || what != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !cu_memory_is_device(ptr))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS; /* every call is synchronous with regard to contents */
}
