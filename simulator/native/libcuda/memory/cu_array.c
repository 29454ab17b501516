/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays and mipmapped arrays: memory with a size of the card's own choosing (rows of whole 512
 * bytes, planes of whole 64 KiB, levels that do not shrink below one such). No texture reads them
 * here; their use is to be counted.
 */
#include "cu_alloc.h"
#include "cu_context.h"

#define ROW      512ull
#define PLANE    65536ull
#define UNBACKED (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

struct CUarray_st {
    enum cu_magic magic;
    bool mipmap;
    unsigned flags;
    CUcontext ctx;
    uint64_t size, id;
};

static uint64_t texel(CUarray_format format, unsigned channels)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2ull * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4ull * channels;
    default:
        return 0; /* block and video formats are not there */
    }
}

static bool up(uint64_t *value, uint64_t unit)
{
    return !__builtin_add_overflow(*value, unit - 1, value) &&
           (*value = *value / unit * unit, true);
}

static bool level_size(const CUDA_ARRAY3D_DESCRIPTOR *want, unsigned level, uint64_t *size)
{
    uint64_t sides[3] = {want->Width >> level, want->Height >> level, want->Depth >> level};
    const uint64_t first[3] = {want->Width, want->Height, want->Depth};
    for (unsigned i = 0; i < 3; i++)
        if (!sides[i])
            sides[i] = 1;
    if (want->Flags & CUDA_ARRAY3D_LAYERED) /* layers do not shrink */
        sides[2] = first[2] ? first[2] : 1;
    *size = texel(want->Format, want->NumChannels);
    return !__builtin_mul_overflow(*size, sides[0], size) && up(size, ROW) &&
           !__builtin_mul_overflow(*size, sides[1], size) && up(size, PLANE) &&
           !__builtin_mul_overflow(*size, sides[2], size);
}

static CUresult create(void **out, const CUDA_ARRAY3D_DESCRIPTOR *want, unsigned levels,
                       bool mipmap)
{
    struct sim_rep rep = {0};
    CUcontext ctx;
    uint64_t size = 0, part;
    CU_TRY(cu_current(&ctx));
    if (!out || !want || !want->Width || !texel(want->Format, want->NumChannels) || !levels)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned level = 0; level < levels && level < 32; level++)
        if (!level_size(want, level, &part) || __builtin_add_overflow(size, part, &size))
            return CUDA_ERROR_OUT_OF_MEMORY;
    struct CUarray_st *made = cu_handle_new(CU_ARRAY);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = want->Flags & UNBACKED
                          ? CUDA_SUCCESS
                          : cu_request(SIM_REQ_ALLOC, ctx->id, size, &rep, sizeof rep, NULL, 0);
    if (status != CUDA_SUCCESS) {
        cu_handle_free(CU_ARRAY, made);
        return status;
    }
    made->mipmap = mipmap;
    made->flags = want->Flags;
    made->ctx = ctx;
    made->size = size;
    made->id = rep.a;
    *out = made;
    return CUDA_SUCCESS;
}

static CUresult destroy(struct CUarray_st *array, bool mipmap)
{
    struct sim_rep rep;
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_ARRAY, array) || array->mipmap != mipmap)
        return CUDA_ERROR_INVALID_HANDLE;
    if (array->id && cu_handle_ok(CU_CTX, array->ctx))
        cu_request(SIM_REQ_FREE, array->ctx->id, array->id, &rep, sizeof rep, NULL, 0);
    cu_vmm_holder_gone(array);
    cu_handle_free(CU_ARRAY, array);
    return CUDA_SUCCESS;
}

/* As with the real driver: only of arrays without memory of their own. */
static CUresult needs(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, const struct CUarray_st *array,
                      bool mipmap)
{
    CU_TRY(cu_ready());
    if (!out || !cu_handle_ok(CU_ARRAY, array) || array->mipmap != mipmap ||
        !(array->flags & CUDA_ARRAY3D_DEFERRED_MAPPING))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = array->size, .alignment = PLANE};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *want)
{
    return create((void **)out, want, 1, false);
}

CUresult CUDAAPI cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *want)
{
    if (!want)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = want->Width,
                                    .Height = want->Height,
                                    .Format = want->Format,
                                    .NumChannels = want->NumChannels};
    return create((void **)out, &full, 1, false);
}

CUresult CUDAAPI cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *want)
{
    if (!want)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = want->Width,
                                    .Height = want->Height,
                                    .Depth = want->Depth,
                                    .Format = want->Format,
                                    .NumChannels = want->NumChannels,
                                    .Flags = want->Flags};
    return create((void **)out, &full, 1, false);
}

CUresult CUDAAPI cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *want)
{
    if (!want)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY_DESCRIPTOR wide = {want->Width, want->Height, want->Format, want->NumChannels};
    return cuArrayCreate_v2(out, &wide);
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *want,
                                        unsigned int levels)
{
    return create((void **)out, want, levels, true);
}

CUresult CUDAAPI cuArrayDestroy(CUarray array)
{
    return destroy((void *)array, false);
}
CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return destroy((void *)array, true);
}

CUresult CUDAAPI cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array,
                                              CUdevice device)
{
    (void)device;
    return needs(out, (void *)array, false);
}

CUresult CUDAAPI cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out,
                                                       CUmipmappedArray array, CUdevice device)
{
    (void)device;
    return needs(out, (void *)array, true);
}
