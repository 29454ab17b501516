/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of physical memory by handle: creations, imports, mappings, tiles of sparse arrays.
 * multicast.c has the other uses that keep it alive.
 */
#include "hooks/memory/charge.h"
#include "memory/ipc.h"

#include <sys/stat.h>

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *property, unsigned long long flags)
{
    if (!ruled() || !property || !place_counts(&property->location, property->type))
        return QG_REAL(cuMemCreate)(handle, size, property, flags);
    struct qg_card *card = card_at(&property->location);
    return QG_ROOMY(card, size,
                    ATTEMPT(card, size, QG_REAL(cuMemCreate)(handle, size, property, flags),
                            qg_charge(card, size, QG_KIND_HANDLE, *handle, 0, size)));
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct qg_entry last;
    bool governed = ruled(), gone = governed && qg_handle_last(handle, &last);
    CUresult result = QG_REAL(cuMemRelease)(handle);
    if (gone && result == CUDA_SUCCESS)
        qg_commit(&last);
    else if (gone)
        qg_reattach(&last);
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

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    uint64_t end;
    bool governed = ruled();
    if (governed && !__builtin_add_overflow(offset, size, &end) && !qg_handle_grows(handle, end))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = QG_REAL(cuMemMap)(pointer, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && governed)
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

/* ---- between processes ---- */

/* Name of the file behind a descriptor, the same in every process that received it. 0 for a
 * character device of the driver: that is one file for all memory, and has its name by its open
 * file (ipc.h). */
static uint64_t file_name(int fd)
{
    struct stat st;
    struct {
        uint64_t dev, ino, rdev; /* other versions of the shim in the job take the same */
    } id = {0};
    if (fstat(fd, &st) != 0 || S_ISCHR(st.st_mode))
        return 0;
    id.dev = st.st_dev;
    id.rdev = st.st_rdev;
    id.ino = st.st_ino;
    return qg_share_name(&id, sizeof(id));
}

static uint64_t handle_name(const void *handle, CUmemAllocationHandleType type, bool by_value)
{
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return file_name(by_value ? (int)(intptr_t)handle : *(const int *)handle);
    if (type == CU_MEM_HANDLE_TYPE_FABRIC)
        return qg_share_name(handle, sizeof(CUmemFabricHandle));
    return 0;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    CUresult result = QG_REAL(cuMemExportToShareableHandle)(out, handle, type, flags);
    bool file = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (result == CUDA_SUCCESS && ruled())
        qg_share_this(QG_KIND_HANDLE, handle, handle_name(out, type, false),
                      file ? *(const int *)out : -1);
    return result;
}

/* The card of an imported handle. NULL: memory of the host, or of a card of another node or not
 * visible to this process. */
static struct qg_card *card_of_import(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp about = {0};
    CUdevice ordinal;
    if (DIRECT(QG_REAL(cuMemGetAllocationPropertiesFromHandle)(&about, handle)) != CUDA_SUCCESS)
        return qg_card_current();
    if (about.location.type == CU_MEM_LOCATION_TYPE_INVISIBLE ||
        !place_counts(&about.location, about.type))
        return NULL;
    return qg_place_ordinal(&about.location, &ordinal) && ordinal >= 0 ? qg_card_by_ordinal(ordinal)
                                                                       : qg_card_current();
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *from,
                                        CUmemAllocationHandleType type)
{
    uint64_t name = ruled() ? handle_name(from, type, true) : 0;
    CUresult result = QG_REAL(cuMemImportFromShareableHandle)(handle, from, type);
    if (result != CUDA_SUCCESS || !ruled())
        return result;
    struct qg_card *card = card_of_import(*handle);
    if (card) { /* otherwise mapping it here uses no card of this process */
        if (!name && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
            name = qg_share_name_of_file(card, (int)(intptr_t)from);
        uint16_t share = name ? qg_share_known(card, name) : 0;
        qg_handle_foreign(card, *handle, share);
    }
    return result;
}

/* ---- other uses of a handle ---- */

static void tie_arrays(const CUarrayMapInfo *list, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++) {
        const CUarrayMapInfo *one = &list[i];
        uint64_t handle = one->memHandle.memHandle;
        if (one->memOperationType == CU_MEM_OPERATION_TYPE_MAP)
            qg_handle_tie(handle, key_of(one->resource.array), handle, 0);
    }
}

/* Which tiles a later unmapping leaves mapped is not followed: the memory counts until the array is
 * destroyed. */
#define MAPS_ARRAYS(name)                                                                          \
    CUresult name(CUarrayMapInfo *list, unsigned int count, CUstream stream)                       \
    {                                                                                              \
        CUresult result = QG_REAL(name)(list, count, stream);                                      \
        if (result == CUDA_SUCCESS && ruled())                                                     \
            tie_arrays(list, count);                                                               \
        return result;                                                                             \
    }

MAPS_ARRAYS(cuMemMapArrayAsync)
MAPS_ARRAYS(cuMemMapArrayAsync_ptsz)
