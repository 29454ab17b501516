/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules and libraries with large variables, and limits of contexts. The images come from
 * test_shim_memory_modules.py, in the folder that the program is given.
 */
#include "step.h"

static const char *folder;

static const char *path_of(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* The bytes of an image, with a zero behind. */
static void *bytes_of(const char *name)
{
    FILE *file = fopen(path_of(name), "rb");
    MUST(!file || fseek(file, 0, SEEK_END));
    long size = ftell(file);
    char *bytes = calloc(1, (size_t)size + 1);
    rewind(file);
    MUST(!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size);
    fclose(file);
    return bytes;
}

static void modules(void)
{
    CUmodule plain, file, text, fatbin, none;
    struct {
        unsigned magic, version;
        void *container, *more;
    } wrapper = {0x466243b1, 1, bytes_of("packed.fatbin"), NULL};
    MUST(CALL(cuModuleLoadData)(&plain, bytes_of("plain.cubin")));
    step("loaded");
    MUST(CALL(cuModuleLoad)(&file, path_of("packed.fatbin")));
    step("from_file");
    MUST(CALL(cuModuleLoadDataEx)(&text, bytes_of("text.ptx"), 0, NULL, NULL));
    step("from_text");
    REFUSED(CALL(cuModuleLoadData)(&none, bytes_of("large.cubin")));
    REFUSED(CALL(cuModuleLoad)(&none, path_of("large.cubin")));
    step("refused");
    MUST(CALL(cuModuleLoadFatBinary)(&fatbin, &wrapper));
    step("full");
    REFUSED(CALL(cuModuleLoadDataEx)(&none, bytes_of("plain.cubin"), 0, NULL, NULL));
    MUST(CALL(cuModuleUnload)(fatbin));
    MUST(CALL(cuModuleUnload)(text));
    MUST(CALL(cuModuleUnload)(file));
    step("unloaded");
    MUST(CALL(cuModuleUnload)(plain));
    MUST(CALL(cuModuleUnload)(plain) != CUDA_ERROR_INVALID_HANDLE);
    step("all_unloaded");
    REFUSED(CALL(cuModuleLoadData)(&none, bytes_of("endless.cubin")));
    MUST(CALL(cuModuleLoadData)(&none, bytes_of("broken.cubin")) != CUDA_ERROR_INVALID_IMAGE);
    MUST(CALL(cuModuleLoadData)(&none, "no image") != CUDA_ERROR_INVALID_PTX);
    MUST(CALL(cuModuleLoad)(&none, path_of("none")) != CUDA_ERROR_FILE_NOT_FOUND);
    MUST(CALL(cuModuleLoadData)(NULL, bytes_of("plain.cubin")) != CUDA_ERROR_INVALID_VALUE);
    step("no_modules");
    MUST(CALL(cuModuleLoadData)(&plain, bytes_of("managed.cubin")));
    step("with_managed");
    MUST(CALL(cuModuleUnload)(plain));
    step("managed_unloaded");
}

/* What the linker makes is a module like others. */
static void linked(void)
{
    CUlinkState state;
    CUmodule module;
    void *image, *text = bytes_of("text.ptx");
    MUST(CALL(cuLinkCreate_v2)(0, NULL, NULL, &state));
    MUST(CALL(cuLinkAddData_v2)(state, CU_JIT_INPUT_PTX, text, strlen(text) + 1, "text", 0, NULL,
                                NULL));
    MUST(CALL(cuLinkComplete)(state, &image, NULL));
    MUST(CALL(cuModuleLoadData)(&module, image));
    step("linked");
    MUST(CALL(cuModuleUnload)(module));
    MUST(CALL(cuLinkDestroy)(state));
    step("link_gone");
}

static int launch(CUkernel kernel)
{
    return (int)CALL(cuLaunchKernel)((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static void libraries(void)
{
    CUlibrary library, other;
    CUlibraryOption stays = CU_LIBRARY_BINARY_IS_PRESERVED;
    void *yes = (void *)1;
    CUkernel kernel, none;
    CUmodule module;
    CUdeviceptr pointer;
    MUST(CALL(cuLibraryLoadData)(&library, bytes_of("packed.fatbin"), NULL, NULL, 0, &stays, &yes,
                                 1));
    MUST(CALL(cuLibraryLoadFromFile)(&other, path_of("plain.cubin"), NULL, NULL, 0, NULL, NULL, 0));
    step("libraries");
    MUST(CALL(cuLibraryGetKernel)(&none, library, "none") != CUDA_ERROR_NOT_FOUND);
    step("no_kernel");
    MUST(CALL(cuLibraryGetKernel)(&kernel, library, "work"));
    MUST(launch(kernel));
    step("launched");
    MUST(CALL(cuLibraryGetModule)(&module, other));
    step("as_module");
    MUST(CALL(cuLibraryGetModule)(&module, library));
    MUST(CALL(cuLibraryGetGlobal)(&pointer, NULL, library, "table"));
    step("used_again");
    MUST(CALL(cuLibraryUnload)(library));
    step("one_left");
    MUST(CALL(cuLibraryUnload)(other));
    step("libraries_gone");
    MUST(
        CALL(cuLibraryLoadData)(&library, bytes_of("managed.cubin"), NULL, NULL, 0, NULL, NULL, 0));
    MUST(CALL(cuLibraryGetManaged)(&pointer, NULL, library, "shown"));
    step("managed");
    MUST(CALL(cuLibraryUnload)(library));
    MUST(CALL(cuLibraryLoadData)(&library, bytes_of("large.cubin"), NULL, NULL, 0, NULL, NULL, 0));
    REFUSED(CALL(cuLibraryGetKernel)(&kernel, library, "work"));
    REFUSED(CALL(cuLibraryGetModule)(&module, library));
    MUST(CALL(cuLibraryUnload)(library));
    step("too_large");
}

/* A kernel by other ways, in the context that is current. */
static void kernels(void)
{
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUcontext other;
    CUdeviceptr pointer;
    void *any;
    MUST(CALL(cuLibraryLoadFromFile)(&library, path_of("plain.cubin"), NULL, NULL, 0, NULL, NULL,
                                     0));
    MUST(CALL(cuLibraryGetUnifiedFunction)(&any, library, "work") != CUDA_ERROR_NOT_FOUND);
    step("not_there");
    MUST(CALL(cuLibraryEnumerateKernels)(&kernel, 1, library));
    MUST(CALL(cuKernelGetFunction)(&function, kernel));
    step("listed");
    MUST(CALL(cuCtxCreate_v2)(&other, 0, 0));
    MUST(CALL(cuKernelGetFunction)(&function, kernel));
    step("in_another");
    MUST(CALL(cuCtxDestroy_v2)(other));
    MUST(CALL(cuCtxSetCurrent)(context));
    step("another_gone");
    MUST(CALL(cuCtxCreate_v2)(&other, 0, 0));
    MUST(CALL(cuMemAlloc_v2)(&pointer, 160 * MIB));
    REFUSED(launch(kernel));
    step("launch_refused");
    MUST(CALL(cuMemFree_v2)(pointer));
    MUST(launch(kernel));
    step("launched_there");
    MUST(CALL(cuCtxDestroy_v2)(other));
    MUST(CALL(cuCtxSetCurrent)(context));
    step("there_gone");
    MUST(CALL(cuLibraryUnload)(library));
    step("kernels_gone");
}

static void limits(void)
{
    size_t value;
    MUST(CALL(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, 72 * MIB));
    step("heap");
    MUST(CALL(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 1536));
    step("stack");
    REFUSED(CALL(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 2048));
    REFUSED(CALL(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, SIZE_MAX));
    REFUSED(CALL(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, SIZE_MAX / 2));
    MUST(CALL(cuCtxGetLimit)(&value, CU_LIMIT_STACK_SIZE));
    MUST(value != 1536);
    step("limits_refused");
    MUST(CALL(cuCtxSetLimit)(CU_LIMIT_PRINTF_FIFO_SIZE, 33 * MIB));
    step("fifo");
    MUST(CALL(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 512));
    MUST(CALL(cuCtxSetLimit)(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 128));
    step("stack_lowered");
    MUST(CALL(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 1024));
    MUST(CALL(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, 40 * MIB));
    step("heap_lowered");
}

/* A context takes along what it had of all these. */
static void ends(void)
{
    CUcontext other;
    CUmodule module;
    CUlibrary library;
    CUdeviceptr pointer;
    MUST(CALL(cuLibraryLoadFromFile)(&library, path_of("plain.cubin"), NULL, NULL, 0, NULL, NULL,
                                     0));
    MUST(CALL(cuLibraryGetGlobal)(&pointer, NULL, library, "table"));
    MUST(CALL(cuModuleLoad)(&module, path_of("plain.cubin")));
    step("before_reset");
    MUST(CALL(cuDevicePrimaryCtxReset_v2)(0));
    MUST(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
    MUST(CALL(cuCtxSetCurrent)(context));
    step("reset");
    MUST(CALL(cuLibraryGetGlobal)(&pointer, NULL, library, "table"));
    step("library_stayed");
    MUST(CALL(cuCtxCreate_v2)(&other, 0, 0));
    MUST(CALL(cuLibraryGetGlobal)(&pointer, NULL, library, "table"));
    MUST(CALL(cuModuleLoad)(&module, path_of("plain.cubin")));
    MUST(CALL(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, 72 * MIB));
    step("second_context");
    MUST(CALL(cuCtxDestroy_v2)(other));
    MUST(CALL(cuCtxSetCurrent)(context));
    step("context_gone");
    MUST(CALL(cuLibraryUnload)(library));
    step("end");
}

/* Too small to be charged: what the card has for it, only its NVML says. */
static void little(void)
{
    CUmodule module;
    MUST(CALL(cuModuleLoadData)(&module, bytes_of("little.cubin")));
    step("little");
}

/* With eager loading the current context has a library at once. */
static void eager(void)
{
    CUlibrary library, none;
    MUST(CALL(cuLibraryLoadFromFile)(&library, path_of("plain.cubin"), NULL, NULL, 0, NULL, NULL,
                                     0));
    step("loaded");
    REFUSED(
        CALL(cuLibraryLoadFromFile)(&none, path_of("large.cubin"), NULL, NULL, 0, NULL, NULL, 0));
    REFUSED(CALL(cuLibraryLoadData)(&none, bytes_of("large.cubin"), NULL, NULL, 0, NULL, NULL, 0));
    step("refused");
    MUST(CALL(cuLibraryUnload)(library));
    step("unloaded");
}

/* Managed variables where those are not charged. */
static void resident(void)
{
    CUmodule module;
    CUlibrary library;
    CUdeviceptr pointer;
    MUST(CALL(cuModuleLoadData)(&module, bytes_of("managed.cubin")));
    step("module");
    MUST(CALL(cuModuleUnload)(module));
    MUST(CALL(cuLibraryLoadFromFile)(&library, path_of("managed.cubin"), NULL, NULL, 0, NULL, NULL,
                                     0));
    MUST(CALL(cuLibraryGetManaged)(&pointer, NULL, library, "shown"));
    step("library");
    MUST(CALL(cuLibraryUnload)(library));
    step("unloaded");
}

int main(int argc, char **argv)
{
    MUST(argc != 2 && argc != 3);
    folder = argv[1];
    const char *part = argc == 3 ? argv[2] : "";
    if (!strcmp(part, "eager"))
        MUST(setenv("CUDA_MODULE_LOADING", "EAGER", 1));
    begin();
    if (*part) {
        (strcmp(part, "eager") ? resident : eager)();
        return 0;
    }
    modules();
    linked();
    libraries();
    kernels();
    limits();
    ends();
    little();
    return 0;
}
