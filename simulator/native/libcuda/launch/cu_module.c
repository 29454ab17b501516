/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules, libraries and functions. PTX text is searched for its entries; binary code (cubin,
 * fatbin) cannot be read here, so any kernel name is accepted from it. Code is never run: see
 * cu_launch.c for durations.
 */
#include "cu_context.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_text(const char *image)
{
    size_t i = 0;
    while (i < 64 && image[i] &&
           (isprint((unsigned char)image[i]) || isspace((unsigned char)image[i])))
        i++;
    return i == 64 || (i > 4 && !image[i]);
}

static CUresult load(CUmodule *out, const void *image, bool library)
{
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    CUmodule module = cu_handle_new(CU_MODULE);
    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&module->lock, NULL);
    module->is_library = library;
    if (is_text(image)) {
        module->ptx = strdup(image);
        if (!module->ptx || !strstr(module->ptx, ".version")) {
            free(module->ptx);
            cu_handle_free(CU_MODULE, module);
            return CUDA_ERROR_INVALID_PTX;
        }
    }
    *out = module;
    return CUDA_SUCCESS;
}

static CUresult load_file(CUmodule *out, const char *path, bool library)
{
    struct stat st;
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    char *image = fstat(fileno(file), &st) == 0 && st.st_size < 1 << 30
                      ? calloc(1, (size_t)st.st_size + 64)
                      : NULL;
    CUresult status = CUDA_ERROR_INVALID_IMAGE;
    if (image && fread(image, 1, (size_t)st.st_size, file) == (size_t)st.st_size)
        status = load(out, image, library);
    free(image);
    fclose(file);
    return status;
}

static bool has_entry(const char *ptx, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = strstr(ptx, ".entry"); at; at = strstr(at + 6, ".entry")) {
        const char *word = at + 6 + strspn(at + 6, " \t\r\n");
        if (strncmp(word, name, len) == 0 && !isalnum((unsigned char)word[len]) &&
            word[len] != '_' && word[len] != '$')
            return true;
    }
    return false;
}

static const struct sim_rule *rule_of(const char *name)
{
    for (uint32_t i = 0; cu.page && i < cu.page->nrules && i < SIM_RULES; i++)
        if (fnmatch(cu.page->rules[i].pattern, name, 0) == 0)
            return &cu.page->rules[i];
    return NULL;
}

static CUresult find(CUfunction *out, CUmodule module, const char *name)
{
    CUresult status = CUDA_ERROR_NOT_FOUND;
    if (!out || !name || !*name)
        return name && *name ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&module->lock);
    for (CUfunction f = module->functions; f; f = f->next)
        if (strcmp(f->name, name) == 0) {
            *out = f;
            status = CUDA_SUCCESS;
        }
    CUfunction f = NULL;
    char *own = NULL;
    if (status != CUDA_SUCCESS && (!module->ptx || has_entry(module->ptx, name)) &&
        (own = strdup(name)) != NULL)
        f = cu_handle_new(CU_FUNCTION);
    if (!f) {
        free(own);
    } else {
        f->module = module;
        f->next = module->functions;
        f->rule = rule_of(name);
        f->is_work = module->ptx && strcmp(name, "qgpu_work") == 0;
        f->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
        f->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
        f->attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] =
            f->attributes[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 90;
        f->name = own;
        module->functions = f;
        *out = f;
        status = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&module->lock);
    return status;
}

static CUresult unload(CUmodule module)
{
    while (module->functions) {
        CUfunction next = module->functions->next;
        free(module->functions->name);
        cu_handle_free(CU_FUNCTION, module->functions);
        module->functions = next;
    }
    free(module->ptx);
    cu_handle_free(CU_MODULE, module);
    return CUDA_SUCCESS;
}

static CUresult get(CUmodule module, bool library)
{
    CU_TRY(cu_ready());
    return cu_handle_ok(CU_MODULE, module) && module->is_library == library
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_HANDLE;
}

/* A module of its own, or the one of cuLibraryGetModule: that cannot be unloaded, only used. */
static CUresult get_used(CUmodule module)
{
    CU_TRY(cu_ready());
    return cu_handle_ok(CU_MODULE, module) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    return load(module, image, false);
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n,
                                    CUjit_option *options, void **values)
{
    (void)n, (void)options, (void)values;
    CU_TRY(cu_enter(__func__));
    return cuModuleLoadData(module, image);
}

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    CU_TRY(cu_enter(__func__));
    return cuModuleLoadData(module, image);
}

CUresult CUDAAPI cuModuleLoad(CUmodule *module, const char *path)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    return load_file(module, path, false);
}

CUresult CUDAAPI cuModuleUnload(CUmodule module)
{
    CU_TRY(get(module, false));
    return unload(module);
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name)
{
    CU_TRY(get_used(module));
    return find(f, module, name);
}

CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *bytes, CUmodule module,
                                      const char *name)
{
    (void)ptr, (void)bytes, (void)name;
    CU_TRY(get_used(module));
    return CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    CU_TRY(cu_ready());
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

/* A CUlibrary is a module that needs no context; a CUkernel is its function. */
CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit,
                                   void **jit_values, unsigned int njit, CUlibraryOption *options,
                                   void **values, unsigned int n)
{
    (void)jit, (void)jit_values, (void)njit, (void)options, (void)values, (void)n;
    CU_TRY(cu_ready());
    return load((CUmodule *)library, code, true);
}

CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit,
                                       void **jit_values, unsigned int njit,
                                       CUlibraryOption *options, void **values, unsigned int n)
{
    (void)jit, (void)jit_values, (void)njit, (void)options, (void)values, (void)n;
    CU_TRY(cu_ready());
    return load_file((CUmodule *)library, path, true);
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library)
{
    CU_TRY(get((CUmodule)library, true));
    return unload((CUmodule)library);
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CU_TRY(get((CUmodule)library, true));
    return find((CUfunction *)kernel, (CUmodule)library, name);
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    CU_TRY(get((CUmodule)library, true));
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    *module = (CUmodule)library;
    return CUDA_SUCCESS;
}

static CUresult get_function(CUfunction f)
{
    CU_TRY(cu_ready());
    return cu_handle_ok(CU_FUNCTION, f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction *f, CUkernel kernel)
{
    CU_TRY(get_function((CUfunction)kernel));
    if (!f)
        return CUDA_ERROR_INVALID_VALUE;
    *f = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetModule(CUmodule *module, CUfunction f)
{
    CU_TRY(get_function(f));
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    *module = f->module;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction f)
{
    CU_TRY(get_function(f));
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    *name = f->name;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f)
{
    CU_TRY(get_function(f));
    if (!value || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = f->attributes[attribute];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value)
{
    CU_TRY(get_function(f));
    if (attribute < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
        attribute >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    f->attributes[attribute] = value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction f, CUfunc_cache config)
{
    (void)config;
    return get_function(f);
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f,
                                                                      int block, size_t shared,
                                                                      unsigned int flags)
{
    (void)flags;
    CU_TRY(get_function(f));
    if (!blocks || block <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    int by_threads = 2048 / block < 32 ? 2048 / block : 32;
    int by_shared = shared ? (int)(233472 / shared) : 32;
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int block,
                                                             size_t shared)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, block, shared, 0);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f,
                                                  CUoccupancyB2DSize size, size_t shared, int limit)
{
    (void)size, (void)shared;
    CU_TRY(get_function(f));
    if (!grid || !block)
        return CUDA_ERROR_INVALID_VALUE;
    *block = limit > 0 && limit < 1024 ? limit : 1024;
    *grid = 132 * (2048 / *block);
    return CUDA_SUCCESS;
}
