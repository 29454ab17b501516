/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and fills. Synchronous ones wait for the stream as the driver's do.
 */
#include "cu_alloc.h"
#include "cu_capture.h"
#include "cu_copy.h"
#include "cu_stream.h"

static CUresult timed(uint32_t op, size_t bytes, CUstream handle, bool pt, bool wait)
{
    CUstream stream;
    struct sim_cmd cmd = {.op = op, .a = bytes};
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (stream->capture && wait)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!bytes)
        return CUDA_SUCCESS;
    CU_TRY(cu_push(stream, &cmd, false, NULL));
    return wait ? cu_stream_sync(stream) : CUDA_SUCCESS;
}

/* In a capture nothing moves: cuGraphLaunch does it. */
static CUresult capture(CUstream stream, CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    CUDA_MEMCPY3D row = cu_copy_row(dst, src, bytes);
    return bytes ? cu_capture_copy(stream, &row) : CUDA_SUCCESS;
}

static CUresult copy_any(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream, bool pt,
                         bool wait)
{
    CUstream checked;
    CU_TRY(cu_stream_get(stream, pt, &checked));
    if (checked->capture)
        return wait ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : capture(checked, dst, src, bytes);
    CU_TRY(cu_memory_copy(dst, src, bytes));
    return timed(cu_memory_direction(dst, src), bytes, stream, pt, wait);
}

/* Addresses are unified: where memory is decides, not which function copies it. What the function
 * calls the device's has to be known to the driver, be it on the host. */
static CUresult copy(uint32_t op, CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream,
                     bool pt, bool wait)
{
    CUstream checked;
    CU_TRY(cu_stream_get(stream, pt, &checked));
    bool to_device = op == SIM_OP_HTOD || op == SIM_OP_DTOD,
         from_device = op == SIM_OP_DTOH || op == SIM_OP_DTOD;
    if (bytes && ((to_device && !cu_memory_known(dst)) || (from_device && !cu_memory_known(src))))
        return CUDA_ERROR_INVALID_VALUE;
    return copy_any(dst, src, bytes, stream, pt, wait);
}

#define H(p) ((CUdeviceptr)(uintptr_t)(p))

static CUresult htod(CUdeviceptr d, const void *s, size_t n, bool pt)
{
    return copy(SIM_OP_HTOD, d, H(s), n, 0, pt, true);
}
static CUresult dtoh(void *d, CUdeviceptr s, size_t n, bool pt)
{
    return copy(SIM_OP_DTOH, H(d), s, n, 0, pt, true);
}
static CUresult dtod(CUdeviceptr d, CUdeviceptr s, size_t n, bool pt)
{
    return copy(SIM_OP_DTOD, d, s, n, 0, pt, false);
}
static CUresult any(CUdeviceptr d, CUdeviceptr s, size_t n, bool pt)
{
    return copy_any(d, s, n, 0, pt, true);
}

CU_BOTH(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, htod, (CUdeviceptr d, const void *s, size_t n), d, s,
        n)
CU_BOTH(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, dtoh, (void *d, CUdeviceptr s, size_t n), d, s, n)
CU_BOTH(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, dtod, (CUdeviceptr d, CUdeviceptr s, size_t n), d, s,
        n)
CU_BOTH(cuMemcpy, cuMemcpy_ptds, any, (CUdeviceptr d, CUdeviceptr s, size_t n), d, s, n)

static CUresult htod_async(CUdeviceptr d, const void *s, size_t n, CUstream stream, bool pt)
{
    return copy(SIM_OP_HTOD, d, H(s), n, stream, pt, false);
}
static CUresult dtoh_async(void *d, CUdeviceptr s, size_t n, CUstream stream, bool pt)
{
    return copy(SIM_OP_DTOH, H(d), s, n, stream, pt, false);
}
static CUresult dtod_async(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream stream, bool pt)
{
    return copy(SIM_OP_DTOD, d, s, n, stream, pt, false);
}
static CUresult any_async(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream stream, bool pt)
{
    return copy_any(d, s, n, stream, pt, false);
}

CU_BOTH(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, htod_async,
        (CUdeviceptr d, const void *s, size_t n, CUstream stream), d, s, n, stream)
CU_BOTH(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, dtoh_async,
        (void *d, CUdeviceptr s, size_t n, CUstream stream), d, s, n, stream)
CU_BOTH(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, dtod_async,
        (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream stream), d, s, n, stream)
CU_BOTH(cuMemcpyAsync, cuMemcpyAsync_ptsz, any_async,
        (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream stream), d, s, n, stream)

/* Fills do not wait: device memory is set in stream order. */
static CUresult fill(CUdeviceptr d, uint32_t value, unsigned width, size_t n, CUstream stream,
                     bool pt)
{
    CUstream checked;
    CUDA_MEMSET_NODE_PARAMS row = {
        .dst = d, .value = value, .elementSize = width, .width = n, .height = 1};
    CU_TRY(cu_stream_get(stream, pt, &checked));
    if (checked->capture)
        return cu_capture_set(checked, &row);
    CU_TRY(cu_memory_fill(d, value, width, n));
    return timed(SIM_OP_MEMSET, n * width, stream, pt, false);
}

static CUresult set8(CUdeviceptr d, unsigned char v, size_t n, bool pt)
{
    return fill(d, v, 1, n, 0, pt);
}
static CUresult set16(CUdeviceptr d, unsigned short v, size_t n, bool pt)
{
    return fill(d, v, 2, n, 0, pt);
}
static CUresult set32(CUdeviceptr d, unsigned v, size_t n, bool pt)
{
    return fill(d, v, 4, n, 0, pt);
}
CU_BOTH(cuMemsetD8_v2, cuMemsetD8_v2_ptds, set8, (CUdeviceptr d, unsigned char v, size_t n), d, v,
        n)
CU_BOTH(cuMemsetD16_v2, cuMemsetD16_v2_ptds, set16, (CUdeviceptr d, unsigned short v, size_t n), d,
        v, n)
CU_BOTH(cuMemsetD32_v2, cuMemsetD32_v2_ptds, set32, (CUdeviceptr d, unsigned int v, size_t n), d, v,
        n)

static CUresult set8_async(CUdeviceptr d, unsigned char v, size_t n, CUstream s, bool pt)
{
    return fill(d, v, 1, n, s, pt);
}
static CUresult set16_async(CUdeviceptr d, unsigned short v, size_t n, CUstream s, bool pt)
{
    return fill(d, v, 2, n, s, pt);
}
static CUresult set32_async(CUdeviceptr d, unsigned v, size_t n, CUstream s, bool pt)
{
    return fill(d, v, 4, n, s, pt);
}
CU_BOTH(cuMemsetD8Async, cuMemsetD8Async_ptsz, set8_async,
        (CUdeviceptr d, unsigned char v, size_t n, CUstream s), d, v, n, s)
CU_BOTH(cuMemsetD16Async, cuMemsetD16Async_ptsz, set16_async,
        (CUdeviceptr d, unsigned short v, size_t n, CUstream s), d, v, n, s)
CU_BOTH(cuMemsetD32Async, cuMemsetD32Async_ptsz, set32_async,
        (CUdeviceptr d, unsigned int v, size_t n, CUstream s), d, v, n, s)
