/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules: what is known of them is read from their image, image/. A name that is not in it is
 * refused. Where a library to decompress lacks, any name is taken. Code is never run: see
 * cu_launch.c for durations.
 */
#include "cu_context.h"
#include "cu_launch.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ARCH 90u /* compute capability 9.0 */

/* A library is loaded without a card: what it lacks for the card is said when it is used. */
static CUresult load(CUmodule *out, const void *bytes, size_t size, bool library)
{
    struct cu_image image;
    CUresult status = cu_image_read(bytes, size, ARCH, &image);
    bool misfit = status == CUDA_ERROR_NO_BINARY_FOR_GPU;
    CUmodule module = NULL;
    if (status == CUDA_SUCCESS || (misfit && library)) {
        module = cu_handle_new(CU_MODULE);
        status = module ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (module && image.nkernels) {
        module->of_kernel = calloc(image.nkernels, sizeof(CUfunction));
        if (!module->of_kernel) {
            cu_handle_free(CU_MODULE, module);
            status = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (status != CUDA_SUCCESS) {
        cu_image_free(&image);
        return status;
    }
    if (image.lacks)
        sim_debug("no %s: a module is not read, any kernel name is taken", image.lacks);
    pthread_mutex_init(&module->lock, NULL);
    module->is_library = library;
    module->image = image;
    module->misfit = misfit;
    *out = module;
    return CUDA_SUCCESS;
}

CUresult cu_module_load(CUmodule *out, const void *image, bool library)
{
    const void *bytes;
    size_t size;
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_image_locate(image, &bytes, &size));
    return load(out, bytes, size, library);
}

CUresult cu_module_load_file(CUmodule *out, const char *path, bool library)
{
    struct stat st;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    size_t size =
        fstat(fileno(file), &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size < CU_IMAGE_MOST
            ? (size_t)st.st_size
            : 0;
    char *image = malloc(size + 1);
    CUresult status = image ? CUDA_ERROR_INVALID_IMAGE : CUDA_ERROR_OUT_OF_MEMORY;
    if (image && size && fread(image, 1, size, file) == size)
        status = load(out, image, size, library);
    free(image);
    fclose(file);
    return status;
}

/* The first line that fits counts: the user's, then those that come with the simulator. */
static const struct sim_rule *rule_of(const char *name)
{
    for (uint32_t i = 0; cu.page && i < cu.page->nrules && i < SIM_RULES; i++)
        if (fnmatch(cu.page->rules[i].pattern, name, 0) == 0)
            return &cu.page->rules[i];
    return NULL;
}

static CUfunction made(CUmodule module, const struct cu_image_kernel *kernel, const char *name)
{
    if (kernel)
        return module->of_kernel[kernel - module->image.kernels];
    for (CUfunction f = module->functions; f; f = f->next)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

static CUfunction make(CUmodule module, const struct cu_image_kernel *kernel, const char *name)
{
    char *own = strdup(name);
    CUfunction f = own ? cu_handle_new(CU_FUNCTION) : NULL;
    if (!f) {
        free(own);
        return NULL;
    }
    f->module = module;
    f->next = module->functions;
    f->rule = rule_of(name);
    f->is_work = kernel && !module->image.from_code && strcmp(name, "qgpu_work") == 0;
    f->kernel = kernel;
    f->name = own;
    cu_function_fill(f);
    module->functions = f;
    if (kernel)
        module->of_kernel[kernel - module->image.kernels] = f;
    return f;
}

CUresult cu_module_find(CUfunction *out, CUmodule module, const char *name)
{
    if (!out || !name || !*name)
        return name && *name ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
    const struct cu_image_kernel *kernel = cu_image_kernel(&module->image, name);
    if (!kernel && !module->image.any)
        return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&module->lock);
    CUfunction f = made(module, kernel, name);
    if (!f)
        f = make(module, kernel, name);
    pthread_mutex_unlock(&module->lock);
    if (f)
        *out = f;
    return f ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cu_module_list(CUfunction *out, unsigned most, CUmodule module)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < most && i < module->image.nkernels; i++)
        CU_TRY(cu_module_find(&out[i], module, module->image.kernels[i].name));
    return CUDA_SUCCESS;
}

void cu_module_unload(CUmodule module)
{
    cu_globals_unload(module);
    while (module->functions) {
        CUfunction next = module->functions->next;
        free(module->functions->name);
        cu_handle_free(CU_FUNCTION, module->functions);
        module->functions = next;
    }
    free(module->of_kernel);
    cu_image_free(&module->image);
    cu_handle_free(CU_MODULE, module);
}

static CUresult get(CUmodule module)
{
    CU_TRY(cu_ready());
    return cu_handle_ok(CU_MODULE, module) && !module->is_library ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_INVALID_HANDLE;
}

/* A module of its own, or the one of cuLibraryGetModule: that cannot be unloaded, only used. */
static CUresult get_used(CUmodule module)
{
    CU_TRY(cu_ready());
    return cu_handle_ok(CU_MODULE, module) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* With the memory of its variables. */
static CUresult into_context(CUmodule *out, CUcontext ctx)
{
    CUresult status = cu_globals_load(*out, ctx);
    if (status != CUDA_SUCCESS)
        cu_module_unload(*out);
    return status;
}

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    CU_TRY(cu_module_load(module, image, false));
    return into_context(module, ctx);
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
    CU_TRY(cu_module_load_file(module, path, false));
    return into_context(module, ctx);
}

CUresult CUDAAPI cuModuleUnload(CUmodule module)
{
    CU_TRY(get(module));
    cu_module_unload(module);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name)
{
    CU_TRY(get_used(module));
    return cu_module_find(f, module, name);
}

CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *bytes, CUmodule module,
                                      const char *name)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    CU_TRY(get_used(module));
    return cu_globals_find(ptr, bytes, module, ctx, name, false);
}

CUresult CUDAAPI cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
    CU_TRY(get_used(module));
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = module->image.nkernels;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction *functions, unsigned int most,
                                            CUmodule module)
{
    CU_TRY(get_used(module));
    return cu_module_list(functions, most, module);
}

bool cu_module_eager(void)
{
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return mode && strcmp(mode, "EAGER") == 0;
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    CU_TRY(cu_ready());
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = cu_module_eager() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}
