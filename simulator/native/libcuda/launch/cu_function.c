/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions and kernels: what they belong to, and whether they are loaded. All are, as soon as
 * there is a handle.
 */
#include "cu_launch.h"

static CUresult function_ok(CUfunction f)
{
    return cu_handle_ok(CU_FUNCTION, f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuFuncLoad(CUfunction f)
{
    CU_TRY(cu_ready());
    return function_ok(f);
}

CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction f)
{
    CU_TRY(cu_ready());
    CU_TRY(function_ok(f));
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

/* A kernel is a function of a library here; a function of a module has none. */
CUresult CUDAAPI cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    CUfunction f = (CUfunction)kernel;
    CU_TRY(cu_ready());
    CU_TRY(function_ok(f));
    if (!library)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cu_handle_ok(CU_MODULE, f->module) || !f->module->is_library)
        return CUDA_ERROR_INVALID_HANDLE;
    *library = (CUlibrary)f->module;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
    CU_TRY(cu_ready());
    CU_TRY(function_ok((CUfunction)kernel));
    if (dev < 0 || dev >= cu.ndevices)
        return CUDA_ERROR_INVALID_DEVICE;
    return config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
