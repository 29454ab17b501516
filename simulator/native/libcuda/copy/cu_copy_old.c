/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and fills of the first versions, whose pointers and sizes have 32 bits.
 */
#include "cu.h"

typedef CUdeviceptr_v1 P;
typedef unsigned int N;

CUresult CUDAAPI cuMemcpyHtoD(P d, const void *s, N n)
{
    return cuMemcpyHtoD_v2(d, s, n);
}
CUresult CUDAAPI cuMemcpyDtoH(void *d, P s, N n)
{
    return cuMemcpyDtoH_v2(d, s, n);
}
CUresult CUDAAPI cuMemcpyDtoD(P d, P s, N n)
{
    return cuMemcpyDtoD_v2(d, s, n);
}
CUresult CUDAAPI cuMemcpyHtoDAsync(P d, const void *s, N n, CUstream t)
{
    return cuMemcpyHtoDAsync_v2(d, s, n, t);
}
CUresult CUDAAPI cuMemcpyDtoHAsync(void *d, P s, N n, CUstream t)
{
    return cuMemcpyDtoHAsync_v2(d, s, n, t);
}
CUresult CUDAAPI cuMemcpyDtoDAsync(P d, P s, N n, CUstream t)
{
    return cuMemcpyDtoDAsync_v2(d, s, n, t);
}
CUresult CUDAAPI cuMemsetD8(P d, unsigned char v, N n)
{
    return cuMemsetD8_v2(d, v, n);
}
CUresult CUDAAPI cuMemsetD16(P d, unsigned short v, N n)
{
    return cuMemsetD16_v2(d, v, n);
}
CUresult CUDAAPI cuMemsetD32(P d, unsigned int v, N n)
{
    return cuMemsetD32_v2(d, v, n);
}
CUresult CUDAAPI cuMemsetD2D8(P d, N p, unsigned char v, N w, N h)
{
    return cuMemsetD2D8_v2(d, p, v, w, h);
}
CUresult CUDAAPI cuMemsetD2D16(P d, N p, unsigned short v, N w, N h)
{
    return cuMemsetD2D16_v2(d, p, v, w, h);
}
CUresult CUDAAPI cuMemsetD2D32(P d, N p, unsigned int v, N w, N h)
{
    return cuMemsetD2D32_v2(d, p, v, w, h);
}

static CUDA_MEMCPY2D_v2 wide2d(const CUDA_MEMCPY2D_v1 *c)
{
    return (CUDA_MEMCPY2D_v2){.srcXInBytes = c->srcXInBytes,
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
                              .Height = c->Height};
}

static CUDA_MEMCPY3D_v2 wide3d(const CUDA_MEMCPY3D_v1 *c)
{
    return (CUDA_MEMCPY3D_v2){.srcXInBytes = c->srcXInBytes,
                              .srcY = c->srcY,
                              .srcZ = c->srcZ,
                              .srcLOD = c->srcLOD,
                              .srcMemoryType = c->srcMemoryType,
                              .srcHost = c->srcHost,
                              .srcDevice = c->srcDevice,
                              .srcArray = c->srcArray,
                              .srcPitch = c->srcPitch,
                              .srcHeight = c->srcHeight,
                              .dstXInBytes = c->dstXInBytes,
                              .dstY = c->dstY,
                              .dstZ = c->dstZ,
                              .dstLOD = c->dstLOD,
                              .dstMemoryType = c->dstMemoryType,
                              .dstHost = c->dstHost,
                              .dstDevice = c->dstDevice,
                              .dstArray = c->dstArray,
                              .dstPitch = c->dstPitch,
                              .dstHeight = c->dstHeight,
                              .WidthInBytes = c->WidthInBytes,
                              .Height = c->Height,
                              .Depth = c->Depth};
}

#define WIDENED(name, widen, type, ...)                                                            \
    {                                                                                              \
        type copy;                                                                                 \
        if (!c)                                                                                    \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        copy = widen(c);                                                                           \
        return name(&copy __VA_OPT__(, ) __VA_ARGS__);                                             \
    }

CUresult CUDAAPI cuMemcpy2D(const CUDA_MEMCPY2D_v1 *c)
    WIDENED(cuMemcpy2D_v2, wide2d, CUDA_MEMCPY2D_v2) CUresult CUDAAPI
    cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1 *c)
        WIDENED(cuMemcpy2DUnaligned_v2, wide2d, CUDA_MEMCPY2D_v2) CUresult CUDAAPI
    cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1 *c, CUstream s)
        WIDENED(cuMemcpy2DAsync_v2, wide2d, CUDA_MEMCPY2D_v2, s) CUresult CUDAAPI
    cuMemcpy3D(const CUDA_MEMCPY3D_v1 *c)
        WIDENED(cuMemcpy3D_v2, wide3d, CUDA_MEMCPY3D_v2) CUresult CUDAAPI
    cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1 *c, CUstream s)
        WIDENED(cuMemcpy3DAsync_v2, wide3d, CUDA_MEMCPY3D_v2, s)
