/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of arrays and mipmapped arrays. Only the driver knows their size. It reports the size of
 * arrays without memory. So a like array without memory is made, its size asked, and it is
 * destroyed. A driver before 11.6 cannot do that; then the size is estimated.
 */
#include "hooks/memory/charge.h"

/* memory comes by cuMemMapArrayAsync */
#define UNBACKED (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

static uint64_t element_bytes(CUarray_format format, unsigned int channels)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2ull * channels;
    default: /* 32 bit, and the block and video formats, of which none needs more per texel */
        return 4ull * channels;
    }
}

/* All levels of a mipmapped array together are less than 4/3 of the first in two dimensions, 2 in
 * one. */
static uint64_t size_guessed(const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels)
{
    uint64_t size = element_bytes(wanted->Format, wanted->NumChannels ? wanted->NumChannels : 1);
    uint64_t sides[] = {wanted->Width, wanted->Height ? wanted->Height : 1,
                        wanted->Depth ? wanted->Depth : 1};
    for (unsigned i = 0; i < 3; i++)
        if (__builtin_mul_overflow(size, sides[i], &size))
            return UINT64_MAX;
    uint64_t more = levels > 1 ? (wanted->Height ? size / 3 : size) : 0;
    return __builtin_add_overflow(size, more, &size) ? UINT64_MAX : size;
}

static bool size_from_driver(const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels,
                             CUdevice device, size_t *size)
{
    CUDA_ARRAY3D_DESCRIPTOR like = *wanted;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
    CUmipmappedArray mipmap;
    CUarray array;
    CUresult result;
    like.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (levels) {
        if (!QG_HAVE(cuMipmappedArrayGetMemoryRequirements) ||
            QG_REAL(cuMipmappedArrayCreate)(&mipmap, &like, levels) != CUDA_SUCCESS)
            return false;
        result = QG_REAL(cuMipmappedArrayGetMemoryRequirements)(&needs, mipmap, device);
        QG_REAL(cuMipmappedArrayDestroy)(mipmap);
    } else {
        if (!QG_HAVE(cuArrayGetMemoryRequirements) ||
            QG_REAL(cuArray3DCreate_v2)(&array, &like) != CUDA_SUCCESS)
            return false;
        result = QG_REAL(cuArrayGetMemoryRequirements)(&needs, array, device);
        QG_REAL(cuArrayDestroy)(array);
    }
    *size = needs.size;
    return result == CUDA_SUCCESS && needs.size;
}

/* levels 0: a plain array. */
static uint64_t size_of(const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels)
{
    CUdevice device;
    size_t size;
    if (wanted->Flags & UNBACKED)
        return 0;
    qg_depth++;
    bool known = QG_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS &&
                 size_from_driver(wanted, levels, device, &size);
    qg_depth--;
    return known ? size : size_guessed(wanted, levels);
}

#define FLAT                                                                                       \
    (&(CUDA_ARRAY3D_DESCRIPTOR){.Width = wanted->Width,                                            \
                                .Height = wanted->Height,                                          \
                                .Format = wanted->Format,                                          \
                                .NumChannels = wanted->NumChannels})
#define OLD                                                                                        \
    (&(CUDA_ARRAY3D_DESCRIPTOR){.Width = wanted->Width,                                            \
                                .Height = wanted->Height,                                          \
                                .Depth = wanted->Depth,                                            \
                                .Format = wanted->Format,                                          \
                                .NumChannels = wanted->NumChannels,                                \
                                .Flags = wanted->Flags})

#define ARRAY(name, descriptor, full)                                                              \
    CUresult name(CUarray *array, const descriptor *wanted)                                        \
    {                                                                                              \
        if (!wanted || !ruled())                                                                   \
            return QG_REAL(name)(array, wanted);                                                   \
        uint64_t bytes = size_of(full, 0);                                                         \
        CHARGED(bytes, QG_REAL(name)(array, wanted), QG_KIND_ARRAY, *array, bytes);                \
    }

ARRAY(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, FLAT)
ARRAY(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, FLAT)
ARRAY(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, OLD)
ARRAY(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, wanted)

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted,
                                unsigned int levels)
{
    if (!wanted || !ruled())
        return QG_REAL(cuMipmappedArrayCreate)(array, wanted, levels);
    uint64_t bytes = size_of(wanted, levels ? levels : 1);
    CHARGED(bytes, QG_REAL(cuMipmappedArrayCreate)(array, wanted, levels), QG_KIND_ARRAY, *array,
            bytes);
}

#define DESTROYS(name, type)                                                                       \
    CUresult name(type array)                                                                      \
    {                                                                                              \
        struct qg_entry entry;                                                                     \
        if (!ruled() || !qg_detach(QG_KIND_ARRAY, key_of(array), &entry))                          \
            return QG_REAL(name)(array);                                                           \
        CUresult result = DIRECT(QG_REAL(name)(array));                                            \
        if (result != CUDA_SUCCESS) {                                                              \
            qg_reattach(&entry);                                                                   \
            return result;                                                                         \
        }                                                                                          \
        qg_commit(&entry);                                                                         \
        if (!entry.size)                                                                           \
            qg_handle_free_ties(key_of(array));                                                    \
        return result;                                                                             \
    }

DESTROYS(cuArrayDestroy, CUarray)
DESTROYS(cuMipmappedArrayDestroy, CUmipmappedArray)
