/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of calls that submit many copies at once, or move pages and data in another way. A batch
 * counts as the sum of its parts.
 */
#include "hooks/copy/copy.h"

static uint64_t sum(const size_t *sizes, size_t count)
{
    uint64_t all = 0;
    for (size_t i = 0; sizes && i < count; i++)
        all += sizes[i];
    return all;
}

#define QG_ROUTE  QG_EITHER
#define QG_PIECES count

#define BATCH_V1                                                                                   \
    (CUdeviceptr * d, CUdeviceptr * e, size_t *n, size_t count, CUmemcpyAttributes *a, size_t *x,  \
     size_t y, size_t *fail, CUstream s)
#define BATCH_V2                                                                                   \
    (CUdeviceptr * d, CUdeviceptr * e, size_t *n, size_t count, CUmemcpyAttributes *a, size_t *x,  \
     size_t y, CUstream s)
ASYNC2(cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz, sum(n, count), BATCH_V1,
       (d, e, n, count, a, x, y, fail, s))
ASYNC2(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz, sum(n, count), BATCH_V2,
       (d, e, n, count, a, x, y, s))

#define PREFETCH                                                                                   \
    (CUdeviceptr * d, size_t *n, size_t count, CUmemLocation *to, size_t *at, size_t y,            \
     unsigned long long x, CUstream s)
ASYNC2(cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz, sum(n, count), PREFETCH,
       (d, n, count, to, at, y, x, s))
ASYNC2(cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz, sum(n, count),
       PREFETCH, (d, n, count, to, at, y, x, s))

#undef QG_PIECES
#define QG_PIECES n

static uint64_t sum_3d(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count)
{
    uint64_t all = 0;
    for (size_t i = 0; list && i < count; i++)
        all += (uint64_t)list[i].extent.width * list[i].extent.height * list[i].extent.depth;
    return all;
}

#define LIST_V1                                                                                    \
    (size_t n, CUDA_MEMCPY3D_BATCH_OP *l, size_t *fail, unsigned long long x, CUstream s)
#define LIST_V2 (size_t n, CUDA_MEMCPY3D_BATCH_OP *l, unsigned long long x, CUstream s)
ASYNC2(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz, sum_3d(l, n), LIST_V1, (n, l, fail, x, s))
ASYNC2(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz, sum_3d(l, n), LIST_V2, (n, l, x, s))

static uint64_t sum_fabric(const CUDA_FABRIC_COPY_BATCH_OP *list, size_t count)
{
    uint64_t all = 0;
    for (size_t i = 0; list && i < count; i++)
        all += list[i].size;
    return all;
}

ASYNC2(cuFabricCpyBatchAsync, cuFabricCpyBatchAsync_ptsz, sum_fabric(l, n),
       (size_t n, CUDA_FABRIC_COPY_BATCH_OP *l, unsigned long long x, CUstream s), (n, l, x, s))

static uint64_t sum_unpacked(const CUmemDecompressParams *list, size_t count)
{
    uint64_t all = 0;
    for (size_t i = 0; list && i < count; i++)
        all +=
            list[i].dstNumBytes > list[i].srcNumBytes ? list[i].dstNumBytes : list[i].srcNumBytes;
    return all;
}

ASYNC2(cuMemBatchDecompressAsync, cuMemBatchDecompressAsync_ptsz, sum_unpacked(l, n),
       (CUmemDecompressParams * l, size_t n, unsigned int x, size_t *fail, CUstream s),
       (l, n, x, fail, s))

#undef QG_PIECES
#define QG_PIECES 1

ASYNC2(cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync_ptsz, n,
       (CUdeviceptr d, CUdeviceptr e, size_t n, CUmemcpyAttributes *a, CUstream s), (d, e, n, a, s))
ASYNC2(cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz, sum_3d(l, 1),
       (CUDA_MEMCPY3D_BATCH_OP * l, unsigned long long x, CUstream s), (l, x, s))
ASYNC2(cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz, n,
       (CUdeviceptr d, size_t n, CUdevice to, CUstream s), (d, n, to, s))
ASYNC2(cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz, n,
       (CUdeviceptr d, size_t n, CUmemLocation to, unsigned int x, CUstream s), (d, n, to, x, s))
