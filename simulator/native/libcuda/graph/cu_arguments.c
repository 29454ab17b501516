/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of kernels that graphs keep. A node has a copy of its own in one block: the list that
 * the program reads back, then what it points to.
 */
#include "cu_arguments.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNED     16u /* no type of a parameter needs more */
#define EXTRA_ITEMS 5u  /* buffer, its size, end */

struct block {
    size_t size, items; /* bytes of all of it; of the list */
    void *list[];
};

static size_t values_at(size_t items)
{
    size_t end = sizeof(struct block) + items * sizeof(void *);
    return (end + ALIGNED - 1) / ALIGNED * ALIGNED;
}

static struct block *new_block(size_t items, size_t bytes)
{
    struct block *block = calloc(1, values_at(items) + bytes);
    if (block) {
        block->size = values_at(items) + bytes;
        block->items = items;
    }
    return block;
}

/* One pointer for each parameter; sizes and offsets are the image's. */
static CUresult keep_params(const struct cu_image_kernel *kernel, void *const *params,
                            struct block **out)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < kernel->nparams; i++) {
        const struct cu_image_param *at = &kernel->params[i];
        if (!params[i])
            return CUDA_ERROR_INVALID_VALUE;
        if (at->offset + at->size > bytes)
            bytes = at->offset + at->size;
    }
    struct block *block = new_block(kernel->nparams, bytes);
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint8_t *values = (uint8_t *)block + values_at(kernel->nparams);
    for (uint32_t i = 0; i < kernel->nparams; i++) {
        block->list[i] = values + kernel->params[i].offset;
        memcpy(block->list[i], params[i], kernel->params[i].size);
    }
    *out = block;
    return CUDA_SUCCESS;
}

/* A buffer of all of them. */
static CUresult keep_extra(void *const *extra, struct block **out)
{
    const void *buffer = NULL;
    const size_t *size = NULL;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2)
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = extra[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    if (!buffer || !size || *size > CU_IMAGE_PARAMS)
        return CUDA_ERROR_INVALID_VALUE;
    struct block *block = new_block(EXTRA_ITEMS, ALIGNED + *size);
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t *kept_size = (size_t *)((uint8_t *)block + values_at(EXTRA_ITEMS));
    uint8_t *values = (uint8_t *)kept_size + ALIGNED;
    *kept_size = *size;
    memcpy(values, buffer, *size);
    void *list[EXTRA_ITEMS] = {CU_LAUNCH_PARAM_BUFFER_POINTER, values, CU_LAUNCH_PARAM_BUFFER_SIZE,
                               kept_size, CU_LAUNCH_PARAM_END};
    memcpy(block->list, list, sizeof list);
    *out = block;
    return CUDA_SUCCESS;
}

CUresult cu_arguments_keep(CUDA_KERNEL_NODE_PARAMS_v2 *params, void **owned)
{
    const struct CUfunc_st *f = params->func ? params->func : (CUfunction)params->kern;
    struct block *block = NULL;
    if (params->extra)
        CU_TRY(keep_extra(params->extra, &block));
    else if (params->kernelParams && f->kernel)
        CU_TRY(keep_params(f->kernel, params->kernelParams, &block));
    void **list = block ? block->list : NULL;
    params->kernelParams = params->extra ? NULL : list;
    params->extra = params->extra ? list : NULL;
    *owned = block;
    return CUDA_SUCCESS;
}

CUresult cu_arguments_copy(CUDA_KERNEL_NODE_PARAMS_v2 *params, const void *from, void **owned)
{
    const struct block *old = from;
    *owned = NULL;
    if (!old)
        return CUDA_SUCCESS;
    struct block *block = malloc(old->size);
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(block, old, old->size);
    for (size_t i = 0; i < old->items; i++) {
        size_t offset = (uintptr_t)old->list[i] - (uintptr_t)old; /* huge: it points elsewhere */
        if (offset < old->size)
            block->list[i] = (uint8_t *)block + offset;
    }
    params->kernelParams = params->kernelParams ? block->list : NULL;
    params->extra = params->extra ? block->list : NULL;
    *owned = block;
    return CUDA_SUCCESS;
}
