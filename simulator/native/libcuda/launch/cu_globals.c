/* SPDX-License-Identifier: Apache-2.0
 *
 * Variables of modules (__device__, __constant__, __managed__): one piece of the card's memory for
 * each context that uses the module, and one of managed memory, which NVIDIA's runtime asks for
 * before there is a context. No variable lies at the beginning of its piece, so that cuMemFree
 * refuses its address.
 */
#include "cu_alloc.h"
#include "cu_launch.h"

#include <stdlib.h>

#define ALIGN 256u

struct cu_globals {
    struct cu_globals *next;
    CUcontext ctx; /* of managed ones: that is charged for them; NULL: none yet */
    uint32_t id;   /* of the context, for the same handle may become another one's */
    bool managed;
    CUdeviceptr base;
    uint64_t charge;
};

static bool alive(const struct cu_globals *globals)
{
    return globals->ctx && cu_handle_ok(CU_CTX, globals->ctx) && globals->ctx->id == globals->id;
}

/* Managed variables are there once for all contexts. */
static struct cu_globals *present(CUmodule module, CUcontext ctx, bool managed)
{
    for (struct cu_globals *g = module->globals; g; g = g->next)
        if (g->managed == managed && (managed || (alive(g) && g->ctx == ctx)))
            return g;
    return NULL;
}

static bool is_managed(const struct cu_image_global *global)
{
    return global->space == CU_IMAGE_MANAGED;
}

static uint64_t lay_out(struct cu_image *image, bool managed)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < image->nglobals; i++) {
        struct cu_image_global *global = &image->globals[i];
        if (is_managed(global) != managed)
            continue;
        global->offset = (end ? end : ALIGN);
        end = (global->offset + global->size + ALIGN - 1) / ALIGN * ALIGN;
    }
    return end;
}

static CUresult initialise(const struct cu_image *image, bool managed, CUdeviceptr base)
{
    for (uint32_t i = 0; i < image->nglobals; i++) {
        const struct cu_image_global *global = &image->globals[i];
        if (is_managed(global) == managed && global->init)
            CU_TRY(cu_memory_copy(base + global->offset, (CUdeviceptr)global->init, global->size));
    }
    return CUDA_SUCCESS;
}

static CUresult new_piece(CUmodule module, CUcontext ctx, bool managed, uint64_t bytes)
{
    struct cu_globals *globals = calloc(1, sizeof *globals);
    if (!globals)
        return CUDA_ERROR_OUT_OF_MEMORY;
    globals->next = module->globals;
    globals->managed = managed;
    globals->ctx = managed ? NULL : ctx;
    globals->id = managed ? 0 : ctx->id;
    CUresult status = managed ? cu_memory_managed_new(&globals->base, bytes)
                              : cu_memory_new(&globals->base, bytes, DEVICE, ctx);
    if (status == CUDA_SUCCESS) {
        status = initialise(&module->image, managed, globals->base);
        if (status != CUDA_SUCCESS)
            cu_memory_end(globals->base, globals->ctx);
    }
    if (status == CUDA_SUCCESS)
        module->globals = globals;
    else
        free(globals);
    return status;
}

static CUresult load(CUmodule module, CUcontext ctx, bool managed)
{
    uint64_t bytes = lay_out(&module->image, managed);
    if (!bytes)
        return CUDA_SUCCESS;
    if (!present(module, ctx, managed))
        CU_TRY(new_piece(module, ctx, managed, bytes));
    struct cu_globals *globals = present(module, ctx, managed);
    if (!managed || !ctx || alive(globals))
        return CUDA_SUCCESS;
    CU_TRY(cu_memory_charge(&globals->charge, bytes, ctx));
    globals->ctx = ctx;
    globals->id = ctx->id;
    return CUDA_SUCCESS;
}

CUresult cu_globals_load(CUmodule module, CUcontext ctx)
{
    pthread_mutex_lock(&module->lock);
    CUresult status = ctx ? load(module, ctx, false) : CUDA_SUCCESS;
    if (status == CUDA_SUCCESS)
        status = load(module, ctx, true);
    pthread_mutex_unlock(&module->lock);
    return status;
}

CUresult cu_globals_use(CUmodule module, CUcontext ctx)
{
    bool takes = ctx && module->is_library && module->image.nglobals;
    return takes ? cu_globals_load(module, ctx) : CUDA_SUCCESS;
}

void cu_globals_unload(CUmodule module)
{
    while (module->globals) {
        struct cu_globals *globals = module->globals;
        if (globals->managed)
            cu_memory_end(globals->base, NULL);
        if (globals->managed && alive(globals))
            cu_memory_discharge(globals->charge, globals->ctx);
        if (!globals->managed && alive(globals))
            cu_memory_end(globals->base, globals->ctx);
        module->globals = globals->next;
        free(globals);
    }
}

CUresult cu_globals_find(CUdeviceptr *ptr, size_t *bytes, CUmodule module, CUcontext ctx,
                         const char *name, bool managed_only)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    if (module->misfit)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    const struct cu_image_global *global = cu_image_global(&module->image, name);
    if (!global || (managed_only && !is_managed(global)))
        return CUDA_ERROR_NOT_FOUND;
    CU_TRY(cu_globals_load(module, ctx));
    pthread_mutex_lock(&module->lock);
    const struct cu_globals *globals = present(module, ctx, is_managed(global));
    if (globals && ptr)
        *ptr = globals->base + global->offset;
    pthread_mutex_unlock(&module->lock);
    if (bytes)
        *bytes = global->size;
    return globals ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
