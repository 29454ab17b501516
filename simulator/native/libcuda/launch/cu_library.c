/* SPDX-License-Identifier: Apache-2.0
 *
 * Libraries: modules that need no context. A CUkernel is a function of one.
 */
#include "cu_context.h"
#include "cu_launch.h"

static CUresult get(CUlibrary library)
{
    CU_TRY(cu_ready());
    CUmodule module = (CUmodule)library;
    return cu_handle_ok(CU_MODULE, module) && module->is_library ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_HANDLE;
}

/* NVIDIA's runtime asks before any context is current. */
static CUcontext current_or_none(void)
{
    CUcontext ctx;
    return cu_current(&ctx) == CUDA_SUCCESS ? ctx : NULL;
}

/* With eager loading the current context has it at once; others at the first use. */
static CUresult loaded(CUlibrary *library)
{
    CUmodule module = (CUmodule)*library;
    CUresult status = cu_module_eager() ? cu_globals_use(module, current_or_none()) : CUDA_SUCCESS;
    if (status != CUDA_SUCCESS)
        cu_module_unload(module);
    return status;
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit,
                                   void **jit_values, unsigned int njit, CUlibraryOption *options,
                                   void **values, unsigned int n)
{
    (void)jit, (void)jit_values, (void)njit, (void)options, (void)values, (void)n;
    CU_TRY(cu_ready());
    CU_TRY(cu_module_load((CUmodule *)library, code, true));
    return loaded(library);
}

CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit,
                                       void **jit_values, unsigned int njit,
                                       CUlibraryOption *options, void **values, unsigned int n)
{
    (void)jit, (void)jit_values, (void)njit, (void)options, (void)values, (void)n;
    CU_TRY(cu_ready());
    CU_TRY(cu_module_load_file((CUmodule *)library, path, true));
    return loaded(library);
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library)
{
    CU_TRY(get(library));
    cu_module_unload((CUmodule)library);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CU_TRY(get(library));
    return cu_module_find((CUfunction *)kernel, (CUmodule)library, name);
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    CU_TRY(get(library));
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    if (((CUmodule)library)->misfit)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    CU_TRY(cu_globals_use((CUmodule)library, current_or_none()));
    *module = (CUmodule)library;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
    CU_TRY(get(library));
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = ((CUmodule)library)->image.nkernels;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int most, CUlibrary library)
{
    CU_TRY(get(library));
    return cu_module_list((CUfunction *)kernels, most, (CUmodule)library);
}

/* Of the current context. */
CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *bytes, CUlibrary library,
                                    const char *name)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    CU_TRY(get(library));
    return cu_globals_find(ptr, bytes, (CUmodule)library, ctx, name, false);
}

CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr *ptr, size_t *bytes, CUlibrary library,
                                     const char *name)
{
    CU_TRY(cu_enter(__func__));
    CU_TRY(get(library));
    CUcontext ctx = current_or_none();
    return cu_globals_find(ptr, bytes, (CUmodule)library, ctx, name, true);
}

/* Pointers to functions of the card are not there. */
CUresult CUDAAPI cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name)
{
    CU_TRY(get(library));
    return function && name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

/* ---- kernels ---- */

CUresult CUDAAPI cuKernelGetFunction(CUfunction *f, CUkernel kernel)
{
    CU_TRY(cu_ready());
    CU_TRY(cu_function_ok((CUfunction)kernel));
    if (!f)
        return CUDA_ERROR_INVALID_VALUE;
    if (((CUfunction)kernel)->module->misfit)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    CU_TRY(cu_globals_use(((CUfunction)kernel)->module, current_or_none()));
    *f = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    CU_TRY(cu_ready());
    CU_TRY(cu_function_ok((CUfunction)kernel));
    if (!library)
        return CUDA_ERROR_INVALID_VALUE;
    if (!((CUfunction)kernel)->module->is_library)
        return CUDA_ERROR_INVALID_HANDLE;
    *library = (CUlibrary)((CUfunction)kernel)->module;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetName(const char **name, CUkernel kernel)
{
    CU_TRY(cu_enter(__func__));
    return cuFuncGetName(name, (CUfunction)kernel);
}

CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
    CU_TRY(cu_enter(__func__));
    return cuFuncGetParamInfo((CUfunction)kernel, index, offset, size);
}

CUresult CUDAAPI cuKernelGetParamCount(CUkernel kernel, size_t *count)
{
    CU_TRY(cu_enter(__func__));
    return cuFuncGetParamCount((CUfunction)kernel, count);
}

CUresult CUDAAPI cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                                      CUdevice dev)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    CU_TRY(cu_enter(__func__));
    return cuFuncGetAttribute(value, attribute, (CUfunction)kernel);
}

/* For all cards: they are alike. */
CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                      CUdevice dev)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    CU_TRY(cu_enter(__func__));
    return cuFuncSetAttribute((CUfunction)kernel, attribute, value);
}

CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    CU_TRY(cu_enter(__func__));
    return cuFuncSetCacheConfig((CUfunction)kernel, config);
}
