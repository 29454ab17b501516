/* SPDX-License-Identifier: Apache-2.0
 *
 * Physical memory by handle: made, shared with other processes, and kept by what holds it. It lives
 * until its last reference and its last mapping are gone. A card's memory is kept by a context
 * here, so one of the device must exist (the current or the primary one), and the memory ends with
 * it.
 */
#include "cu_context.h"
#include "cu_stream.h"
#include "cu_vmm.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_mutex_t cu_vmm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cu_physical *physicals;
static struct tile { /* or a binding */
    const void *holder;
    uint64_t place;
    struct cu_physical *physical;
    struct tile *next;
} *tiles;
static CUmemGenericAllocationHandle last_handle = 0x76000000;

/* device: NULL: memory of the host. */
static CUresult property_ok(const CUmemAllocationProp *prop, struct cu_device **device)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUdevice ordinal;
    *device = NULL;
    if (cu_on_host(&prop->location)) /* only a NUMA node's can be shared */
        return prop->requestedHandleTypes && prop->location.type == CU_MEM_LOCATION_TYPE_HOST
                   ? CUDA_ERROR_INVALID_VALUE
                   : CUDA_SUCCESS;
    if (prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA || /* a node that is not there */
        prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
        return CUDA_ERROR_INVALID_VALUE;
    if (cu_on_device(&prop->location, &ordinal))
        return cu_device_of(ordinal, device);
    return prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                              : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop,
                                               CUmemAllocationGranularity_flags option)
{
    struct cu_device *device;
    CU_TRY(cu_ready());
    if (!out || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                 option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(property_ok(prop, &device));
    *out = CU_VMM_GRANULARITY;
    return CUDA_SUCCESS;
}

/* Contents that other processes can map: a file, with the description after them. */
static int shared_file(uint64_t size, const struct cu_device *device, uint32_t ctx, uint64_t id)
{
    struct cu_export end = {.magic = CU_EXPORT_PHYSICAL,
                            .index = device ? device->info.index : CU_EXPORT_OF_HOST,
                            .size = size,
                            .id = id,
                            .ctx = ctx};
    int file = memfd_create("qgpu-sim-memory", MFD_CLOEXEC);
    if (file >= 0 && (ftruncate(file, (off_t)(size + sizeof end)) != 0 ||
                      pwrite(file, &end, sizeof end, (off_t)size) != (ssize_t)sizeof end)) {
        close(file);
        return -1;
    }
    return file;
}

static struct cu_physical *new_physical(uint64_t size, int file)
{
    struct cu_physical *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->size = size;
    made->file = file;
    made->refs = 1;
    if (file < 0) {
        made->contents = cu_alloc_reserve(size, PROT_READ | PROT_WRITE);
    } else {
        void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
        made->contents = map == MAP_FAILED ? NULL : map;
    }
    if (made->contents)
        return made;
    free(made);
    return NULL;
}

static CUmemGenericAllocationHandle enlist(struct cu_physical *made)
{
    pthread_mutex_lock(&cu_vmm_lock);
    CUmemGenericAllocationHandle handle = made->handle = ++last_handle;
    made->next = physicals;
    physicals = made;
    pthread_mutex_unlock(&cu_vmm_lock);
    return handle;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                             const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct cu_device *device;
    struct sim_rep rep = {0}, ignored;
    CUcontext ctx = NULL;
    CU_TRY(cu_ready());
    if (!handle || !cu_vmm_whole(size) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(property_ok(prop, &device));
    if (device) {
        CU_TRY(cu_keeper(device, &ctx));
        CU_TRY(cu_request(SIM_REQ_ALLOC, ctx->id, size, &rep, sizeof rep, NULL, 0));
    }
    bool shared = prop->requestedHandleTypes;
    int file = shared ? shared_file(size, device, device ? ctx->id : 0, rep.a) : -1;
    struct cu_physical *made = shared && file < 0 ? NULL : new_physical(size, file);
    if (!made) {
        if (file >= 0)
            close(file);
        if (device)
            cu_request(SIM_REQ_FREE, ctx->id, rep.a, &ignored, sizeof ignored, NULL, 0);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->id = rep.a;
    made->ctx = ctx;
    made->ctx_id = device ? ctx->id : 0;
    made->borrowed = !device;
    made->prop = *prop;
    *handle = enlist(made);
    return CUDA_SUCCESS;
}

/* Under cu_vmm_lock. */
struct cu_physical *cu_vmm_find(CUmemGenericAllocationHandle handle)
{
    struct cu_physical *at = physicals;
    while (at && at->handle != handle)
        at = at->next;
    return at;
}

struct cu_physical *cu_vmm_first(void)
{
    return physicals;
}

struct cu_physical *cu_vmm_if_unused(struct cu_physical *physical)
{
    struct cu_physical **link = &physicals;
    if (physical->refs || physical->maps)
        return NULL;
    while (*link != physical)
        link = &(*link)->next;
    *link = physical->next;
    return physical;
}

void cu_vmm_give_back(struct cu_physical *gone)
{
    struct sim_rep rep;
    if (!gone)
        return;
    if (!gone->borrowed && cu_handle_ok(CU_CTX, gone->ctx) && gone->ctx->id == gone->ctx_id) {
        cu_stream_sync(&gone->ctx->all); /* work that was submitted may use it */
        cu_request(SIM_REQ_FREE, gone->ctx_id, gone->id, &rep, sizeof rep, NULL, 0);
    }
    if (gone->hold)
        cu_request(SIM_REQ_LET_GO, gone->hold, 0, &rep, sizeof rep, NULL, 0);
    cu_vmm_holder_gone((void *)(uintptr_t)gone->handle);
    munmap(gone->contents, gone->size);
    if (gone->away)
        munmap(gone->away, gone->size);
    if (gone->file >= 0)
        close(gone->file);
    free(gone);
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CU_TRY(cu_ready());
    pthread_mutex_lock(&cu_vmm_lock);
    struct cu_physical *physical = cu_vmm_find(handle), *gone = NULL;
    bool held = physical && physical->refs;
    if (held) {
        physical->refs--;
        gone = cu_vmm_if_unused(physical);
    }
    pthread_mutex_unlock(&cu_vmm_lock);
    cu_vmm_give_back(gone);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                        CUmemGenericAllocationHandle handle)
{
    CU_TRY(cu_ready());
    pthread_mutex_lock(&cu_vmm_lock);
    const struct cu_physical *physical = cu_vmm_find(handle);
    if (prop && physical)
        *prop = physical->prop;
    pthread_mutex_unlock(&cu_vmm_lock);
    return prop && physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- sharing ---- */

CUresult CUDAAPI cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type,
                                              unsigned long long flags)
{
    CU_TRY(cu_ready());
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&cu_vmm_lock);
    struct cu_physical *physical = cu_vmm_find(handle);
    int file = physical && physical->file >= 0 ? cu_export_open(physical->file) : -1;
    if (file >= 0)
        physical->shared = true;
    pthread_mutex_unlock(&cu_vmm_lock);
    if (file >= 0)
        *(int *)out = file;
    return file >= 0  ? CUDA_SUCCESS
           : physical ? CUDA_ERROR_NOT_PERMITTED
                      : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *from,
                                                CUmemAllocationHandleType type)
{
    struct cu_export about;
    CUdevice device;
    CU_TRY(cu_ready());
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    int own = cu_export_contents((int)(intptr_t)from);
    bool known = own >= 0 && cu_export_read(own, CU_EXPORT_PHYSICAL, &about, &device);
    struct cu_physical *made = known ? new_physical(about.size, own) : NULL;
    if (!made) {
        if (own >= 0)
            close(own);
        return known ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    made->borrowed = made->shared = true;
    struct sim_rep held;
    if (about.id &&
        cu_request(SIM_REQ_HOLD, about.ctx, about.id, &held, sizeof held, NULL, 0) == CUDA_SUCCESS)
        made->hold = held.a;
    made->prop =
        (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    if (device < 0)
        made->prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA};
    *handle = enlist(made);
    return CUDA_SUCCESS;
}

/* What an array or a multicast object keeps; nothing can be read through it. */
CUresult cu_vmm_tie(const void *holder, uint64_t place, CUmemGenericAllocationHandle handle)
{
    struct tile *tile = malloc(sizeof *tile);
    if (!tile)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&cu_vmm_lock);
    struct cu_physical *physical = cu_vmm_find(handle);
    if (physical) {
        physical->maps++;
        *tile = (struct tile){holder, place, physical, tiles};
        tiles = tile;
    }
    pthread_mutex_unlock(&cu_vmm_lock);
    if (!physical)
        free(tile);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* One of the holder's, at this place or (all) anywhere. */
static bool untie(const void *holder, uint64_t place, bool all)
{
    struct cu_physical *gone = NULL;
    pthread_mutex_lock(&cu_vmm_lock);
    struct tile **link = &tiles, *tile;
    while ((tile = *link) != NULL && (tile->holder != holder || (!all && tile->place != place)))
        link = &tile->next;
    if (tile) {
        *link = tile->next;
        tile->physical->maps--;
        gone = cu_vmm_if_unused(tile->physical);
        free(tile);
    }
    pthread_mutex_unlock(&cu_vmm_lock);
    cu_vmm_give_back(gone);
    return tile != NULL;
}

bool cu_vmm_untie(const void *holder, uint64_t place)
{
    return untie(holder, place, false);
}

void cu_vmm_holder_gone(const void *holder)
{
    while (untie(holder, 0, true))
        ;
}

CUresult cu_vmm_object(CUmemGenericAllocationHandle *handle, uint64_t size)
{
    struct cu_physical *made = new_physical(size, -1);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->borrowed = made->object = true;
    *handle = enlist(made);
    return CUDA_SUCCESS;
}

bool cu_vmm_fits(CUmemGenericAllocationHandle handle, bool object, uint64_t from, uint64_t size)
{
    pthread_mutex_lock(&cu_vmm_lock);
    const struct cu_physical *at = cu_vmm_find(handle);
    bool fits = at && at->object == object && cu_vmm_whole(size) &&
                from % CU_VMM_GRANULARITY == 0 && from <= at->size && size <= at->size - from;
    pthread_mutex_unlock(&cu_vmm_lock);
    return fits;
}

static CUresult map_arrays(CUarrayMapInfo *list, unsigned int count, CUstream handle, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!list || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
            CU_TRY(cu_vmm_tie(list[i].resource.array, 0, list[i].memHandle.memHandle));
    return CUDA_SUCCESS;
}
CU_BOTH(cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz, map_arrays,
        (CUarrayMapInfo * list, unsigned int count, CUstream stream), list, count, stream)
