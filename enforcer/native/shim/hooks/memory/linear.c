/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of plain device memory: linear, with a pitch, managed; the first versions too.
 */
#include "hooks/memory/charge.h"
#include "memory/pools.h"

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    CHARGED(size, QG_REAL(cuMemAlloc_v2)(pointer, size), QG_KIND_POINTER, *pointer, size);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int size)
{
    CHARGED(size, QG_REAL(cuMemAlloc)(pointer, size), QG_KIND_POINTER, *pointer, size);
}

/* The pitch is not known before the call. Drivers align rows to 512 bytes; the true pitch is
 * charged afterwards. */
static uint64_t pitched(size_t width, size_t height)
{
    uint64_t size;
    return __builtin_mul_overflow((width + 511) & ~(uint64_t)511, (uint64_t)height, &size)
               ? UINT64_MAX
               : size;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                            unsigned int element)
{
    CHARGED(pitched(width, height),
            QG_REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element), QG_KIND_POINTER,
            *pointer, (uint64_t)*pitch * height);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width,
                         unsigned int height, unsigned int element)
{
    CHARGED(pitched(width, height),
            QG_REAL(cuMemAllocPitch)(pointer, pitch, width, height, element), QG_KIND_POINTER,
            *pointer, (uint64_t)*pitch * height);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags)
{
    if (managed_free())
        return QG_REAL(cuMemAllocManaged)(pointer, size, flags);
    CHARGED(size, QG_REAL(cuMemAllocManaged)(pointer, size, flags), QG_KIND_POINTER, *pointer,
            size);
}

/* The address may belong to a pool: then the pool gets it back, and the call has waited for the
 * work. */
#define FREE(name, type)                                                                           \
    CUresult name(type pointer)                                                                    \
    {                                                                                              \
        struct qg_entry piece;                                                                     \
        if (!ruled() || !pointer || !qg_detach(QG_KIND_PIECE, pointer, &piece)) {                  \
            FREED(QG_KIND_POINTER, pointer, QG_REAL(name)(pointer));                               \
        }                                                                                          \
        CUresult result = DIRECT(QG_REAL(name)(pointer));                                          \
        if (result == CUDA_SUCCESS)                                                                \
            qg_piece_freed(&piece);                                                                \
        else                                                                                       \
            qg_reattach(&piece);                                                                   \
        qg_pools_stale();                                                                          \
        qg_pools_poll();                                                                           \
        return result;                                                                             \
    }

FREE(cuMemFree_v2, CUdeviceptr)
FREE(cuMemFree, CUdeviceptr_v1)
