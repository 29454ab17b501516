/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of memory pools. An allocation from memory that the pool already has costs nothing. One
 * that makes the pool grow is admitted by the size of the growth. That size is known only
 * afterwards. So the admission uses a guess, and is corrected or undone if the job would exceed its
 * cap.
 */
#include "hooks/memory/charge.h"
#include "hooks/memory/graph_nodes.h"
#include "memory/pools.h"
#include "memory/ipc.h"
#include "memory/graph_memory.h"

enum variant { ASYNC, ASYNC_PTSZ, FROM_POOL, FROM_POOL_PTSZ };

struct request {
    enum variant variant;
    CUdeviceptr *pointer;
    size_t size;
    CUmemoryPool pool;
    CUstream stream;
};

static bool ptsz(const struct request *request)
{
    return request->variant == ASYNC_PTSZ || request->variant == FROM_POOL_PTSZ;
}

static CUresult forward(const struct request *r)
{
    switch (r->variant) {
    case ASYNC:
        return QG_REAL(cuMemAllocAsync)(r->pointer, r->size, r->stream);
    case ASYNC_PTSZ:
        return QG_REAL(cuMemAllocAsync_ptsz)(r->pointer, r->size, r->stream);
    case FROM_POOL:
        return QG_REAL(cuMemAllocFromPoolAsync)(r->pointer, r->size, r->pool, r->stream);
    default:
        return QG_REAL(cuMemAllocFromPoolAsync_ptsz)(r->pointer, r->size, r->pool, r->stream);
    }
}

static CUresult undo(const struct request *r)
{
    return ptsz(r) ? QG_REAL(cuMemFreeAsync_ptsz)(*r->pointer, r->stream)
                   : QG_REAL(cuMemFreeAsync)(*r->pointer, r->stream);
}

/* Reserves for a growth. 0 is possible: then the pool must serve it from what it has. False:
 * refused. */
static bool admit(struct qg_card *card, CUmemoryPool pool, uint64_t size, uint64_t *reserved)
{
    *reserved = qg_pool_rounded(size);
    if (qg_reserve_now(card, *reserved))
        return true;
    *reserved = 0;
    if (qg_pool_spare(pool, size))
        return true;
    *reserved = size;
    return qg_reserve(card, size);
}

/* Frees an allocation that made the pool grow past the cap. */
static bool too_much(struct qg_card *card, uint64_t grown, uint64_t reserved)
{
    return grown > reserved && qg_job_used(card) > qg_cap(card);
}

static CUresult grown(const struct request *r, struct qg_card *card, CUmemoryPool pool,
                      struct qg_room *room)
{
    uint64_t reserved;
    for (bool again = false;; again = true) {
        if (!admit(card, pool, r->size, &reserved))
            return qg_room_refused(room);
        CUresult result = DIRECT(forward(r));
        uint64_t more = qg_pool_poll(pool, card, reserved);
        if (result != CUDA_SUCCESS)
            return result;
        if (!too_much(card, more, reserved)) {
            qg_record(card, QG_KIND_PIECE, *r->pointer, key_of(pool), r->size);
            return CUDA_SUCCESS;
        }
        DIRECT(undo(r));
        qg_pools_stale();
        qg_pools_trim(card);
        if (again) {
            qg_refuse(card, r->size);
            return qg_room_refused(room);
        }
    }
}

static CUresult by_growth(const struct request *r, struct qg_card *card, CUmemoryPool pool)
{
    return QG_ROOMY(card, r->size, grown(r, card, pool, &qg_room));
}

static CUresult by_size(const struct request *r, struct qg_card *card, CUcontext context)
{
    return QG_ROOMY(card, r->size,
                    ATTEMPT(card, r->size, forward(r),
                            qg_charge(card, r->size, QG_KIND_POINTER, *r->pointer,
                                      owner_of(context), r->size)));
}

/* The card of the stream, which gives the memory. It need not be the card of the current context,
 * and there need not be one. If the current context has died, the driver's error is returned. */
static CUresult card_of_stream(const struct request *r, struct qg_card **card)
{
    if (qg_stream_key(r->stream, ptsz(r)) <= 2)
        return qg_card_here(card);
    /* a pool says itself where it is */
    const struct qg_stream *stream = r->pool ? NULL : qg_stream_of(r->stream, ptsz(r));
    *card = stream ? stream->card : NULL;
    return CUDA_SUCCESS;
}

static CUresult allocate(const struct request *r)
{
    CUcontext context = NULL;
    if (ruled() && captured(r->stream, ptsz(r)))
        qg_graph_memory_exists();
    else if (ruled() && QG_REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && r->pointer &&
             (context || qg_stream_key(r->stream, ptsz(r)) > 2)) {
        struct qg_card *card;
        CUresult dead = card_of_stream(r, &card);
        if (dead != CUDA_SUCCESS)
            return dead;
        CUmemoryPool pool = r->pool;
        if (pool && qg_pool_in_host(pool))
            return forward(r);
        if (pool)
            card = qg_pool_card(pool);
        else if (card)
            pool = qg_pool_current(card);
        if (!card && (qg_stream_lost(r->stream) || (pool && qg_pool_lost(pool))))
            return forward(r); /* the driver says so */
        return card && pool && qg_pool_reports_size(pool) ? by_growth(r, card, pool)
                                                          : by_size(r, card, context);
    }
    return forward(r);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    return allocate(&(struct request){ASYNC, pointer, size, NULL, stream});
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    return allocate(&(struct request){ASYNC_PTSZ, pointer, size, NULL, stream});
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool,
                                 CUstream stream)
{
    return allocate(&(struct request){FROM_POOL, pointer, size, pool, stream});
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemoryPool pool,
                                      CUstream stream)
{
    return allocate(&(struct request){FROM_POOL_PTSZ, pointer, size, pool, stream});
}

#define FREE_ASYNC(name, ptsz)                                                                     \
    CUresult name(CUdeviceptr pointer, CUstream stream)                                            \
    {                                                                                              \
        struct qg_entry piece;                                                                     \
        if (!ruled() || captured(stream, ptsz))                                                    \
            return QG_REAL(name)(pointer, stream);                                                 \
        if (!qg_detach(QG_KIND_PIECE, pointer, &piece)) {                                          \
            FREED(QG_KIND_POINTER, pointer, QG_REAL(name)(pointer, stream));                       \
        }                                                                                          \
        CUresult result = DIRECT(QG_REAL(name)(pointer, stream));                                  \
        if (result == CUDA_SUCCESS)                                                                \
            qg_piece_freed(&piece);                                                                \
        else                                                                                       \
            qg_reattach(&piece);                                                                   \
        qg_pools_stale();                                                                          \
        return result;                                                                             \
    }

FREE_ASYNC(cuMemFreeAsync, false)
FREE_ASYNC(cuMemFreeAsync_ptsz, true)

/* ---- pools themselves ---- */

/* The place of a pool's memory, if the location says it. */
static enum qg_place placed(const CUmemLocation *location, CUmemAllocationType type,
                            struct qg_card **card)
{
    CUdevice ordinal;
    bool ordinal_known = qg_place_ordinal(location, &ordinal);
    *card = ordinal_known ? qg_card_by_ordinal(ordinal) : NULL;
    if (!place_counts(location, type)) /* managed memory that is not charged is as the host's */
        return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? QG_PLACE_HOST : qg_place_of(location->type);
    return ordinal_known ? QG_PLACE_CARD : QG_PLACE_NONE;
}

static CUresult create_elsewhere(CUmemoryPool *pool, const CUmemPoolProps *wanted)
{
    struct qg_card *card;
    CUresult result = QG_REAL(cuMemPoolCreate)(pool, wanted);
    enum qg_place place = placed(&wanted->location, wanted->allocType, &card);
    if (result == CUDA_SUCCESS)
        qg_pool_made(*pool, place, card);
    return result;
}

/* A pool may never be larger than the cap; drivers since 12.2 see to it themselves. A managed one
 * has no limit. */
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *wanted)
{
    if (!ruled() || !wanted)
        return QG_REAL(cuMemPoolCreate)(pool, wanted);
    if (qg_place_of(wanted->location.type) != QG_PLACE_CARD ||
        !place_counts(&wanted->location, wanted->allocType))
        return create_elsewhere(pool, wanted);
    struct qg_card *card = card_at(&wanted->location);
    if (!card) {
        qg_refuse(NULL, wanted->maxSize);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUmemPoolProps limited = *wanted;
    uint64_t cap = qg_cap(card);
    if (!limited.maxSize || limited.maxSize > cap)
        limited.maxSize = cap;
    CUresult result = DIRECT(QG_REAL(cuMemPoolCreate)(pool, &limited));
    /* older than the field */
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED)
        result = DIRECT(QG_REAL(cuMemPoolCreate)(pool, wanted));
    if (result == CUDA_SUCCESS)
        qg_pool_made(*pool, QG_PLACE_CARD, card);
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct qg_pool *known = ruled() ? qg_pool_destroying(pool) : NULL;
    CUresult result = QG_REAL(cuMemPoolDestroy)(pool);
    if (result == CUDA_SUCCESS && ruled())
        qg_pool_changed();
    qg_pool_destroyed(known, result == CUDA_SUCCESS);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult result = QG_REAL(cuMemPoolTrimTo)(pool, keep);
    struct qg_entry held; /* none: nothing came out of it that we would charge */
    if (ruled() && qg_find_entry(QG_KIND_POOL, key_of(pool), &held))
        qg_pool_poll(pool, &qg_cards[held.card], 0);
    return result;
}

/* Also finds the driver's own pools. A program that asks for a pool by its place gives us that
 * place. */
#define GETS(name)                                                                                 \
    CUresult name(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)           \
    {                                                                                              \
        struct qg_card *card;                                                                      \
        CUresult result = QG_REAL(name)(pool, location, type);                                     \
        if (result == CUDA_SUCCESS && ruled()) {                                                   \
            enum qg_place place = placed(location, type, &card);                                   \
            qg_pool_met(*pool, place, card);                                                       \
        }                                                                                          \
        return result;                                                                             \
    }

GETS(cuMemGetDefaultMemPool)
GETS(cuMemGetMemPool)

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    CUresult result = QG_REAL(cuDeviceSetMemPool)(device, pool);
    qg_pool_changed();
    return result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    CUresult result = QG_REAL(cuMemSetMemPool)(location, type, pool);
    qg_pool_changed();
    return result;
}
