/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the simulated card. A device pointer is an address in a reservation without access
 * rights: a program that dereferences it crashes as on a real card. Contents: cu_contents.c.
 */
#include "cu_alloc.h"
#include "cu_capture.h"
#include "cu_context.h"
#include "cu_graphmem.h"
#include "cu_stream.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct cu_alloc **table; /* sorted by base */
static size_t used, room;
pthread_rwlock_t cu_alloc_lock = PTHREAD_RWLOCK_INITIALIZER;

static size_t place(CUdeviceptr ptr) /* first entry above ptr */
{
    size_t low = 0, high = used;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (table[mid]->base <= ptr)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct cu_alloc *cu_alloc_find(CUdeviceptr ptr)
{
    size_t at = place(ptr);
    return at && ptr - table[at - 1]->base < table[at - 1]->size ? table[at - 1] : NULL;
}

struct cu_alloc *cu_alloc_at(size_t place)
{
    return place < used ? table[place] : NULL;
}

CUresult cu_alloc_insert(const struct cu_alloc *entry)
{
    CUresult status = CUDA_ERROR_OUT_OF_MEMORY;
    struct cu_alloc *copy = malloc(sizeof *copy);
    pthread_rwlock_wrlock(&cu_alloc_lock);
    if (used == room) {
        size_t more = room ? room * 2 : 256;
        struct cu_alloc **grown = realloc(table, more * sizeof *grown);
        if (grown) {
            table = grown;
            room = more;
        }
    }
    if (copy && used < room) {
        size_t at = place(entry->base);
        *copy = *entry;
        memmove(&table[at + 1], &table[at], (used - at) * sizeof *table);
        table[at] = copy;
        used++;
        status = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&cu_alloc_lock);
    if (status != CUDA_SUCCESS)
        free(copy);
    return status;
}

struct cu_alloc *cu_alloc_take(CUdeviceptr base, enum kind low, enum kind high)
{
    struct cu_alloc *found = NULL;
    pthread_rwlock_wrlock(&cu_alloc_lock);
    size_t at = place(base);
    if (at && table[at - 1]->base == base && table[at - 1]->kind >= low &&
        table[at - 1]->kind <= high) {
        found = table[at - 1];
        memmove(&table[at - 1], &table[at], (used - at) * sizeof *table);
        used--;
    }
    pthread_rwlock_unlock(&cu_alloc_lock);
    return found;
}

void cu_alloc_release(struct cu_alloc *alloc)
{
    bool own = alloc->kind != VIRTUAL; /* else contents and addresses belong to others, cu_vmm.c */
    struct sim_rep rep;
    if (alloc->owner == BORROWED && alloc->id)
        cu_request(SIM_REQ_LET_GO, alloc->id, 0, &rep, sizeof rep, NULL, 0);
    if (alloc->kind == REGISTERED)
        cu_request(SIM_REQ_UNPIN, alloc->base, 0, &rep, sizeof rep, NULL, 0);
    if (own && alloc->shadow)
        munmap(alloc->shadow, alloc->size);
    if (alloc->away)
        munmap(alloc->away, alloc->size);
    if (alloc->owner == POOLED)
        cu_pool_returned(alloc);
    else if (own && alloc->kind != REGISTERED)
        munmap((void *)alloc->base, alloc->size);
    free(alloc->made);
    free(alloc);
}

void *cu_alloc_reserve(size_t size, int access)
{
    void *map = mmap(NULL, size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

void cu_memory_forget(CUcontext ctx)
{
    struct cu_alloc *dead;
    do {
        dead = NULL;
        pthread_rwlock_wrlock(&cu_alloc_lock);
        for (size_t i = 0; i < used && !dead; i++)
            if (table[i]->ctx == ctx &&
                (table[i]->kind <= MANAGED || table[i]->kind == REGISTERED)) {
                dead = table[i];
                memmove(&table[i], &table[i + 1], (used - i - 1) * sizeof *table);
                used--;
            }
        pthread_rwlock_unlock(&cu_alloc_lock);
        if (dead)
            cu_alloc_release(dead);
    } while (dead);
    cu_pool_forget(ctx);
    cu_graphmem_forget(ctx);
}

/* ---- allocation ---- */

/* What can be reached through CUdeviceptr_v1 lies low. */
static void *reserve_low(size_t size, int access)
{
    void *map =
        mmap(NULL, size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_32BIT, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, enum kind kind, CUcontext ctx, bool low)
{
    struct sim_rep rep, ignored;
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_request(SIM_REQ_ALLOC, ctx->id, bytes, &rep, sizeof rep, NULL, 0));
    struct cu_alloc alloc = {.size = bytes, .id = rep.a, .ctx = ctx, .kind = kind};
    int access = kind == DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE;
    void *base = low ? reserve_low(bytes, access) : cu_alloc_reserve(bytes, access);
    alloc.base = (CUdeviceptr)base;
    if (!base || cu_alloc_insert(&alloc) != CUDA_SUCCESS) {
        if (base)
            munmap(base, bytes);
        cu_request(SIM_REQ_FREE, ctx->id, rep.a, &ignored, sizeof ignored, NULL, 0);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = alloc.base;
    return CUDA_SUCCESS;
}

CUresult cu_alloc_borrow(CUdeviceptr *out, size_t bytes, CUcontext ctx, CUdevice device,
                         uint64_t hold, bool shared)
{
    struct cu_alloc alloc = {.size = bytes,
                             .ctx = ctx,
                             .kind = DEVICE,
                             .owner = BORROWED,
                             .id = hold,
                             .shared = shared,
                             .flags = (unsigned)device};
    void *base = cu_alloc_reserve(bytes, PROT_NONE);
    alloc.base = (CUdeviceptr)base;
    if (!base || cu_alloc_insert(&alloc) != CUDA_SUCCESS) {
        if (base)
            munmap(base, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = alloc.base;
    return CUDA_SUCCESS;
}

CUresult cu_keeper(const struct cu_device *device, CUcontext *ctx)
{
    if (device->primary && cu_handle_ok(CU_CTX, device->primary)) {
        *ctx = device->primary;
        return CUDA_SUCCESS;
    }
    CU_TRY(cu_current(ctx));
    return (*ctx)->device == device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    CU_TRY(cu_capture_unsafe());
    return allocate(ptr, bytes, DEVICE, ctx, false);
}

static CUresult pitch_of(size_t *pitch, size_t width, size_t height, unsigned element,
                         size_t *bytes)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    if (width > SIZE_MAX - 511 || __builtin_mul_overflow((width + 511) / 512 * 512, height, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pitch = (width + 511) / 512 * 512;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height,
                                    unsigned int element)
{
    size_t bytes;
    CU_TRY(pitch_of(pitch, width, height, element, &bytes));
    return cuMemAlloc_v2(ptr, bytes);
}

/* The first versions have pointers of 32 bits. */
CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *ptr, unsigned int bytes)
{
    CUcontext ctx;
    CUdeviceptr wide;
    CU_TRY(cu_current(&ctx));
    if (!ptr)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(allocate(&wide, bytes, DEVICE, ctx, true));
    *ptr = (CUdeviceptr_v1)wide;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1 *ptr, unsigned int *pitch, unsigned int width,
                                 unsigned int height, unsigned int element)
{
    size_t wide, bytes;
    CU_TRY(pitch_of(pitch ? &wide : NULL, width, height, element, &bytes));
    if (bytes > UINT32_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pitch = (unsigned)wide;
    return cuMemAlloc(ptr, (unsigned)bytes);
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *ptr, size_t bytes, unsigned int flags)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    return flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST
               ? CUDA_ERROR_INVALID_VALUE
               : allocate(ptr, bytes, MANAGED, ctx, false);
}

/* A real free waits for work that may use the memory. */
static CUresult release(struct cu_alloc *alloc)
{
    struct sim_rep rep;
    CUresult status = CUDA_SUCCESS;
    if (alloc->kind != PINNED && alloc->ctx)
        cu_stream_sync(&alloc->ctx->all);
    if (alloc->owner == OWN)
        status = cu_request(SIM_REQ_FREE, alloc->ctx->id, alloc->id, &rep, sizeof rep, NULL, 0);
    cu_alloc_release(alloc);
    return status;
}

CUresult cu_memory_new(CUdeviceptr *out, size_t bytes, enum kind kind, CUcontext ctx)
{
    return allocate(out, bytes, kind, ctx, false);
}

void cu_memory_end(CUdeviceptr base, CUcontext ctx)
{
    pthread_rwlock_rdlock(&cu_alloc_lock);
    const struct cu_alloc *there = cu_alloc_find(base);
    bool its =
        there && there->base == base && there->ctx == ctx && there->owner == (ctx ? OWN : BORROWED);
    pthread_rwlock_unlock(&cu_alloc_lock);
    struct cu_alloc *alloc = its ? cu_alloc_take(base, DEVICE, MANAGED) : NULL;
    if (alloc)
        release(alloc);
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr ptr)
{
    CUcontext ctx;
    CU_TRY(cu_ready());
    if (!ptr)
        return CUDA_SUCCESS;
    CU_TRY(cu_current(&ctx));
    CUresult status = CUDA_SUCCESS;
    if (cu_graphmem_free(ptr, &status))
        return status == CUDA_SUCCESS ? cu_stream_sync(&ctx->all) : status;
    struct cu_alloc *alloc = cu_alloc_take(ptr, DEVICE, PINNED);
    return alloc ? release(alloc) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr_v1 ptr)
{
    return cuMemFree_v2(ptr);
}

static CUresult alloc_from_pool(CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream handle,
                                bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!cu_handle_ok(CU_POOL, pool))
        return CUDA_ERROR_INVALID_HANDLE;
    return stream->capture ? cu_graphmem_capture_alloc(ptr, bytes, pool, stream)
                           : cu_pool_alloc(ptr, bytes, pool, stream);
}
CU_BOTH(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz, alloc_from_pool,
        (CUdeviceptr * ptr, size_t bytes, CUmemoryPool pool, CUstream stream), ptr, bytes, pool,
        stream)

static CUresult alloc_async(CUdeviceptr *ptr, size_t bytes, CUstream handle, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    return alloc_from_pool(
        ptr, bytes, cu_pool_current((CUdevice)(stream->ctx->device - cu.devices)), handle, pt);
}
CU_BOTH(cuMemAllocAsync, cuMemAllocAsync_ptsz, alloc_async,
        (CUdeviceptr * ptr, size_t bytes, CUstream stream), ptr, bytes, stream)

/* The card takes the memory back when the stream gets there; a pool's memory stays with the pool.
 */
static CUresult free_async(CUdeviceptr ptr, CUstream handle, bool pt)
{
    CUstream stream;
    CUresult status = CUDA_SUCCESS;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (stream->capture)
        return cu_graphmem_capture_free(ptr, stream);
    if (cu_graphmem_free(ptr, &status))
        return status;
    struct cu_alloc *alloc = cu_alloc_take(ptr, DEVICE, PINNED);
    if (!alloc)
        return CUDA_ERROR_INVALID_VALUE;
    if (alloc->owner == OWN) {
        struct sim_cmd cmd = {.op = SIM_OP_FREE, .a = alloc->id};
        status = cu_push(stream, &cmd, true, NULL);
    }
    cu_alloc_release(alloc);
    return status;
}
CU_BOTH(cuMemFreeAsync, cuMemFreeAsync_ptsz, free_async, (CUdeviceptr ptr, CUstream stream), ptr,
        stream)

CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUcontext ctx;
    struct sim_card_info info;
    CU_TRY(cu_current(&ctx));
    CU_TRY(cu_request(SIM_REQ_CARD, ctx->device->info.index, 0, &info, sizeof info, NULL, 0));
    if (free_bytes)
        *free_bytes = info.mem_total - info.mem_used;
    if (total)
        *total = info.mem_total;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    CU_TRY(cu_ready());
    pthread_rwlock_rdlock(&cu_alloc_lock);
    const struct cu_alloc *alloc = cu_alloc_find(ptr);
    if (alloc && base)
        *base = alloc->base;
    if (alloc && size)
        *size = alloc->size;
    pthread_rwlock_unlock(&cu_alloc_lock);
    return alloc ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuMemGetInfo(unsigned int *free_bytes, unsigned int *total)
{
    size_t left, all;
    CU_TRY(cuMemGetInfo_v2(&left, &all));
    if (free_bytes)
        *free_bytes = left > UINT32_MAX ? UINT32_MAX : (unsigned)left;
    if (total)
        *total = all > UINT32_MAX ? UINT32_MAX : (unsigned)all;
    return CUDA_SUCCESS;
}
