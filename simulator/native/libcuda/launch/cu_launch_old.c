/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of other times: the grid as its own call with parameters that belong to the function
 * (CUDA 2), and one cooperative kernel on several cards (CUDA 9).
 */
#include "cu_context.h"
#include "cu_launch.h"

#include <string.h>

static CUresult function_ok(CUfunction f)
{
    CU_TRY(cu_ready());
    return cu_function_ok(f);
}

CUresult CUDAAPI cuFuncSetBlockShape(CUfunction f, int x, int y, int z)
{
    CU_TRY(function_ok(f));
    if (x < 1 || y < 1 || z < 1 || (int64_t)x * y * z > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    f->old.threads = (uint64_t)x * (uint64_t)y * (uint64_t)z;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetSharedSize(CUfunction f, unsigned int bytes)
{
    CU_TRY(function_ok(f));
    if (bytes > CU_BLOCK_OPTIN)
        return CUDA_ERROR_INVALID_VALUE;
    f->old.shared = bytes;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuParamSetSize(CUfunction f, unsigned int bytes)
{
    CU_TRY(function_ok(f));
    return bytes > CU_OLD_PARAMS ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuParamSetv(CUfunction f, int offset, void *from, unsigned int bytes)
{
    CU_TRY(function_ok(f));
    if (offset < 0 || bytes > CU_OLD_PARAMS || (unsigned)offset > CU_OLD_PARAMS - bytes ||
        (bytes && !from))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(f->old.params + offset, from, bytes);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuParamSeti(CUfunction f, int offset, unsigned int value)
{
    return cuParamSetv(f, offset, &value, sizeof value);
}

CUresult CUDAAPI cuParamSetf(CUfunction f, int offset, float value)
{
    return cuParamSetv(f, offset, &value, sizeof value);
}

static CUresult launch_grid(CUfunction f, int width, int height, CUstream stream)
{
    CU_TRY(function_ok(f));
    if (width < 1 || height < 1 || !f->old.threads)
        return CUDA_ERROR_INVALID_VALUE;
    size_t size = sizeof f->old.params;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, f->old.params, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &size, CU_LAUNCH_PARAM_END};
    return cuLaunchKernel(f, (unsigned)width, (unsigned)height, 1, (unsigned)f->old.threads, 1, 1,
                          f->old.shared, stream, NULL, extra);
}

CUresult CUDAAPI cuLaunch(CUfunction f)
{
    return launch_grid(f, 1, 1, NULL);
}

CUresult CUDAAPI cuLaunchGrid(CUfunction f, int width, int height)
{
    return launch_grid(f, width, height, NULL);
}

CUresult CUDAAPI cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
    return launch_grid(f, width, height, stream);
}

/* Each part is a launch into a stream of its own card; the streams' contexts need not be current.
 */
CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                                      unsigned int flags)
{
    CU_TRY(cu_ready());
    if (!list || !count || count > (unsigned)cu.ndevices || flags & ~3u)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (!cu_handle_ok(CU_STREAM, list[i].hStream)) /* default streams are not allowed here */
            return CUDA_ERROR_INVALID_VALUE;
        for (unsigned j = 0; j < i; j++)
            if (list[j].hStream->ctx->device == list[i].hStream->ctx->device)
                return CUDA_ERROR_INVALID_DEVICE;
    }
    for (unsigned i = 0; i < count; i++) {
        const CUDA_LAUNCH_PARAMS *p = &list[i];
        CU_TRY(cuLaunchCooperativeKernel(p->function, p->gridDimX, p->gridDimY, p->gridDimZ,
                                         p->blockDimX, p->blockDimY, p->blockDimZ,
                                         p->sharedMemBytes, p->hStream, p->kernelParams));
    }
    return CUDA_SUCCESS;
}
