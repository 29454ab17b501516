/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of contexts. Their channel groups are reported before the first work. When a context ends
 * and frees its memory, none of its groups is stopped by hardware preemption.
 */
#include "hooks/memory/charge.h"
#include "hooks/context/contexts.h"
#include "memory/contexts.h"
#include "memory/pools.h"
#include "groups/rm.h"
#include "link/link.h"
#include "window/window.h"

#include <stdlib.h>
#include <string.h>

void qg_context_gone(CUcontext context)
{
    if (!qg_governed || !context)
        return;
    qg_greens_gone(context);
    qg_memory_context_gone(context);
    qg_pools_stale(); /* the driver may have freed unused memory of pools with the context */
    qg_pools_stale();
    qg_pools_poll();
    qg_streams_context_gone(context);
    qg_window_context_gone(context);
}

/* Before a context is admitted: a new process of a held job waits. It hears of that when it is
 * registered. */
void qg_context_await(CUdevice device, struct qg_room *room)
{
    struct qg_card *card = qg_governed && !qg_depth ? qg_card_by_ordinal(device) : NULL;
    if (card && !qg_pages_of(card))
        qg_link_for_memory(card);
    qg_room_look(room, card, 0);
}

#define MAKES(name, parameters, arguments)                                                         \
    CUresult name parameters                                                                       \
    {                                                                                              \
        if (qg_context_refused(device))                                                            \
            return CUDA_ERROR_NOT_PERMITTED;                                                       \
        struct qg_room room = {0};                                                                 \
        CUresult result;                                                                           \
        do {                                                                                       \
            struct qg_making making;                                                               \
            qg_context_await(device, &room);                                                       \
            if (!qg_context_begins(device, &making)) {                                             \
                result = qg_room_refused(&room);                                                   \
                continue;                                                                          \
            }                                                                                      \
            room.size = making.bytes;                                                              \
            bool counted = !qg_depth && qg_rm_making();                                            \
            result = QG_REAL(name) arguments;                                                      \
            qg_context_made(&making, result == CUDA_SUCCESS ? *context : NULL);                    \
            qg_rm_context_made(counted, result == CUDA_SUCCESS && !qg_depth);                      \
        } while (qg_room_again(&room, result));                                                    \
        return result;                                                                             \
    }

MAKES(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),
      (context, flags, device))
MAKES(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),
      (context, flags, device))
MAKES(cuCtxCreate_v3,
      (CUcontext * context, CUexecAffinityParam *affinity, int count, unsigned int flags,
       CUdevice device),
      (context, affinity, count, flags, device))
MAKES(cuCtxCreate_v4,
      (CUcontext * context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device),
      (context, parameters, flags, device))

static struct qg_card *card_of(CUcontext context)
{
    CUcontext popped;
    qg_depth++;
    bool pushed = QG_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
    struct qg_card *card = pushed ? qg_card_current() : NULL;
    if (pushed)
        QG_REAL(cuCtxPopCurrent_v2)(&popped);
    qg_depth--;
    return card;
}

/* ---- usage counts of CUDA 2: cuCtxAttach() adds one, and the last cuCtxDetach() destroys the
 * context ---- */

static pthread_mutex_t usage_lock = PTHREAD_MUTEX_INITIALIZER;
static struct usage {
    CUcontext context;
    unsigned more; /* references besides the one of its creation */
    struct usage *next;
} *usages;

static void uses_begin(CUcontext context, unsigned count)
{
    struct usage *one;
    pthread_mutex_lock(&usage_lock);
    for (one = usages; one && one->context != context; one = one->next)
        ;
    if (!one && (one = calloc(1, sizeof(*one))) != NULL) {
        one->context = context;
        one->next = usages;
        usages = one;
    }
    if (one)
        one->more += count;
    pthread_mutex_unlock(&usage_lock);
}

/* Takes one away, or all. Returns how many; 0: there was none, so this is the last. */
static unsigned uses_end(CUcontext context, bool all)
{
    unsigned count = 0;
    pthread_mutex_lock(&usage_lock);
    for (struct usage *one = usages; one; one = one->next) {
        if (one->context != context)
            continue;
        count = all || !one->more ? one->more : 1;
        one->more -= count;
    }
    pthread_mutex_unlock(&usage_lock);
    return count;
}

CUresult cuCtxAttach(CUcontext *context, unsigned int flags)
{
    CUresult result = QG_REAL(cuCtxAttach)(context, flags);
    if (result == CUDA_SUCCESS && qg_governed && !qg_depth && context)
        uses_begin(*context, 1);
    return result;
}

/* The record is retired before the call: the driver may give the same handle to another thread's
 * new context at once. */
#define DESTROYS(name, all)                                                                        \
    CUresult name(CUcontext context)                                                               \
    {                                                                                              \
        bool ours = qg_governed && !qg_depth && context;                                           \
        unsigned uses = ours ? uses_end(context, all) : 0;                                         \
        bool apart = ours && (all || !uses);                                                       \
        struct qg_card *left = apart && qg_rm_reports() ? card_of(context) : NULL;                 \
        left = qg_rm_leave(left) ? left : NULL;                                                    \
        if (apart) {                                                                               \
            qg_memory_context_ends(context);                                                       \
            qg_streams_context_ends(context);                                                      \
        }                                                                                          \
        CUresult result = QG_REAL(name)(context);                                                  \
        if (left)                                                                                  \
            qg_rm_left(left);                                                                      \
        if (uses && result != CUDA_SUCCESS)                                                        \
            uses_begin(context, uses);                                                             \
        if (apart && result == CUDA_SUCCESS) {                                                     \
            qg_context_gone(context);                                                              \
        } else if (apart) {                                                                        \
            qg_memory_context_stays(context);                                                      \
            qg_streams_context_stays(context);                                                     \
        }                                                                                          \
        return result;                                                                             \
    }

DESTROYS(cuCtxDestroy_v2, true)
DESTROYS(cuCtxDestroy, true)
DESTROYS(cuCtxDetach, false)

/* The primary context's handle, while it lives. */
CUcontext qg_primary(CUdevice device)
{
    unsigned int flags;
    int active = 0;
    CUcontext context = NULL;
    if (!qg_governed || qg_depth ||
        QG_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || !active ||
        QG_REAL(cuDevicePrimaryCtxRetain)(&context, device) != CUDA_SUCCESS)
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

/* One record per primary context. A release subtracts its reference before the driver's call. So of
 * several threads that release at once, the thread that takes the last reference knows it. The
 * driver may get their calls in another order. So preparations for an end stay until all these
 * calls have returned. */
static struct primary {
    pthread_mutex_t lock; /* never held across a call of the driver */
    unsigned retained;    /* references that the program has */
    unsigned releasing;   /* releases under way */
    bool ended;           /* qg_streams_context_ends() was called */
    unsigned left;        /* times that qg_rm_leave() returned true */
} primaries[QG_MAX_ORDINALS] = {[0 ... QG_MAX_ORDINALS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static bool counts(CUdevice device)
{
    return qg_governed && !qg_depth && device >= 0 && device < QG_MAX_ORDINALS;
}

void qg_primary_retained(CUdevice device, bool counted, CUresult result)
{
    bool ours = result == CUDA_SUCCESS && counts(device);
    if (ours) {
        pthread_mutex_lock(&primaries[device].lock);
        primaries[device].retained++;
        pthread_mutex_unlock(&primaries[device].lock);
    }
    qg_rm_context_made(counted, ours);
}

/* One that exists costs nothing more. */
void qg_primary_await(CUdevice device, struct qg_room *room)
{
    if (counts(device) && !primary_active(device))
        qg_context_await(device, room);
    else
        room->pages = NULL;
}

static CUresult retain(CUcontext *context, CUdevice device, struct qg_room *room)
{
    struct qg_making making;
    if (!qg_primary_begins(device, &making))
        return qg_room_refused(room);
    room->size = making.bytes;
    bool counted = !qg_depth && qg_rm_making();
    CUresult result = QG_REAL(cuDevicePrimaryCtxRetain)(context, device);
    qg_context_made(&making, result == CUDA_SUCCESS ? *context : NULL);
    qg_primary_retained(device, counted, result);
    return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    if (qg_context_refused(device))
        return CUDA_ERROR_NOT_PERMITTED;
    struct qg_room room = {0};
    CUresult result;
    do {
        qg_primary_await(device, &room);
        result = retain(context, device, &room);
    } while (qg_room_again(&room, result));
    return result;
}

/* Before a release; `all`: a reset drops every reference. True: this may be the last one. */
static bool release_begins(struct primary *primary, bool all, struct qg_primary_end *end)
{
    pthread_mutex_lock(&primary->lock);
    end->taken = all ? primary->retained : primary->retained != 0;
    primary->retained -= end->taken;
    primary->releasing++;
    bool last = !primary->retained;
    pthread_mutex_unlock(&primary->lock);
    return last;
}

/* `gone`: the context is no more. In *was: what was prepared and is to be taken back now, by this
 * thread. */
static void release_ends(struct primary *primary, const struct qg_primary_end *end, bool failed,
                         bool gone, struct primary *was)
{
    *was = (struct primary){.ended = false};
    pthread_mutex_lock(&primary->lock);
    primary->retained += failed ? end->taken : 0;
    primary->ended &= !gone;
    if (!--primary->releasing) {
        was->ended = primary->ended;
        was->left = primary->left;
        primary->ended = false;
        primary->left = 0;
    }
    pthread_mutex_unlock(&primary->lock);
}

static void prepared(struct primary *primary, bool ended, bool left)
{
    pthread_mutex_lock(&primary->lock);
    primary->ended |= ended;
    primary->left += left;
    pthread_mutex_unlock(&primary->lock);
}

void qg_primaries_after_fork(void)
{
    for (unsigned i = 0; i < QG_MAX_ORDINALS; i++) {
        memset(&primaries[i], 0, sizeof(primaries[i]));
        pthread_mutex_init(&primaries[i].lock, NULL);
    }
    pthread_mutex_init(&usage_lock, NULL);
    usages = NULL; /* the parent's */
    qg_greens_after_fork();
}

struct qg_primary_end qg_primary_ending(CUdevice device, bool all)
{
    struct qg_primary_end end = {.counted = counts(device)};
    if (!end.counted)
        return end;
    struct primary *primary = &primaries[device];
    bool last = release_begins(primary, all, &end);
    end.context = qg_primary(device);
    if (last)
        prepared(primary, false, qg_rm_reports() && qg_rm_leave(qg_card_by_ordinal(device)));
    if (last && end.context) {
        prepared(primary, true, false);
        qg_streams_context_ends(end.context);
    }
    return end;
}

void qg_primary_ended(CUdevice device, const struct qg_primary_end *end, CUresult result)
{
    struct primary was;
    if (!end->counted)
        return;
    bool gone = end->context && result == CUDA_SUCCESS && !primary_active(device);
    release_ends(&primaries[device], end, result != CUDA_SUCCESS, gone, &was);
    for (struct qg_card *card = was.left ? qg_card_by_ordinal(device) : NULL; card && was.left;
         was.left--)
        qg_rm_left(card);
    if (gone) {
        qg_memory_context_ends(end->context);
        qg_context_gone(end->context);
    } else if (was.ended && end->context) {
        qg_streams_context_stays(end->context);
    }
}

#define PRIMARY(name, all)                                                                         \
    CUresult name(CUdevice device)                                                                 \
    {                                                                                              \
        struct qg_primary_end end = qg_primary_ending(device, all);                                \
        CUresult result = QG_REAL(name)(device);                                                   \
        qg_primary_ended(device, &end, result);                                                    \
        return result;                                                                             \
    }

PRIMARY(cuDevicePrimaryCtxReset, true)
PRIMARY(cuDevicePrimaryCtxReset_v2, true)
PRIMARY(cuDevicePrimaryCtxRelease, false)
PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
