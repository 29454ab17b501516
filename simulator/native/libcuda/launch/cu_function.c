/* SPDX-License-Identifier: Apache-2.0
 *
 * What functions say about themselves: from their module's image, or, where that could not be read,
 * what most kernels would say.
 */
#include "cu_context.h"
#include "cu_launch.h"

CUresult cu_function_ok(CUfunction f)
{
    return cu_handle_ok(CU_FUNCTION, f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult get(CUfunction f)
{
    CU_TRY(cu_ready());
    return cu_function_ok(f);
}

#define USUAL_REGISTERS 32

static int constants(const struct cu_image *image)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < image->nglobals; i++)
        if (image->globals[i].space == CU_IMAGE_CONSTANT)
            bytes += image->globals[i].size;
    return bytes <= 65536 ? (int)bytes : 65536;
}

/* Launch bounds, and what the registers of a multiprocessor are enough for. */
static int most_threads(const struct cu_image_kernel *kernel, int registers)
{
    int warp = (registers * 32 + 255) / 256 * 256;
    int most = CU_SM_REGISTERS / warp / 4 * 4 * 32;
    if (most > CU_BLOCK_THREADS)
        most = CU_BLOCK_THREADS;
    return kernel && kernel->max_threads && (int)kernel->max_threads < most
               ? (int)kernel->max_threads
               : most;
}

void cu_function_fill(CUfunction f)
{
    const struct cu_image *image = &f->module->image;
    const struct cu_image_kernel *kernel = f->kernel;
    int *a = f->attributes;
    int registers = kernel && kernel->registers ? (int)kernel->registers : USUAL_REGISTERS;
    int shared = 0;
    if (kernel)
        shared = kernel->shared <= CU_BLOCK_OPTIN ? (int)kernel->shared : CU_BLOCK_OPTIN;
    a[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = most_threads(kernel, registers);
    a[CU_FUNC_ATTRIBUTE_NUM_REGS] = registers;
    a[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] = shared;
    a[CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES] = constants(image);
    if (kernel)
        a[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES] = (int)(kernel->local & 0x7fffffff);
    a[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] =
        shared < CU_BLOCK_SHARED ? CU_BLOCK_SHARED - shared : 0;
    a[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
    a[CU_FUNC_ATTRIBUTE_PTX_VERSION] = image->arch ? (int)image->arch : 90;
    a[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = image->from_code && image->arch ? (int)image->arch : 90;
}

CUresult CUDAAPI cuFuncGetModule(CUmodule *module, CUfunction f)
{
    CU_TRY(get(f));
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    *module = f->module;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction f)
{
    CU_TRY(get(f));
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    *name = f->name;
    return CUDA_SUCCESS;
}

/* The end of the list is INVALID_VALUE, too. */
CUresult CUDAAPI cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size)
{
    CU_TRY(get(f));
    if (!offset || !f->kernel || index >= f->kernel->nparams)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = f->kernel->params[index].offset;
    if (size)
        *size = f->kernel->params[index].size;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetParamCount(CUfunction f, size_t *count)
{
    CU_TRY(get(f));
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = f->kernel ? f->kernel->nparams : 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction f)
{
    CU_TRY(get(f));
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncLoad(CUfunction f)
{
    CU_TRY(get(f));
    return f->module->misfit ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f)
{
    CU_TRY(get(f));
    if (!value || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (f->module->misfit)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    *value = f->attributes[attribute];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value)
{
    CU_TRY(get(f));
    if (attribute < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
        attribute >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    int most = CU_BLOCK_OPTIN - f->attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES];
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && (value < 0 || value > most))
        return CUDA_ERROR_INVALID_VALUE;
    f->attributes[attribute] = value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction f, CUfunc_cache config)
{
    CU_TRY(get(f));
    return config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
