/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of every function that takes or returns device memory, and of those that tell how much there is.
 */
#include "memory.h"
#include "streams.h"
#include "window.h"

static bool ruled(void)
{
    return qg_info.mode != QG_MODE_NONE && !qg_depth;
}


/* Brackets an allocation whose card is that of the current context. Without one the driver says so itself. */
#define CHARGED(size, call, kind, key, actual)                                \
    CUcontext qg_context = NULL;                                              \
    if (!ruled() || QG_REAL(cuCtxGetCurrent)(&qg_context) || !qg_context)     \
        return call;                                                          \
    struct qg_card *qg_card = qg_card_current();                              \
    uint64_t qg_size = (size);                                                \
    if (!qg_reserve(qg_card, qg_size))                                        \
        return CUDA_ERROR_OUT_OF_MEMORY;                                      \
    qg_depth++;                                                               \
    CUresult qg_result = call;                                                \
    qg_depth--;                                                               \
    if (qg_result != CUDA_SUCCESS)                                            \
        qg_unreserve(qg_card, qg_size);                                       \
    else                                                                      \
        qg_charge(qg_card, qg_size, kind, (uint64_t)(uintptr_t)(key), (uint64_t)(uintptr_t)qg_context, actual); \
    return qg_result

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    CHARGED(size, QG_REAL(cuMemAlloc_v2)(pointer, size), QG_KIND_POINTER, *pointer, size);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int size)
{
    CHARGED(size, QG_REAL(cuMemAlloc)(pointer, size), QG_KIND_POINTER, *pointer, size);
}

/* Before the call nobody knows the pitch; drivers align rows to 512 bytes, and the true pitch is charged. */
static uint64_t pitched(size_t width, size_t height)
{
    uint64_t size;
    return __builtin_mul_overflow((width + 511) & ~(uint64_t)511, (uint64_t)height, &size) ? UINT64_MAX : size;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    CHARGED(pitched(width, height), QG_REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element),
            QG_KIND_POINTER, *pointer, (uint64_t)*pitch * height);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height,
                         unsigned int element)
{
    CHARGED(pitched(width, height), QG_REAL(cuMemAllocPitch)(pointer, pitch, width, height, element),
            QG_KIND_POINTER, *pointer, (uint64_t)*pitch * height);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags)
{
    CHARGED(size, QG_REAL(cuMemAllocManaged)(pointer, size, flags), QG_KIND_POINTER, *pointer, size);
}

/* In a capture nothing is allocated: the call becomes a node of a graph. */
static bool captured(CUstream stream, bool ptsz)
{
    if (!__atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE))
        return false;
    struct qg_stream *record = qg_stream_of(stream, ptsz);
    return record && qg_stream_captures(record);
}

#define ASYNC(name, parameters, arguments, ptsz)                               \
    CUresult name parameters                                                   \
    {                                                                          \
        if (!ruled() || captured(stream, ptsz))                                \
            return QG_REAL(name) arguments;                                    \
        CHARGED(size, QG_REAL(name) arguments, QG_KIND_POINTER, *pointer, size); \
    }

ASYNC(cuMemAllocAsync, (CUdeviceptr * pointer, size_t size, CUstream stream), (pointer, size, stream), false)
ASYNC(cuMemAllocAsync_ptsz, (CUdeviceptr * pointer, size_t size, CUstream stream), (pointer, size, stream), true)
ASYNC(cuMemAllocFromPoolAsync, (CUdeviceptr * pointer, size_t size, CUmemoryPool pool, CUstream stream),
      (pointer, size, pool, stream), false)
ASYNC(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr * pointer, size_t size, CUmemoryPool pool, CUstream stream),
      (pointer, size, pool, stream), true)

/* Brackets a release. Taken out first: the address may be handed out again before the driver returns to us. */
#define FREED(kind, key, call)                                                 \
    struct qg_entry qg_entry;                                                  \
    if (!ruled() || !qg_take(kind, (uint64_t)(uintptr_t)(key), &qg_entry))     \
        return call;                                                           \
    qg_depth++;                                                                \
    CUresult qg_result = call;                                                 \
    qg_depth--;                                                                \
    if (qg_result == CUDA_SUCCESS)                                             \
        qg_settle(&qg_entry);                                                  \
    else                                                                       \
        qg_restore(&qg_entry);                                                 \
    return qg_result

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    FREED(QG_KIND_POINTER, pointer, QG_REAL(cuMemFree_v2)(pointer));
}

CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
    FREED(QG_KIND_POINTER, pointer, QG_REAL(cuMemFree)(pointer));
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    if (captured(stream, false))
        return QG_REAL(cuMemFreeAsync)(pointer, stream);
    FREED(QG_KIND_POINTER, pointer, QG_REAL(cuMemFreeAsync)(pointer, stream));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    if (captured(stream, true))
        return QG_REAL(cuMemFreeAsync_ptsz)(pointer, stream);
    FREED(QG_KIND_POINTER, pointer, QG_REAL(cuMemFreeAsync_ptsz)(pointer, stream));
}

/* ---- physical handles ------------------------------------------------------------------------------------- */

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *property,
                     unsigned long long flags)
{
    if (!ruled() || !property || property->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return QG_REAL(cuMemCreate)(handle, size, property, flags);
    struct qg_card *card = qg_card_by_ordinal(property->location.id);
    if (!qg_reserve(card, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    qg_depth++;
    CUresult result = QG_REAL(cuMemCreate)(handle, size, property, flags);
    qg_depth--;
    if (result != CUDA_SUCCESS)
        qg_unreserve(card, size);
    else
        qg_charge(card, size, QG_KIND_HANDLE, *handle, 0, size);
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct qg_entry last;
    bool governed = ruled(), gone = governed && qg_handle_last(handle, &last);
    CUresult result = QG_REAL(cuMemRelease)(handle);
    if (gone && result == CUDA_SUCCESS)
        qg_settle(&last);
    else if (gone)
        qg_restore(&last);
    else if (governed && result == CUDA_SUCCESS)
        qg_handle_release(handle);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result = QG_REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS && ruled())
        qg_handle_retain(*handle);
    return result;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    CUresult result = QG_REAL(cuMemMap)(pointer, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && ruled())
        qg_handle_map(handle, pointer, size);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    CUresult result = QG_REAL(cuMemUnmap)(pointer, size);
    if (result == CUDA_SUCCESS && ruled())
        qg_handle_unmap(pointer, size);
    return result;
}

/* ---- arrays ----------------------------------------------------------------------------------------------- */

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

static uint64_t volume(uint64_t width, uint64_t height, uint64_t depth, CUarray_format format, unsigned channels)
{
    uint64_t size = element_bytes(format, channels ? channels : 1);
    uint64_t sides[] = {width, height ? height : 1, depth ? depth : 1};
    for (unsigned i = 0; i < 3; i++)
        if (__builtin_mul_overflow(size, sides[i], &size))
            return UINT64_MAX;
    return size;
}

#define ARRAY(name, descriptor, size)                                          \
    CUresult name(CUarray *array, const descriptor *wanted)                    \
    {                                                                          \
        if (!wanted)                                                           \
            return QG_REAL(name)(array, wanted);                               \
        uint64_t bytes = (size);                                               \
        CHARGED(bytes, QG_REAL(name)(array, wanted), QG_KIND_ARRAY, *array, bytes); \
    }
#define FLAT volume(wanted->Width, wanted->Height, 1, wanted->Format, wanted->NumChannels)
#define DEEP volume(wanted->Width, wanted->Height, wanted->Depth, wanted->Format, wanted->NumChannels)

ARRAY(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, FLAT)
ARRAY(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, FLAT)
ARRAY(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, DEEP)
ARRAY(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, DEEP)

CUresult cuArrayDestroy(CUarray array)
{
    FREED(QG_KIND_ARRAY, array, QG_REAL(cuArrayDestroy)(array));
}

/* All levels of a mipmapped array together are less than 4/3 of the first in two dimensions, 2 in one. */
CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels)
{
    if (!wanted)
        return QG_REAL(cuMipmappedArrayCreate)(array, wanted, levels);
    uint64_t bytes = DEEP, more = levels > 1 ? (wanted->Height ? bytes / 3 : bytes) : 0;
    if (__builtin_add_overflow(bytes, more, &bytes))
        bytes = UINT64_MAX;
    CHARGED(bytes, QG_REAL(cuMipmappedArrayCreate)(array, wanted, levels), QG_KIND_ARRAY, *array, bytes);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    FREED(QG_KIND_ARRAY, array, QG_REAL(cuMipmappedArrayDestroy)(array));
}

/* ---- what there is ---------------------------------------------------------------------------------------- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void virtual_memory(struct qg_card *card, uint64_t *available, uint64_t *total)
{
    uint64_t cap = card ? qg_cap(card) : 0, used = card ? qg_job_used(card) : 0;
    *total = least(*total, cap);
    *available = least(*available, cap > used ? cap - used : 0);
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    CUresult result = QG_REAL(cuMemGetInfo_v2)(available, total);
    if (result == CUDA_SUCCESS && ruled()) {
        uint64_t left = *available, all = *total;
        virtual_memory(qg_card_current(), &left, &all);
        *available = left;
        *total = all;
    }
    return result;
}

CUresult cuMemGetInfo(unsigned int *available, unsigned int *total)
{
    CUresult result = QG_REAL(cuMemGetInfo)(available, total);
    if (result == CUDA_SUCCESS && ruled()) {
        uint64_t left = *available, all = *total;
        virtual_memory(qg_card_current(), &left, &all);
        *available = (unsigned int)left;
        *total = (unsigned int)all;
    }
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *total, CUdevice device)
{
    CUresult result = QG_REAL(cuDeviceTotalMem_v2)(total, device);
    struct qg_card *card = qg_card_by_ordinal(device);
    if (result == CUDA_SUCCESS && ruled())
        *total = least(*total, card ? qg_cap(card) : 0);
    return result;
}

CUresult cuDeviceTotalMem(unsigned int *total, CUdevice device)
{
    CUresult result = QG_REAL(cuDeviceTotalMem)(total, device);
    struct qg_card *card = qg_card_by_ordinal(device);
    if (result == CUDA_SUCCESS && ruled())
        *total = (unsigned int)least(*total, card ? qg_cap(card) : 0);
    return result;
}

/* ---- contexts that take their memory with them ------------------------------------------------------------ */

static void context_gone(CUcontext context)
{
    if (!qg_governed || !context)
        return;
    qg_memory_context_gone(context);
    qg_streams_context_gone(context);
    qg_window_context_gone(context);
}

/* Set apart before the call: the driver may give the same handle to another thread's new context at once. */
#define DESTROYS(name)                                                         \
    CUresult name(CUcontext context)                                           \
    {                                                                          \
        bool apart = qg_governed && !qg_depth && context;                      \
        if (apart)                                                             \
            qg_memory_context_ends(context);                                   \
        CUresult result = QG_REAL(name)(context);                              \
        if (apart && result == CUDA_SUCCESS)                                   \
            context_gone(context);                                             \
        else if (apart)                                                        \
            qg_memory_context_stays(context);                                  \
        return result;                                                         \
    }

DESTROYS(cuCtxDestroy_v2)
DESTROYS(cuCtxDestroy)

/* The primary context's handle, while it lives. */
static CUcontext primary(CUdevice device)
{
    unsigned int flags;
    int active = 0;
    CUcontext context = NULL;
    if (!qg_governed || qg_depth || QG_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS ||
        !active || QG_REAL(cuDevicePrimaryCtxRetain)(&context, device) != CUDA_SUCCESS)
        return NULL;
    if (QG_HAVE(cuDevicePrimaryCtxRelease_v2))
        QG_REAL(cuDevicePrimaryCtxRelease_v2)(device);
    else
        QG_REAL(cuDevicePrimaryCtxRelease)(device);
    return context;
}

static bool primary_active(CUdevice device)
{
    unsigned int flags;
    int active = 0;
    return QG_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active;
}

#define PRIMARY(name)                                                          \
    CUresult name(CUdevice device)                                             \
    {                                                                          \
        CUcontext context = primary(device);                                   \
        CUresult result = QG_REAL(name)(device);                               \
        if (context && result == CUDA_SUCCESS && !primary_active(device)) {    \
            qg_memory_context_ends(context);                                   \
            context_gone(context);                                             \
        }                                                                      \
        return result;                                                         \
    }

PRIMARY(cuDevicePrimaryCtxReset)
PRIMARY(cuDevicePrimaryCtxReset_v2)
PRIMARY(cuDevicePrimaryCtxRelease)
PRIMARY(cuDevicePrimaryCtxRelease_v2)
