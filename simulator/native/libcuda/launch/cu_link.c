/* SPDX-License-Identifier: Apache-2.0
 *
 * The linker. Code is never run here, so what comes out is what went in: PTX one after the other,
 * or the only binary. What cannot be put together, as objects of a host or PTX beside a binary,
 * becomes PTX of which any kernel name is accepted.
 */
#include "cu_context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct CUlinkState_st {
    enum cu_magic magic;
    char *image;
    size_t size; /* without the end of the text */
    unsigned texts, binaries;
};

static const char any_name[] =
    ".version 8.0\n.target sm_50\n.address_size 64\n.pragma \"" CU_IMAGE_ANY "\";\n";

CUresult CUDAAPI cuLinkCreate_v2(unsigned int n, CUjit_option *options, void **values,
                                 CUlinkState *out)
{
    CUcontext ctx;
    (void)n, (void)options, (void)values;
    CU_TRY(cu_current(&ctx));
    CUlinkState state = out ? cu_handle_new(CU_LINK) : NULL;
    if (!state)
        return out ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    *out = state;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkCreate(unsigned int n, CUjit_option *options, void **values,
                              CUlinkState *out)
{
    CU_TRY(cu_enter(__func__));
    return cuLinkCreate_v2(n, options, values, out);
}

/* Text may come with the zero at its end or without. */
static CUresult append(CUlinkState state, const char *data, size_t size)
{
    char *image = realloc(state->image, state->size + size + 2);
    if (!image)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(image + state->size, data, size);
    state->image = image;
    state->size += size;
    image[state->size] = image[state->size + 1] = 0;
    return CUDA_SUCCESS;
}

static CUresult add(CUlinkState state, CUjitInputType type, const char *data, size_t size)
{
    if (type >= CU_JIT_NUM_INPUT_TYPES || !data || !size)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_JIT_INPUT_PTX) {
        bool module = type == CU_JIT_INPUT_CUBIN || type == CU_JIT_INPUT_FATBINARY;
        bool alone = module && !state->texts && !state->binaries;
        state->binaries++;
        if (alone)
            return append(state, data, size);
        state->size = 0;
        return append(state, any_name, sizeof any_name - 1);
    }
    size = strnlen(data, size);
    if (!size || !memmem(data, size, ".version", 8))
        return CUDA_ERROR_INVALID_PTX;
    state->texts++;
    if (state->binaries) {
        state->size = 0;
        return append(state, any_name, sizeof any_name - 1);
    }
    CU_TRY(append(state, data, size));
    return append(state, "\n", 1);
}

CUresult CUDAAPI cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size,
                                  const char *name, unsigned int n, CUjit_option *options,
                                  void **values)
{
    (void)name, (void)n, (void)options, (void)values;
    CU_TRY(cu_ready());
    return cu_handle_ok(CU_LINK, state) ? add(state, type, data, size) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size,
                               const char *name, unsigned int n, CUjit_option *options,
                               void **values)
{
    CU_TRY(cu_enter(__func__));
    return cuLinkAddData_v2(state, type, data, size, name, n, options, values);
}

CUresult CUDAAPI cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
                                  unsigned int n, CUjit_option *options, void **values)
{
    struct stat st;
    (void)n, (void)options, (void)values;
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_LINK, state))
        return CUDA_ERROR_INVALID_HANDLE;
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    char *data = fstat(fileno(file), &st) == 0 && st.st_size < 1 << 30
                     ? malloc((size_t)st.st_size + 1)
                     : NULL;
    CUresult status = CUDA_ERROR_INVALID_IMAGE;
    if (data && fread(data, 1, (size_t)st.st_size, file) == (size_t)st.st_size)
        status = add(state, type, data, (size_t)st.st_size);
    free(data);
    fclose(file);
    return status;
}

CUresult CUDAAPI cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path,
                               unsigned int n, CUjit_option *options, void **values)
{
    CU_TRY(cu_enter(__func__));
    return cuLinkAddFile_v2(state, type, path, n, options, values);
}

CUresult CUDAAPI cuLinkComplete(CUlinkState state, void **image, size_t *size)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_LINK, state))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!image || !state->size)
        return CUDA_ERROR_INVALID_VALUE;
    *image = state->image;
    if (size)
        *size = state->size + 1;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkDestroy(CUlinkState state)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_LINK, state))
        return CUDA_ERROR_INVALID_HANDLE;
    free(state->image);
    cu_handle_free(CU_LINK, state);
    return CUDA_SUCCESS;
}
