/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and fills of more than one dimension, between cards, and in batches; prefetch and advice.
 * Memory is linear here: a copy from or to an array is CUDA_ERROR_NOT_SUPPORTED.
 */
#include "cu_alloc.h"
#include "cu_capture.h"
#include "cu_copy.h"
#include "cu_stream.h"

#include <string.h>

struct end {                 /* of a copy */
    CUdeviceptr base, first; /* the array of boxes, and where the copy begins in it */
    size_t pitch, plane;     /* bytes from row to row, from plane to plane */
};

static CUresult end_of(CUmemorytype type, const void *host, CUdeviceptr device, CUarray array,
                       struct end *end)
{
    end->base = type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)host : device;
    if (type == CU_MEMORYTYPE_ARRAY || array)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    return end->base && (type != CU_MEMORYTYPE_DEVICE || cu_memory_known(end->base))
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static bool add(size_t *to, size_t a, size_t b)
{
    size_t product;
    return !__builtin_mul_overflow(a, b, &product) && !__builtin_add_overflow(*to, product, to);
}

/* From the first byte to the last one: all of it has to lie in what the base lies in. */
static CUresult reach(const struct end *end, const CUDA_MEMCPY3D *copy)
{
    size_t bytes = copy->WidthInBytes;
    if (!copy->WidthInBytes || !copy->Height || !copy->Depth)
        return CUDA_SUCCESS;
    if (!add(&bytes, copy->Height - 1, end->pitch) || !add(&bytes, copy->Depth - 1, end->plane) ||
        !add(&bytes, end->first - end->base, 1))
        return CUDA_ERROR_INVALID_VALUE;
    return cu_memory_reach(end->base, bytes);
}

static CUresult lay_out(struct end *end, size_t pitch, size_t height, const CUDA_MEMCPY3D *copy,
                        size_t x, size_t y, size_t z)
{
    size_t offset = x;
    end->pitch = pitch ? pitch : copy->WidthInBytes;
    if (copy->WidthInBytes > end->pitch ||
        __builtin_mul_overflow(end->pitch, height ? height : copy->Height, &end->plane) ||
        !add(&offset, y, end->pitch) || !add(&offset, z, end->plane) ||
        __builtin_add_overflow(end->base, offset, &end->first))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult ends(const CUDA_MEMCPY3D *copy, struct end *to, struct end *from)
{
    CU_TRY(end_of(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray, to));
    CU_TRY(end_of(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray, from));
    CU_TRY(lay_out(to, copy->dstPitch, copy->dstHeight, copy, copy->dstXInBytes, copy->dstY,
                   copy->dstZ));
    return lay_out(from, copy->srcPitch, copy->srcHeight, copy, copy->srcXInBytes, copy->srcY,
                   copy->srcZ);
}

CUresult cu_copy3d_cmd(const CUDA_MEMCPY3D *copy, struct sim_cmd *cmd)
{
    struct end to, from;
    size_t bytes = 0;
    CU_TRY(ends(copy, &to, &from));
    CU_TRY(reach(&to, copy));
    CU_TRY(reach(&from, copy));
    if (!add(&bytes, copy->WidthInBytes, copy->Height) ||
        __builtin_mul_overflow(bytes, copy->Depth, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    *cmd =
        (struct sim_cmd){.op = cu_memory_direction(to.base, from.base),
                         .a = bytes,
                         .b = cu_memory_known(to.base), /* for the contents; the card ignores it */
                         .c = cu_memory_known(from.base)};
    return CUDA_SUCCESS;
}

CUresult cu_copy3d_contents(const CUDA_MEMCPY3D *copy, const struct sim_cmd *cmd)
{
    struct end to, from;
    CU_TRY(ends(copy, &to, &from));
    if ((cmd->b && !cu_memory_known(to.base)) || (cmd->c && !cu_memory_known(from.base)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t z = 0; z < copy->Depth; z++)
        for (size_t y = 0; y < copy->Height; y++)
            CU_TRY(cu_memory_copy(to.first + z * to.plane + y * to.pitch,
                                  from.first + z * from.plane + y * from.pitch,
                                  copy->WidthInBytes));
    return CUDA_SUCCESS;
}

CUDA_MEMCPY3D cu_copy_row(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    return (CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                           .dstDevice = dst,
                           .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                           .srcDevice = src,
                           .WidthInBytes = bytes,
                           .Height = 1,
                           .Depth = 1};
}

static CUresult run(CUstream stream, const CUDA_MEMCPY3D *copy, bool wait)
{
    struct sim_cmd cmd;
    if (stream->capture)
        return wait ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : cu_capture_copy(stream, copy);
    CU_TRY(cu_copy3d_cmd(copy, &cmd));
    CU_TRY(cu_copy3d_contents(copy, &cmd));
    if (!cmd.a)
        return CUDA_SUCCESS;
    CU_TRY(cu_push(stream, &cmd, false, NULL));
    return wait && cmd.op != SIM_OP_DTOD ? cu_stream_sync(stream) : CUDA_SUCCESS;
}

static CUresult copy3d(const CUDA_MEMCPY3D *copy, CUstream handle, bool wait, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    return copy ? run(stream, copy, wait) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy2d(const CUDA_MEMCPY2D *c, CUstream stream, bool wait, bool pt)
{
    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D copy = {.srcXInBytes = c->srcXInBytes,
                          .srcY = c->srcY,
                          .srcMemoryType = c->srcMemoryType,
                          .srcHost = c->srcHost,
                          .srcDevice = c->srcDevice,
                          .srcArray = c->srcArray,
                          .srcPitch = c->srcPitch,
                          .dstXInBytes = c->dstXInBytes,
                          .dstY = c->dstY,
                          .dstMemoryType = c->dstMemoryType,
                          .dstHost = c->dstHost,
                          .dstDevice = c->dstDevice,
                          .dstArray = c->dstArray,
                          .dstPitch = c->dstPitch,
                          .WidthInBytes = c->WidthInBytes,
                          .Height = c->Height,
                          .Depth = 1};
    return copy3d(&copy, stream, wait, pt);
}

#define TWO         (const CUDA_MEMCPY2D *copy)
#define TWO_ASYNC   (const CUDA_MEMCPY2D *copy, CUstream stream)
#define THREE       (const CUDA_MEMCPY3D *copy)
#define THREE_ASYNC (const CUDA_MEMCPY3D *copy, CUstream stream)
CU_BOTH(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, copy2d, TWO, copy, NULL, true)
CU_BOTH(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, copy2d, TWO, copy, NULL, true)
CU_BOTH(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, copy2d, TWO_ASYNC, copy, stream, false)
CU_BOTH(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, copy3d, THREE, copy, NULL, true)
CU_BOTH(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, copy3d, THREE_ASYNC, copy, stream, false)

/* ---- between cards ---- */

/* On the copy engine of the card whose stream submits it. */
static CUresult peer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes,
                     CUstream handle, bool wait, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!cu_handle_ok(CU_CTX, to) || !cu_handle_ok(CU_CTX, from))
        return CUDA_ERROR_INVALID_CONTEXT;
    CUDA_MEMCPY3D copy = cu_copy_row(dst, src, bytes);
    copy.dstMemoryType = copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    return bytes ? run(stream, &copy, wait) : CUDA_SUCCESS;
}

CU_BOTH(cuMemcpyPeer, cuMemcpyPeer_ptds, peer,
        (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n), dst, to, src,
        from, n, NULL, true)
CU_BOTH(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz, peer,
        (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n, CUstream stream),
        dst, to, src, from, n, stream, false)

static CUresult peer3d(const CUDA_MEMCPY3D_PEER *c, CUstream handle, bool wait, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cu_handle_ok(CU_CTX, c->dstContext) || !cu_handle_ok(CU_CTX, c->srcContext))
        return CUDA_ERROR_INVALID_CONTEXT;
    CUDA_MEMCPY3D copy = {.srcXInBytes = c->srcXInBytes,
                          .srcY = c->srcY,
                          .srcZ = c->srcZ,
                          .srcMemoryType = c->srcMemoryType,
                          .srcHost = c->srcHost,
                          .srcDevice = c->srcDevice,
                          .srcArray = c->srcArray,
                          .srcPitch = c->srcPitch,
                          .srcHeight = c->srcHeight,
                          .dstXInBytes = c->dstXInBytes,
                          .dstY = c->dstY,
                          .dstZ = c->dstZ,
                          .dstMemoryType = c->dstMemoryType,
                          .dstHost = c->dstHost,
                          .dstDevice = c->dstDevice,
                          .dstArray = c->dstArray,
                          .dstPitch = c->dstPitch,
                          .dstHeight = c->dstHeight,
                          .WidthInBytes = c->WidthInBytes,
                          .Height = c->Height,
                          .Depth = c->Depth};
    return run(stream, &copy, wait);
}

CU_BOTH(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, peer3d, (const CUDA_MEMCPY3D_PEER *copy), copy, NULL,
        true)
CU_BOTH(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz, peer3d,
        (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), copy, stream, false)

/* ---- batches ---- */

static CUresult batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                      size_t *failed, CUstream handle, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (failed)
        *failed = SIZE_MAX;
    if (!count || !dsts || !srcs || !sizes || stream == &stream->ctx->legacy)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        CUresult status = pt ? cuMemcpyAsync_ptsz(dsts[i], srcs[i], sizes[i], stream)
                             : cuMemcpyAsync(dsts[i], srcs[i], sizes[i], stream);
        if (status != CUDA_SUCCESS) {
            if (failed)
                *failed = i;
            return status;
        }
    }
    return CUDA_SUCCESS;
}

#define BATCH                                                                                      \
    CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,                             \
        CUmemcpyAttributes *attributes, size_t *indices, size_t nattributes
#define UNUSED_ATTRIBUTES(...)                                                                     \
    ((void)attributes, (void)indices, (void)nattributes, batch(__VA_ARGS__))

CU_BOTH(cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz, UNUSED_ATTRIBUTES,
        (BATCH, size_t *failed, CUstream stream), dsts, srcs, sizes, count, failed, stream)
CU_BOTH(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz, UNUSED_ATTRIBUTES,
        (BATCH, CUstream stream), dsts, srcs, sizes, count, NULL, stream)

/* ---- fills of rows ---- */

CUresult cu_fill2d_cmd(const CUDA_MEMSET_NODE_PARAMS *set, struct sim_cmd *cmd)
{
    size_t row, bytes, last = 0;
    if ((set->elementSize != 1 && set->elementSize != 2 && set->elementSize != 4) ||
        set->dst % set->elementSize || !cu_memory_known(set->dst) ||
        __builtin_mul_overflow(set->width, set->elementSize, &row) ||
        __builtin_mul_overflow(row, set->height, &bytes) ||
        (set->height > 1 && (set->pitch < row || set->pitch % set->elementSize)))
        return CUDA_ERROR_INVALID_VALUE;
    *cmd = (struct sim_cmd){.op = SIM_OP_MEMSET, .a = bytes};
    if (!bytes)
        return CUDA_SUCCESS;
    if (!add(&last, set->height - 1, set->pitch) || !add(&last, row, 1))
        return CUDA_ERROR_INVALID_VALUE;
    return cu_memory_reach(set->dst, last);
}

CUresult cu_fill2d_contents(const CUDA_MEMSET_NODE_PARAMS *set)
{
    for (size_t row = 0; row < set->height; row++)
        CU_TRY(
            cu_memory_fill(set->dst + row * set->pitch, set->value, set->elementSize, set->width));
    return CUDA_SUCCESS;
}

static CUresult fill2d(CUdeviceptr dst, size_t pitch, unsigned value, unsigned width,
                       size_t columns, size_t rows, CUstream handle, bool pt)
{
    CUstream stream;
    struct sim_cmd cmd;
    CUDA_MEMSET_NODE_PARAMS set = {.dst = dst,
                                   .pitch = pitch,
                                   .value = value,
                                   .elementSize = width,
                                   .width = columns,
                                   .height = rows};
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (stream->capture)
        return cu_capture_set(stream, &set);
    CU_TRY(cu_fill2d_cmd(&set, &cmd));
    CU_TRY(cu_fill2d_contents(&set));
    return cmd.a ? cu_push(stream, &cmd, false, NULL) : CUDA_SUCCESS;
}

#define FILL(type) CUdeviceptr d, size_t pitch, type v, size_t w, size_t h
CU_BOTH(cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds, fill2d, (FILL(unsigned char)), d, pitch, v, 1, w, h,
        NULL)
CU_BOTH(cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds, fill2d, (FILL(unsigned short)), d, pitch, v, 2, w,
        h, NULL)
CU_BOTH(cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds, fill2d, (FILL(unsigned int)), d, pitch, v, 4, w, h,
        NULL)
CU_BOTH(cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz, fill2d, (FILL(unsigned char), CUstream s), d,
        pitch, v, 1, w, h, s)
CU_BOTH(cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz, fill2d, (FILL(unsigned short), CUstream s), d,
        pitch, v, 2, w, h, s)
CU_BOTH(cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz, fill2d, (FILL(unsigned int), CUstream s), d,
        pitch, v, 4, w, h, s)

/* ---- prefetch and advice: pages do not move here ---- */

CUresult cu_memory_managed(CUdeviceptr ptr, size_t bytes)
{
    pthread_rwlock_rdlock(&cu_alloc_lock);
    const struct cu_alloc *alloc = cu_alloc_find(ptr);
    bool ok = bytes && alloc && alloc->kind == MANAGED && bytes <= alloc->base + alloc->size - ptr;
    pthread_rwlock_unlock(&cu_alloc_lock);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult prefetch(CUdeviceptr ptr, size_t bytes, CUstream handle, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    return cu_memory_managed(ptr, bytes);
}

CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr ptr, size_t bytes, CUdevice dev, CUstream stream)
{
    CU_TRY(cu_enter(__func__));
    return dev < -1 || dev >= cu.ndevices ? CUDA_ERROR_INVALID_DEVICE
                                          : prefetch(ptr, bytes, stream, false);
}

CUresult CUDAAPI cuMemPrefetchAsync_ptsz(CUdeviceptr ptr, size_t bytes, CUdevice dev,
                                         CUstream stream)
{
    CU_TRY(cu_enter(__func__));
    return dev < -1 || dev >= cu.ndevices ? CUDA_ERROR_INVALID_DEVICE
                                          : prefetch(ptr, bytes, stream, true);
}

static CUresult prefetch_to(CUdeviceptr ptr, size_t bytes, CUmemLocation location, unsigned flags,
                            CUstream stream, bool pt)
{
    bool device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (flags || (device && (location.id < 0 || location.id >= cu.ndevices)))
        return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    return prefetch(ptr, bytes, stream, pt);
}
CU_BOTH(cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz, prefetch_to,
        (CUdeviceptr ptr, size_t bytes, CUmemLocation location, unsigned int flags,
         CUstream stream),
        ptr, bytes, location, flags, stream)

CUresult CUDAAPI cuMemAdvise(CUdeviceptr ptr, size_t bytes, CUmem_advise advice, CUdevice dev)
{
    (void)dev;
    CU_TRY(cu_ready());
    return advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY
               ? CUDA_ERROR_INVALID_VALUE
               : cu_memory_managed(ptr, bytes);
}

CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr ptr, size_t bytes, CUmem_advise advice,
                                CUmemLocation location)
{
    (void)location;
    return cuMemAdvise(ptr, bytes, advice, 0);
}
