/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of copies and fills in their present versions.
 */
#include "hooks/copy/copy.h"

#define QG_PIECES 1

struct qg_stream *qg_copy_begin(CUstream stream, bool ptsz, bool waits, struct qg_copied what)
{
    if (!qg_governed || qg_depth)
        return NULL;
    if (waits)
        qg_observe_stream(stream, ptsz);
    if (what.bytes < QG_LARGE)
        return qg_small_begin(stream, ptsz, waits, what);
    struct qg_stream *entered = qg_enter(stream, ptsz, NULL, what.bytes);
    struct qg_pages *pages = entered ? qg_pages_of(entered->card) : NULL;
    if (pages)
        __atomic_fetch_add(&pages->proc->copy_bytes, what.bytes, __ATOMIC_RELAXED);
    return entered;
}

/* A small copy waits for earlier work, as a large one does. Many programs fetch their result so and
 * never ask again, so it gives an idle report. A small copy is no launch: without earlier work
 * there is nothing new to report. */
void qg_copy_end(struct qg_stream *stream, bool waits, CUresult result)
{
    qg_leave(stream, result);
    if (!waits || !qg_governed || qg_depth)
        return;
    if (stream)
        /* it is over, and the program may never ask again */
        qg_observe_stream(stream->handle, false);
    if (result == CUDA_SUCCESS)
        qg_report_idle(stream != NULL);
}

#define QG_ROUTE QG_HOST_LINK

SYNC2(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, n, (CUdeviceptr d, const void *h, size_t n), (d, h, n))
SYNC2(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, n, (void *h, CUdeviceptr d, size_t n), (h, d, n))
SYNC2(cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds, n, (CUarray a, size_t o, const void *h, size_t n),
      (a, o, h, n))
SYNC2(cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds, n, (void *h, CUarray a, size_t o, size_t n),
      (h, a, o, n))
ASYNC2(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, n,
       (CUdeviceptr d, const void *h, size_t n, CUstream s), (d, h, n, s))
ASYNC2(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, n,
       (void *h, CUdeviceptr d, size_t n, CUstream s), (h, d, n, s))
ASYNC2(cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz, n,
       (CUarray a, size_t o, const void *h, size_t n, CUstream s), (a, o, h, n, s))
ASYNC2(cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz, n,
       (void *h, CUarray a, size_t o, size_t n, CUstream s), (h, a, o, n, s))

#undef QG_ROUTE
#define QG_ROUTE QG_EITHER

SYNC2(cuMemcpy, cuMemcpy_ptds, n, (CUdeviceptr d, CUdeviceptr h, size_t n), (d, h, n))
SYNC2(cuMemcpyPeer, cuMemcpyPeer_ptds, n,
      (CUdeviceptr d, CUcontext dc, CUdeviceptr e, CUcontext ec, size_t n), (d, dc, e, ec, n))

ASYNC2(cuMemcpyAsync, cuMemcpyAsync_ptsz, n, (CUdeviceptr d, CUdeviceptr e, size_t n, CUstream s),
       (d, e, n, s))
ASYNC2(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz, n,
       (CUdeviceptr d, CUcontext dc, CUdeviceptr e, CUcontext ec, size_t n, CUstream s),
       (d, dc, e, ec, n, s))

SYNC2(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, AREA, (const CUDA_MEMCPY2D *c), (c))
SYNC2(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, AREA, (const CUDA_MEMCPY2D *c), (c))
SYNC2(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, SPACE, (const CUDA_MEMCPY3D *c), (c))
SYNC2(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, SPACE, (const CUDA_MEMCPY3D_PEER *c), (c))
ASYNC2(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, AREA, (const CUDA_MEMCPY2D *c, CUstream s),
       (c, s))
ASYNC2(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, SPACE, (const CUDA_MEMCPY3D *c, CUstream s),
       (c, s))
ASYNC2(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz, SPACE,
       (const CUDA_MEMCPY3D_PEER *c, CUstream s), (c, s))

#undef QG_ROUTE
#define QG_ROUTE QG_ON_CARD

SYNC2(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, n, (CUdeviceptr d, CUdeviceptr e, size_t n), (d, e, n))
SYNC2(cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds, n, (CUarray a, size_t o, CUdeviceptr d, size_t n),
      (a, o, d, n))
SYNC2(cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds, n, (CUdeviceptr d, CUarray a, size_t o, size_t n),
      (d, a, o, n))
SYNC2(cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds, n,
      (CUarray a, size_t o, CUarray b, size_t p, size_t n), (a, o, b, p, n))
ASYNC2(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, n,
       (CUdeviceptr d, CUdeviceptr e, size_t n, CUstream s), (d, e, n, s))

SYNC2(cuMemsetD8_v2, cuMemsetD8_v2_ptds, n, (CUdeviceptr d, unsigned char v, size_t n), (d, v, n))
SYNC2(cuMemsetD16_v2, cuMemsetD16_v2_ptds, 2 * n, (CUdeviceptr d, unsigned short v, size_t n),
      (d, v, n))
SYNC2(cuMemsetD32_v2, cuMemsetD32_v2_ptds, 4 * n, (CUdeviceptr d, unsigned int v, size_t n),
      (d, v, n))
ASYNC2(cuMemsetD8Async, cuMemsetD8Async_ptsz, n,
       (CUdeviceptr d, unsigned char v, size_t n, CUstream s), (d, v, n, s))
ASYNC2(cuMemsetD16Async, cuMemsetD16Async_ptsz, 2 * n,
       (CUdeviceptr d, unsigned short v, size_t n, CUstream s), (d, v, n, s))
ASYNC2(cuMemsetD32Async, cuMemsetD32Async_ptsz, 4 * n,
       (CUdeviceptr d, unsigned int v, size_t n, CUstream s), (d, v, n, s))

#define FILL2D(type)       (CUdeviceptr d, size_t p, type v, size_t w, size_t h)
#define FILL2D_ASYNC(type) (CUdeviceptr d, size_t p, type v, size_t w, size_t h, CUstream s)
SYNC2(cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds, w *h, FILL2D(unsigned char), (d, p, v, w, h))
SYNC2(cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds, 2 * w * h, FILL2D(unsigned short), (d, p, v, w, h))
SYNC2(cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds, 4 * w * h, FILL2D(unsigned int), (d, p, v, w, h))
ASYNC2(cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz, w *h, FILL2D_ASYNC(unsigned char),
       (d, p, v, w, h, s))
ASYNC2(cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz, 2 * w * h, FILL2D_ASYNC(unsigned short),
       (d, p, v, w, h, s))
ASYNC2(cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz, 4 * w * h, FILL2D_ASYNC(unsigned int),
       (d, p, v, w, h, s))
