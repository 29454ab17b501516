/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools of cuMemAllocAsync. A pool takes memory from the card in chunks of 32 MiB and hands
 * out pieces of them. What is freed stays with the pool and can be handed out again at once; whole
 * chunks go back to the card when the program waits for work while the pool holds more than its
 * threshold, and by cuMemPoolTrimTo. Order between streams needs no care: contents move at the call
 * (cu_contents.c). Pools of the host (one NUMA node) do the same without a card.
 */
#include "cu_alloc.h"
#include "cu_context.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK   (32ull << 20)
#define PIECE   512ull
#define ON_HOST ((CUdevice)SIM_MAX_CARDS) /* in the place of a device */

struct piece { /* in order of address, without gaps, from the chunk's base to its end */
    uint64_t offset, size;
    bool live;
    struct piece *next;
};

struct chunk {
    CUdeviceptr base;
    uint64_t size, id;
    CUcontext ctx;
    uint32_t ctx_id; /* 0: the context is gone, and the memory with it */
    struct piece *pieces;
    struct chunk *next;
};

struct CUmemPoolHandle_st {
    enum cu_magic magic;
    CUdevice device;
    bool is_default, imported, dying; /* dying: destroyed while memory of it lives */
    uint32_t reachable;               /* devices that got access besides its own, a bit each */
    uint64_t threshold, max, reserved, reserved_high, used, used_high;
    struct chunk *chunks;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUmemoryPool defaults[SIM_MAX_CARDS + 1], current[SIM_MAX_CARDS + 1];
static CUmemoryPool all[1024]; /* every pool that ever had memory, for settle */
static unsigned nall;
static bool anything; /* atomic: some pool holds memory */

static CUmemoryPool new_pool(CUdevice device)
{
    CUmemoryPool pool = cu_handle_new(CU_POOL);
    if (!pool)
        return NULL;
    pool->device = device;
    for (unsigned i = 0; i < nall; i++)
        if (all[i] == pool)
            return pool;
    all[nall++] = pool; /* the arena has as many places */
    return pool;
}

static CUmemoryPool default_of(CUdevice device)
{
    if (!defaults[device] && (defaults[device] = new_pool(device)) != NULL)
        defaults[device]->is_default = true;
    return defaults[device];
}

/* ---- chunks and pieces; all under the lock ---- */

static void count(uint64_t *value, uint64_t *high, uint64_t now)
{
    *value = now;
    if (now > *high)
        *high = now;
}

static void drop_chunk(CUmemoryPool pool, struct chunk *chunk)
{
    struct sim_rep rep;
    struct chunk **link = &pool->chunks;
    while (*link != chunk)
        link = &(*link)->next;
    *link = chunk->next;
    if (chunk->ctx_id || pool->device == ON_HOST)
        pool->reserved -= chunk->size;
    if (chunk->ctx_id && cu_handle_ok(CU_CTX, chunk->ctx) && chunk->ctx->id == chunk->ctx_id)
        cu_request(SIM_REQ_FREE, chunk->ctx_id, chunk->id, &rep, sizeof rep, NULL, 0);
    munmap((void *)chunk->base, chunk->size);
    for (struct piece *piece = chunk->pieces, *next; piece; piece = next) {
        next = piece->next;
        free(piece);
    }
    free(chunk);
}

static bool idle(const struct chunk *chunk)
{
    return !chunk->pieces->live && !chunk->pieces->next;
}

static void trim(CUmemoryPool pool, uint64_t keep)
{
    for (struct chunk *chunk = pool->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        if (idle(chunk) && pool->reserved > keep)
            drop_chunk(pool, chunk);
    }
}

/* A destroyed pool ends with the last memory of it. */
static void end_if_empty(CUmemoryPool pool)
{
    if (!pool->dying || pool->chunks)
        return;
    pool->dying = false;
    __atomic_sub_fetch(&cu_shared, pool->reachable / CU_POOL_EXPORTED, __ATOMIC_RELAXED);
    cu_handle_free(CU_POOL, pool);
}

static CUresult grow(CUmemoryPool pool, uint64_t bytes)
{
    bool host = pool->device == ON_HOST;
    struct sim_rep rep = {0}, ignored;
    CUcontext ctx = NULL;
    if (bytes > UINT64_MAX - CHUNK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t size = (bytes + CHUNK - 1) / CHUNK * CHUNK;
    if (pool->max && (size > pool->max || pool->reserved > pool->max - size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!host) {
        CU_TRY(cu_keeper(&cu.devices[pool->device], &ctx));
        CU_TRY(cu_request(SIM_REQ_ALLOC, ctx->id, size, &rep, sizeof rep, NULL, 0));
    }
    struct chunk *chunk = calloc(1, sizeof *chunk);
    struct piece *piece = calloc(1, sizeof *piece);
    void *base =
        chunk && piece ? cu_alloc_reserve(size, host ? PROT_READ | PROT_WRITE : PROT_NONE) : NULL;
    if (!base) {
        free(chunk);
        free(piece);
        if (!host)
            cu_request(SIM_REQ_FREE, ctx->id, rep.a, &ignored, sizeof ignored, NULL, 0);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *piece = (struct piece){.size = size};
    *chunk = (struct chunk){.base = (CUdeviceptr)base,
                            .size = size,
                            .id = rep.a,
                            .ctx = ctx,
                            .ctx_id = host ? 0 : ctx->id,
                            .pieces = piece,
                            .next = pool->chunks};
    pool->chunks = chunk;
    count(&pool->reserved, &pool->reserved_high, pool->reserved + size);
    __atomic_store_n(&anything, true, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

/* The first free piece that is large enough, cut to size; 0: none. */
static CUdeviceptr carve(CUmemoryPool pool, uint64_t size)
{
    for (struct chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        for (struct piece *piece = chunk->pieces; piece; piece = piece->next) {
            if (piece->live || piece->size < size || (!chunk->ctx_id && pool->device != ON_HOST))
                continue;
            struct piece *rest = piece->size > size ? malloc(sizeof *rest) : NULL;
            if (rest) {
                *rest = (struct piece){.offset = piece->offset + size,
                                       .size = piece->size - size,
                                       .next = piece->next};
                piece->next = rest;
                piece->size = size;
            }
            piece->live = true;
            count(&pool->used, &pool->used_high, pool->used + piece->size);
            return chunk->base + piece->offset;
        }
    return 0;
}

static void join(struct piece *piece)
{
    while (piece->next && !piece->live && !piece->next->live) {
        struct piece *next = piece->next;
        piece->size += next->size;
        piece->next = next->next;
        free(next);
    }
}

static void put_back(CUmemoryPool pool, CUdeviceptr base)
{
    for (struct chunk *chunk = pool->chunks; chunk; chunk = chunk->next) {
        struct piece *before = NULL;
        for (struct piece *piece = chunk->pieces; piece; before = piece, piece = piece->next) {
            if (chunk->base + piece->offset != base || !piece->live)
                continue;
            piece->live = false;
            pool->used -= piece->size;
            join(piece);
            if (before)
                join(before);
            return;
        }
    }
}

/* ---- for the other files ---- */

CUmemoryPool cu_pool_current(CUdevice device)
{
    pthread_mutex_lock(&lock);
    CUmemoryPool pool = current[device] ? current[device] : default_of(device);
    pthread_mutex_unlock(&lock);
    return pool;
}

CUresult cu_pool_alloc(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    if (!out || !bytes || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > UINT64_MAX - PIECE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t size = (bytes + PIECE - 1) / PIECE * PIECE;
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    CUdeviceptr base = carve(pool, size);
    if (!base && (status = grow(pool, size)) == CUDA_SUCCESS)
        base = carve(pool, size);
    pthread_mutex_unlock(&lock);
    if (!base)
        return status == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : status;
    struct cu_alloc alloc = {.base = base,
                             .size = bytes,
                             .ctx = stream->ctx,
                             .owner = POOLED,
                             .pool = pool,
                             .kind = pool->device == ON_HOST ? PINNED : DEVICE};
    if ((status = cu_alloc_insert(&alloc)) != CUDA_SUCCESS)
        cu_pool_returned(&alloc);
    else
        *out = base;
    return status;
}

void cu_pool_returned(const struct cu_alloc *alloc)
{
    pthread_mutex_lock(&lock);
    put_back(alloc->pool, alloc->base);
    if (alloc->pool->dying)
        trim(alloc->pool, 0);
    end_if_empty(alloc->pool);
    pthread_mutex_unlock(&lock);
}

void cu_pool_forget(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < nall; i++) {
        for (struct chunk *chunk = all[i]->chunks, *next; chunk; chunk = next) {
            next = chunk->next;
            if (chunk->ctx != ctx || chunk->ctx_id != ctx->id)
                continue; /* of another context, or of one before with this handle */
            chunk->ctx_id = 0;
            all[i]->reserved -= chunk->size;
            if (idle(chunk))
                drop_chunk(all[i], chunk);
        }
        end_if_empty(all[i]);
    }
    pthread_mutex_unlock(&lock);
}

void cu_pool_settle(void)
{
    if (!__atomic_load_n(&anything, __ATOMIC_ACQUIRE))
        return;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < nall; i++)
        if (all[i]->chunks)
            trim(all[i], all[i]->threshold);
    pthread_mutex_unlock(&lock);
}

/* ---- the driver's functions ---- */

bool cu_on_device(const CUmemLocation *location, CUdevice *device)
{
    bool domain = location && location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
    if (!domain && (!location || location->type != CU_MEM_LOCATION_TYPE_DEVICE))
        return false;
    *device = domain ? location->localized.deviceId : location->id;
    return *device >= 0 && *device < cu.ndevices &&
           (!domain || location->localized.localityDomainId < CU_DOMAINS);
}

bool cu_on_host(const CUmemLocation *location)
{
    return location && (location->type == CU_MEM_LOCATION_TYPE_HOST ||
                        (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA && location->id == 0));
}

/* Where pools of this kind at this place are in the lists. */
static bool place_of(const CUmemLocation *location, CUmemAllocationType type, CUdevice *place)
{
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return false;
    if (cu_on_device(location, place))
        return true;
    *place = ON_HOST;
    return cu_on_host(location);
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    CUdevice place;
    CU_TRY(cu_ready());
    if (!out || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (!place_of(&props->location, props->allocType, &place))
        return props->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                                   : CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    CUmemoryPool pool = new_pool(place);
    if (pool)
        pool->max = props->maxSize ? (props->maxSize + CHUNK - 1) / CHUNK * CHUNK : 0;
    pthread_mutex_unlock(&lock);
    *out = pool;
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_POOL, pool) || pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (current[pool->device] == pool)
        current[pool->device] = NULL;
    pool->magic = 0;
    pool->dying = true;
    trim(pool, 0);
    end_if_empty(pool);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult get_pool(CUmemoryPool *out, CUdevice place, bool is_default)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *out = !is_default && current[place] ? current[place] : default_of(place);
    pthread_mutex_unlock(&lock);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult pool_of(CUmemoryPool *out, CUdevice dev, bool is_default)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    return get_pool(out, dev, is_default);
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
    return pool_of(pool, dev, true);
}
CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    return pool_of(pool, dev, false);
}

static CUresult set_pool(CUdevice place, CUmemoryPool pool)
{
    if (!cu_handle_ok(CU_POOL, pool) || pool->device != place || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    current[place] = pool;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    return set_pool(dev, pool);
}

CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                        CUmemAllocationType type)
{
    CUdevice place;
    CU_TRY(cu_ready());
    return place_of(location, type, &place) ? get_pool(pool, place, true)
                                            : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                 CUmemAllocationType type)
{
    CUdevice place;
    CU_TRY(cu_ready());
    return place_of(location, type, &place) ? get_pool(pool, place, false)
                                            : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                 CUmemoryPool pool)
{
    CUdevice place;
    CU_TRY(cu_ready());
    return place_of(location, type, &place) ? set_pool(place, pool) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void *value)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_POOL, pool) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(cuuint64_t *)value;
    else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        pool->reserved_high = pool->reserved;
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        pool->used_high = pool->used;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void *value)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_POOL, pool) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = pool->threshold;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->reserved;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = pool->reserved_high;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->used;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = pool->used_high;
        break;
    default: /* the rules of reuse: all are on */
        *(int *)value = 1;
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_POOL, pool))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    trim(pool, keep);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cu_pool_import(CUmemoryPool *out, CUdevice device)
{
    pthread_mutex_lock(&lock);
    CUmemoryPool pool = new_pool(device);
    if (pool)
        pool->imported = true;
    pthread_mutex_unlock(&lock);
    *out = pool;
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUdevice cu_pool_device(CUmemoryPool pool)
{
    return pool->device == ON_HOST ? -1 : pool->device;
}

uint32_t *cu_pool_reachable(CUmemoryPool pool)
{
    return &pool->reachable;
}
