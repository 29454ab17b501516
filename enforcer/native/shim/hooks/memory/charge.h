/* SPDX-License-Identifier: Apache-2.0
 *
 * What the hooks of memory share: brackets around one allocation and one release.
 */
#ifndef QG_CHARGE_H
#define QG_CHARGE_H

#include "gate/room.h"
#include "hooks/context/contexts.h"
#include "memory/memory.h"
#include "memory/place.h"
#include "track/streams.h"

/* False for calls of our own and in a process without a grant. */
static inline bool ruled(void)
{
    return qg_info.mode != QG_MODE_NONE && !qg_depth;
}

static inline uint64_t key_of(const void *handle)
{
    return (uint64_t)(uintptr_t)handle;
}

/* The context with whose end the allocations of this context end. */
static inline uint64_t owner_of(CUcontext context)
{
    return key_of(qg_context_owner(context));
}

/* enforcer.managed: resident. */
static inline bool managed_free(void)
{
    return qg_info.grant.cards[0].flags & QG_GRANT_CARD_MANAGED_RESIDENT;
}

/* Whether memory of this kind at this place is charged at its allocation. */
static inline bool place_counts(const CUmemLocation *location, CUmemAllocationType type)
{
    return qg_place_counts(location, type) &&
           !(type == CU_MEM_ALLOCATION_TYPE_MANAGED && managed_free());
}

/* The card that a location names, else (it is of a kind that we do not know) that of the current
 * context. */
static inline struct qg_card *card_at(const CUmemLocation *location)
{
    CUdevice ordinal;
    return qg_place_ordinal(location, &ordinal) ? qg_card_by_ordinal(ordinal) : qg_card_current();
}

/* A call of our own into the driver. */
#define DIRECT(call)                                                                               \
    ({                                                                                             \
        qg_depth++;                                                                                \
        CUresult qg_direct = (call);                                                               \
        qg_depth--;                                                                                \
        qg_direct;                                                                                 \
    })

/* One try of a call that takes `size` bytes of the card; `charge` is what follows if it got them.
 */
#define ATTEMPT(card, size, call, charge)                                                          \
    ({                                                                                             \
        CUresult qg_result = CUDA_ERROR_OUT_OF_MEMORY;                                             \
        if (!qg_reserve(card, size)) {                                                             \
            qg_room_refused(&qg_room);                                                             \
        } else {                                                                                   \
            qg_result = DIRECT(call);                                                              \
            if (qg_result != CUDA_SUCCESS)                                                         \
                qg_unreserve(card, size);                                                          \
            else                                                                                   \
                charge;                                                                            \
        }                                                                                          \
        qg_result;                                                                                 \
    })

/* Brackets an allocation on the card of the current context. Without a current context the driver
 * itself returns the error. */
#define CHARGED(size, call, kind, key, actual)                                                     \
    CUcontext qg_context = NULL;                                                                   \
    if (!ruled() || QG_REAL(cuCtxGetCurrent)(&qg_context) || !qg_context)                          \
        return call;                                                                               \
    struct qg_card *qg_card;                                                                       \
    CUresult qg_dead = qg_card_here(&qg_card);                                                     \
    if (qg_dead != CUDA_SUCCESS)                                                                   \
        return qg_dead;                                                                            \
    uint64_t qg_size = (size);                                                                     \
    return QG_ROOMY(qg_card, qg_size,                                                              \
                    ATTEMPT(qg_card, qg_size, call,                                                \
                            qg_charge(qg_card, qg_size, kind, (uint64_t)(uintptr_t)(key),          \
                                      owner_of(qg_context), actual)))

/* Brackets a release. The entry is detached first: another thread may get the address before the
 * driver returns. */
#define FREED(kind, key, call)                                                                     \
    struct qg_entry qg_entry;                                                                      \
    if (!ruled() || !qg_detach(kind, (uint64_t)(uintptr_t)(key), &qg_entry))                       \
        return call;                                                                               \
    CUresult qg_result = DIRECT(call);                                                             \
    if (qg_result == CUDA_SUCCESS)                                                                 \
        qg_commit(&qg_entry);                                                                      \
    else                                                                                           \
        qg_reattach(&qg_entry);                                                                    \
    return qg_result

/* In a capture nothing is allocated: the call becomes a node of a graph. */
static inline bool captured(CUstream stream, bool ptsz)
{
    if (!__atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE))
        return false;
    struct qg_stream *record = qg_stream_of(stream, ptsz);
    return record && qg_stream_captures(record);
}

#endif
