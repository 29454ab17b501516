/* SPDX-License-Identifier: Apache-2.0
 *
 * Green contexts: a part of a card's multiprocessors with a handle of its own. It holds a reference
 * to the primary context, and all its work and memory are the primary one's. How many
 * multiprocessors it has is kept and told; the model knows kernels only one after the other, so it
 * changes no duration.
 */
#include "cu_context.h"
#include "cu_stream.h"

#include <stdlib.h>
#include <string.h>

#define MULTIPROCESSORS 132u
#define GROUP           8u /* multiprocessors: least number and unit at compute capability 9.0 */

struct CUgreenCtx_st {
    enum cu_magic magic;
    CUcontext context, primary;
    CUdevice device;
    uint64_t id;
    unsigned count; /* of multiprocessors */
};

struct CUdevResourceDesc_st {
    unsigned count;
};

bool cu_green_ok(CUgreenCtx green)
{
    return cu_handle_ok(CU_GREEN, green);
}

CUcontext cu_green_context(CUgreenCtx green)
{
    return green->context;
}

CUresult cu_green_primary(CUgreenCtx green, CUcontext *primary)
{
    if (!cu_green_ok(green) || !cu_handle_ok(CU_CTX, green->primary))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *primary = green->primary;
    return CUDA_SUCCESS;
}

static CUresult resource(CUdevResource *out, CUdevResourceType type, unsigned count)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    memset(out, 0, sizeof *out);
    out->type = type;
    out->sm.smCount = count;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetDevResource(CUdevice dev, CUdevResource *out, CUdevResourceType type)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    return resource(out, type, MULTIPROCESSORS);
}

CUresult CUDAAPI cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *out,
                                          CUdevResourceType type)
{
    CU_TRY(cu_ready());
    return cu_green_ok(green) ? resource(out, type, green->count) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuCtxGetDevResource(CUcontext ctx, CUdevResource *out, CUdevResourceType type)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_CTX, ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    return ctx->green ? cuGreenCtxGetDevResource(ctx->green, out, type)
                      : resource(out, type, MULTIPROCESSORS);
}

CUresult CUDAAPI cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *groups,
                                             const CUdevResource *input, CUdevResource *remaining,
                                             unsigned int flags, unsigned int least)
{
    (void)flags;
    CU_TRY(cu_ready());
    if (!groups || !input || input->type != CU_DEV_RESOURCE_TYPE_SM || least > input->sm.smCount)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned each = least < GROUP ? GROUP : (least + GROUP - 1) / GROUP * GROUP,
             possible = input->sm.smCount / each;
    if (!possible)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (!result || *groups > possible)
        *groups = possible;
    for (unsigned i = 0; result && i < *groups; i++)
        CU_TRY(resource(&result[i], CU_DEV_RESOURCE_TYPE_SM, each));
    return remaining
               ? resource(remaining, CU_DEV_RESOURCE_TYPE_SM, input->sm.smCount - *groups * each)
               : CUDA_SUCCESS;
}

/* Descriptors have no end in CUDA either. */
CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources,
                                           unsigned int n)
{
    unsigned count = 0;
    CU_TRY(cu_ready());
    for (unsigned i = 0; resources && i < n; i++)
        count += resources[i].type == CU_DEV_RESOURCE_TYPE_SM ? resources[i].sm.smCount : 0;
    if (!out || !count)
        return CUDA_ERROR_INVALID_VALUE;
    CUdevResourceDesc made = malloc(sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->count = count;
    *out = made;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc resources, CUdevice dev,
                                  unsigned int flags)
{
    static _Atomic uint64_t ids;
    struct cu_device *device;
    CUcontext primary;
    CU_TRY(cu_device_of(dev, &device));
    if (!out || !resources || flags & ~(unsigned)CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cuDevicePrimaryCtxRetain(&primary, dev));
    CUgreenCtx green = cu_handle_new(CU_GREEN);
    CUcontext context = green ? cu_handle_new(CU_CTX) : NULL;
    if (!context) {
        if (green)
            cu_handle_free(CU_GREEN, green);
        cuDevicePrimaryCtxRelease_v2(dev);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    green->context = context;
    green->primary = primary;
    green->device = dev;
    green->count = resources->count;
    green->id = 1ull << 32 | ++ids;
    context->device = device;
    context->green = green;
    *out = green;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green)
{
    CU_TRY(cu_ready());
    if (!cu_green_ok(green))
        return CUDA_ERROR_INVALID_HANDLE;
    CUdevice device = green->device;
    /* else it was reset, and all references with it */
    bool lives = cu_handle_ok(CU_CTX, green->primary);
    cu_handle_free(CU_CTX, green->context);
    cu_handle_free(CU_GREEN, green);
    return lives ? cuDevicePrimaryCtxRelease_v2(device) : CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green)
{
    CU_TRY(cu_ready());
    if (!out || !cu_green_ok(green))
        return CUDA_ERROR_INVALID_VALUE;
    *out = green->context;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id)
{
    CU_TRY(cu_ready());
    if (!id || !cu_green_ok(green))
        return CUDA_ERROR_INVALID_VALUE;
    *id = green->id;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned int flags,
                                        int priority)
{
    CUcontext primary;
    CU_TRY(cu_ready());
    if (!out || flags != CU_STREAM_NON_BLOCKING || !cu_green_ok(green))
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_green_primary(green, &primary));
    CU_TRY(cu_stream_new(primary, flags, out));
    (*out)->green = green;
    (*out)->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *green)
{
    CUcontext ctx;
    CU_TRY(cu_enter(__func__));
    return green ? cuStreamGetCtx_v2(stream, &ctx, green) : CUDA_ERROR_INVALID_VALUE;
}
