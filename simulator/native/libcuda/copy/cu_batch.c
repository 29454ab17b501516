/* SPDX-License-Identifier: Apache-2.0
 *
 * Many ranges in one call: prefetched, discarded (pages do not move here, so only the arguments are
 * checked), copied as boxes; and managed memory that is attached to a stream.
 */
#include "cu_alloc.h"
#include "cu_stream.h"

static CUresult ranges(const CUdeviceptr *ptrs, const size_t *sizes, size_t count)
{
    if (!count || !ptrs || !sizes)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        CU_TRY(cu_memory_managed(ptrs[i], sizes[i]));
    return CUDA_SUCCESS;
}

static CUresult prefetch(const CUdeviceptr *ptrs, const size_t *sizes, size_t count,
                         const CUmemLocation *to, const size_t *first, size_t nto,
                         unsigned long long flags, CUstream handle, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (flags || !to || !first || !nto || nto > count || first[0])
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < nto; i++)
        if (to[i].type == CU_MEM_LOCATION_TYPE_DEVICE && (to[i].id < 0 || to[i].id >= cu.ndevices))
            return CUDA_ERROR_INVALID_DEVICE;
    return ranges(ptrs, sizes, count);
}

static CUresult discard(const CUdeviceptr *ptrs, const size_t *sizes, size_t count,
                        unsigned long long flags, CUstream handle, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    return flags ? CUDA_ERROR_INVALID_VALUE : ranges(ptrs, sizes, count);
}

#define PREFETCH                                                                                   \
    (CUdeviceptr * ptrs, size_t *sizes, size_t count, CUmemLocation *to, size_t *first,            \
     size_t nto, unsigned long long flags, CUstream stream)
CU_BOTH(cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz, prefetch, PREFETCH, ptrs, sizes,
        count, to, first, nto, flags, stream)
CU_BOTH(cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz, prefetch,
        PREFETCH, ptrs, sizes, count, to, first, nto, flags, stream)
CU_BOTH(cuMemDiscardBatchAsync, cuMemDiscardBatchAsync_ptsz, discard,
        (CUdeviceptr * ptrs, size_t *sizes, size_t count, unsigned long long flags,
         CUstream stream),
        ptrs, sizes, count, flags, stream)

static CUresult attach(CUstream handle, CUdeviceptr ptr, unsigned flags, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
        flags != CU_MEM_ATTACH_SINGLE)
        return CUDA_ERROR_INVALID_VALUE;
    return cu_memory_managed(ptr, 1);
}
CU_BOTH(cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz, attach,
        (CUstream stream, CUdeviceptr ptr, size_t length, unsigned int flags), stream,
        ((void)length, ptr), flags)

/* ---- boxes ---- */

static CUresult side(const CUmemcpy3DOperand *operand, CUdeviceptr *ptr, size_t *pitch,
                     size_t *height)
{
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_POINTER)
        return CUDA_ERROR_NOT_SUPPORTED; /* arrays have no contents here */
    *ptr = operand->op.ptr.ptr;
    *pitch = operand->op.ptr.rowLength; /* elements of one byte */
    *height = operand->op.ptr.layerHeight;
    return CUDA_SUCCESS;
}

static CUresult boxes(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,
                      unsigned long long flags, CUstream handle, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (failed)
        *failed = SIZE_MAX;
    if (!count || !list || flags || stream == &stream->ctx->legacy)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const CUDA_MEMCPY3D_BATCH_OP *op = &list[i];
        CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                              .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                              .WidthInBytes = op->extent.width,
                              .Height = op->extent.height,
                              .Depth = op->extent.depth};
        CUresult status = side(&op->src, &copy.srcDevice, &copy.srcPitch, &copy.srcHeight);
        status = status ? status : side(&op->dst, &copy.dstDevice, &copy.dstPitch, &copy.dstHeight);
        status = status ? status
                 : pt   ? cuMemcpy3DAsync_v2_ptsz(&copy, handle)
                        : cuMemcpy3DAsync_v2(&copy, handle);
        if (status && failed)
            *failed = i;
        CU_TRY(status);
    }
    return CUDA_SUCCESS;
}

CU_BOTH(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz, boxes,
        (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags,
         CUstream stream),
        count, list, failed, flags, stream)
CU_BOTH(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz, boxes,
        (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream),
        count, list, NULL, flags, stream)
