/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual memory: physical memory by handle, reserved addresses, and mappings of the one at the
 * other. Physical memory lives until its last reference and its last mapping are gone. A card's
 * memory is kept by a context here, so one of the device must exist (the current or the primary
 * one), and the memory ends with it.
 */
#include "cu_alloc.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULARITY (2ull << 20)

struct physical {
    CUmemGenericAllocationHandle handle;
    uint64_t size, id;
    CUcontext ctx;
    uint32_t ctx_id;
    CUmemAllocationProp prop;
    uint8_t *contents;
    int file; /* of the contents, for other processes; -1: cannot be shared */
    /* not ours in the books of the card: imported (its maker has it there), or memory of the
     * host */
    bool borrowed;
    bool object; /* of a multicast team: what it shows is bound to it */
    unsigned refs, maps;
    struct physical *next;
};

struct range {
    CUdeviceptr base;
    size_t size;
    struct range *next;
};

static pthread_mutex_t vmm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct physical *physicals;
static struct tile { /* or a binding */
    const void *holder;
    uint64_t place;
    struct physical *physical;
    struct tile *next;
} *tiles;
static struct range *ranges;
static CUmemGenericAllocationHandle last_handle = 0x76000000;

static bool whole(uint64_t size)
{
    return size && size % GRANULARITY == 0;
}

/* device: NULL: memory of the host. */
static CUresult property_ok(const CUmemAllocationProp *prop, struct cu_device **device)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUdevice ordinal;
    *device = NULL;
    if (cu_on_host(&prop->location))
        return prop->requestedHandleTypes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
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
    *out = GRANULARITY;
    return CUDA_SUCCESS;
}

/* Contents that other processes can map: a file, with the description after them. */
static int shared_file(uint64_t size, const struct cu_device *device)
{
    struct cu_export end = {.magic = CU_EXPORT_PHYSICAL, .index = device->info.index, .size = size};
    int file = memfd_create("qgpu-sim-memory", MFD_CLOEXEC);
    if (file >= 0 && (ftruncate(file, (off_t)(size + sizeof end)) != 0 ||
                      pwrite(file, &end, sizeof end, (off_t)size) != (ssize_t)sizeof end)) {
        close(file);
        return -1;
    }
    return file;
}

static struct physical *new_physical(uint64_t size, int file)
{
    struct physical *made = calloc(1, sizeof *made);
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

static CUmemGenericAllocationHandle enlist(struct physical *made)
{
    pthread_mutex_lock(&vmm_lock);
    CUmemGenericAllocationHandle handle = made->handle = ++last_handle;
    made->next = physicals;
    physicals = made;
    pthread_mutex_unlock(&vmm_lock);
    return handle;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                             const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct cu_device *device;
    struct sim_rep rep = {0}, ignored;
    CUcontext ctx = NULL;
    CU_TRY(cu_ready());
    if (!handle || !whole(size) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(property_ok(prop, &device));
    if (device) {
        CU_TRY(cu_keeper(device, &ctx));
        CU_TRY(cu_request(SIM_REQ_ALLOC, ctx->id, size, &rep, sizeof rep, NULL, 0));
    }
    bool shared = prop->requestedHandleTypes;
    int file = shared ? shared_file(size, device) : -1;
    struct physical *made = shared && file < 0 ? NULL : new_physical(size, file);
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

/* Under vmm_lock. */
static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    struct physical *at = physicals;
    while (at && at->handle != handle)
        at = at->next;
    return at;
}

/* Under vmm_lock: out of the list when nothing holds it any more; the caller gives it back without
 * the lock. */
static struct physical *if_unused(struct physical *physical)
{
    struct physical **link = &physicals;
    if (physical->refs || physical->maps)
        return NULL;
    while (*link != physical)
        link = &(*link)->next;
    *link = physical->next;
    return physical;
}

static void give_back(struct physical *gone)
{
    struct sim_rep rep;
    if (!gone)
        return;
    if (!gone->borrowed && cu_handle_ok(CU_CTX, gone->ctx) && gone->ctx->id == gone->ctx_id) {
        cu_stream_sync(&gone->ctx->all); /* work that was submitted may use it */
        cu_request(SIM_REQ_FREE, gone->ctx_id, gone->id, &rep, sizeof rep, NULL, 0);
    }
    cu_vmm_holder_gone((void *)(uintptr_t)gone->handle);
    munmap(gone->contents, gone->size);
    if (gone->file >= 0)
        close(gone->file);
    free(gone);
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CU_TRY(cu_ready());
    pthread_mutex_lock(&vmm_lock);
    struct physical *physical = physical_of(handle), *gone = NULL;
    bool held = physical && physical->refs;
    if (held) {
        physical->refs--;
        gone = if_unused(physical);
    }
    pthread_mutex_unlock(&vmm_lock);
    give_back(gone);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                        CUmemGenericAllocationHandle handle)
{
    CU_TRY(cu_ready());
    pthread_mutex_lock(&vmm_lock);
    const struct physical *physical = physical_of(handle);
    if (prop && physical)
        *prop = physical->prop;
    pthread_mutex_unlock(&vmm_lock);
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
    pthread_mutex_lock(&vmm_lock);
    const struct physical *physical = physical_of(handle);
    int file = physical && physical->file >= 0 ? fcntl(physical->file, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&vmm_lock);
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
    int file = (int)(intptr_t)from;
    CU_TRY(cu_ready());
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !cu_export_read(file, CU_EXPORT_PHYSICAL, &about, &device))
        return CUDA_ERROR_INVALID_VALUE;
    int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
    struct physical *made = own >= 0 ? new_physical(about.size, own) : NULL;
    if (!made) {
        if (own >= 0)
            close(own);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->borrowed = true;
    made->prop =
        (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    *handle = enlist(made);
    return CUDA_SUCCESS;
}

/* What an array or a multicast object keeps; nothing can be read through it. */
CUresult cu_vmm_tie(const void *holder, uint64_t place, CUmemGenericAllocationHandle handle)
{
    struct tile *tile = malloc(sizeof *tile);
    if (!tile)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&vmm_lock);
    struct physical *physical = physical_of(handle);
    if (physical) {
        physical->maps++;
        *tile = (struct tile){holder, place, physical, tiles};
        tiles = tile;
    }
    pthread_mutex_unlock(&vmm_lock);
    if (!physical)
        free(tile);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* One of the holder's, at this place or (all) anywhere. */
static bool untie(const void *holder, uint64_t place, bool all)
{
    struct physical *gone = NULL;
    pthread_mutex_lock(&vmm_lock);
    struct tile **link = &tiles, *tile;
    while ((tile = *link) != NULL && (tile->holder != holder || (!all && tile->place != place)))
        link = &tile->next;
    if (tile) {
        *link = tile->next;
        tile->physical->maps--;
        gone = if_unused(tile->physical);
        free(tile);
    }
    pthread_mutex_unlock(&vmm_lock);
    give_back(gone);
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
    struct physical *made = new_physical(size, -1);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->borrowed = made->object = true;
    *handle = enlist(made);
    return CUDA_SUCCESS;
}

bool cu_vmm_fits(CUmemGenericAllocationHandle handle, bool object, uint64_t from, uint64_t size)
{
    pthread_mutex_lock(&vmm_lock);
    const struct physical *at = physical_of(handle);
    bool fits = at && at->object == object && whole(size) && from % GRANULARITY == 0 &&
                from <= at->size && size <= at->size - from;
    pthread_mutex_unlock(&vmm_lock);
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

/* ---- addresses ---- */

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
                                     CUdeviceptr wish, unsigned long long flags)
{
    CU_TRY(cu_ready());
    if (alignment < GRANULARITY)
        alignment = GRANULARITY;
    (void)wish; /* a hint */
    if (!ptr || !whole(size) || flags || alignment & (alignment - 1) || size + alignment < size)
        return CUDA_ERROR_INVALID_VALUE;
    struct range *range = malloc(sizeof *range);
    char *base = range ? cu_alloc_reserve(size + alignment, PROT_NONE) : NULL;
    if (!base) {
        free(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    char *start = (char *)(((uintptr_t)base + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (start > base)
        munmap(base, (size_t)(start - base));
    munmap(start + size, (size_t)(base + alignment - start));
    *range = (struct range){.base = (CUdeviceptr)start, .size = size};
    pthread_mutex_lock(&vmm_lock);
    range->next = ranges;
    ranges = range;
    pthread_mutex_unlock(&vmm_lock);
    *ptr = range->base;
    return CUDA_SUCCESS;
}

/* First mapping that begins in the range, or NULL. */
static struct cu_alloc *mapped(CUdeviceptr base, size_t size)
{
    struct cu_alloc *found = NULL;
    pthread_rwlock_rdlock(&cu_alloc_lock);
    for (size_t at = 0; at < size && !found; at += GRANULARITY)
        found = cu_alloc_find(base + at);
    pthread_rwlock_unlock(&cu_alloc_lock);
    return found;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    CU_TRY(cu_ready());
    struct range *found = NULL;
    pthread_mutex_lock(&vmm_lock);
    for (struct range **link = &ranges; *link; link = &(*link)->next)
        if ((*link)->base == ptr && (*link)->size == size && !mapped(ptr, size)) {
            found = *link;
            *link = found->next;
            break;
        }
    pthread_mutex_unlock(&vmm_lock);
    if (!found)
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)found->base, found->size);
    free(found);
    return CUDA_SUCCESS;
}

/* Under vmm_lock. */
static bool reserved(CUdeviceptr ptr, size_t size)
{
    for (const struct range *at = ranges; at; at = at->next)
        if (ptr >= at->base && ptr - at->base <= at->size && size <= at->size - (ptr - at->base))
            return true;
    return false;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CU_TRY(cu_ready());
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&vmm_lock);
    struct physical *physical = physical_of(handle);
    if (physical && !flags && whole(size) && ptr % GRANULARITY == 0 && offset % GRANULARITY == 0 &&
        offset <= physical->size && size <= physical->size - offset && reserved(ptr, size) &&
        !mapped(ptr, size)) {
        struct cu_alloc alloc = {.base = ptr, .size = size, .id = handle, .kind = VIRTUAL};
        alloc.shadow = physical->contents + offset;
        CUdevice device;
        alloc.flags = cu_on_device(&physical->prop.location, &device) ? (unsigned)device : 0;
        status = cu_alloc_insert(&alloc);
        physical->maps += status == CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&vmm_lock);
    return status;
}

/* Whether whole mappings cover the range exactly. */
static bool covered(CUdeviceptr ptr, size_t size)
{
    bool yes = whole(size);
    pthread_rwlock_rdlock(&cu_alloc_lock);
    for (size_t at = 0; yes && at < size;) {
        const struct cu_alloc *alloc = cu_alloc_find(ptr + at);
        yes =
            alloc && alloc->kind == VIRTUAL && alloc->base == ptr + at && alloc->size <= size - at;
        at += yes ? alloc->size : 0;
    }
    pthread_rwlock_unlock(&cu_alloc_lock);
    return yes;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CU_TRY(cu_ready());
    struct physical *gone = NULL;
    pthread_mutex_lock(&vmm_lock);
    bool valid = covered(ptr, size);
    for (size_t at = 0; valid && at < size;) {
        struct cu_alloc *alloc = cu_alloc_take(ptr + at, VIRTUAL, VIRTUAL);
        struct physical *physical = physical_of(alloc->id), *unused;
        at += alloc->size;
        physical->maps--;
        if ((unused = if_unused(physical)) != NULL) {
            unused->next = gone;
            gone = unused;
        }
        cu_alloc_release(alloc);
    }
    pthread_mutex_unlock(&vmm_lock);
    while (gone) {
        struct physical *next = gone->next;
        give_back(gone);
        gone = next;
    }
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Rights are checked for form only: a mapping may be used without. */
CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
                                size_t count)
{
    CU_TRY(cu_ready());
    return desc && count && mapped(ptr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    CU_TRY(cu_ready());
    pthread_mutex_lock(&vmm_lock);
    pthread_rwlock_rdlock(&cu_alloc_lock);
    const struct cu_alloc *alloc = cu_alloc_find((CUdeviceptr)addr);
    CUmemGenericAllocationHandle found = alloc && alloc->kind == VIRTUAL ? alloc->id : 0;
    pthread_rwlock_unlock(&cu_alloc_lock);
    struct physical *physical = found ? physical_of(found) : NULL;
    if (handle && physical) {
        physical->refs++;
        *handle = found;
    }
    pthread_mutex_unlock(&vmm_lock);
    return handle && physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
