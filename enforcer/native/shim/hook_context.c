/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of contexts: their channel groups are told before the first work, and nothing of a context is stopped by hardware
 * when it ends and takes its memory with it.
 */
#include "charge.h"
#include "contexts.h"
#include "pools.h"
#include "rm.h"
#include "window.h"

#include <stdlib.h>
#include <string.h>

void qg_context_gone(CUcontext context)
{
    if (!qg_governed || !context)
        return;
    qg_greens_gone(context);
    qg_memory_context_gone(context);
    qg_pools_stale();
    qg_pools_settled();
    qg_streams_context_gone(context);
    qg_window_context_gone(context);
}

#define MAKES(name, parameters, arguments)                                     \
    CUresult name parameters                                                   \
    {                                                                          \
        bool counted = !qg_depth && qg_rm_making();                            \
        CUresult result = QG_REAL(name) arguments;                             \
        qg_rm_context_made(counted, result == CUDA_SUCCESS && !qg_depth);      \
        return result;                                                         \
    }

MAKES(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device), (context, flags, device))
MAKES(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device), (context, flags, device))
MAKES(cuCtxCreate_v3, (CUcontext * context, CUexecAffinityParam *affinity, int count, unsigned int flags, CUdevice device),
      (context, affinity, count, flags, device))
MAKES(cuCtxCreate_v4, (CUcontext * context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device),
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

/* ---- usage counts of CUDA 2: cuCtxAttach() adds one, and the last cuCtxDetach() destroys the context --------- */

static pthread_mutex_t usage_lock = PTHREAD_MUTEX_INITIALIZER;
static struct usage {
    CUcontext context;
    unsigned more; /* than the one that its creation gave it */
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

/* Set apart before the call: the driver may give the same handle to another thread's new context at once. */
#define DESTROYS(name, all)                                                    \
    CUresult name(CUcontext context)                                           \
    {                                                                          \
        bool ours = qg_governed && !qg_depth && context;                       \
        unsigned uses = ours ? uses_end(context, all) : 0;                     \
        bool apart = ours && (all || !uses);                                   \
        struct qg_card *left = apart && qg_rm_any() ? card_of(context) : NULL; \
        left = qg_rm_leave(left) ? left : NULL;                                \
        if (apart) {                                                           \
            qg_memory_context_ends(context);                                   \
            qg_streams_context_ends(context);                                  \
        }                                                                      \
        CUresult result = QG_REAL(name)(context);                              \
        if (left)                                                              \
            qg_rm_left(left);                                                  \
        if (uses && result != CUDA_SUCCESS)                                    \
            uses_begin(context, uses);                                         \
        if (apart && result == CUDA_SUCCESS) {                                 \
            qg_context_gone(context);                                          \
        } else if (apart) {                                                    \
            qg_memory_context_stays(context);                                  \
            qg_streams_context_stays(context);                                 \
        }                                                                      \
        return result;                                                         \
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

static unsigned retained[QG_MAX_ORDINALS]; /* atomic: references that the program has to primary contexts */

static bool counts(CUdevice device)
{
    return qg_governed && !qg_depth && device >= 0 && device < QG_MAX_ORDINALS;
}

void qg_primary_retained(CUdevice device, bool counted, CUresult result)
{
    bool ours = result == CUDA_SUCCESS && counts(device);
    if (ours)
        __atomic_add_fetch(&retained[device], 1, __ATOMIC_RELAXED);
    qg_rm_context_made(counted, ours);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    bool counted = !qg_depth && qg_rm_making();
    CUresult result = QG_REAL(cuDevicePrimaryCtxRetain)(context, device);
    qg_primary_retained(device, counted, result);
    return result;
}

/* Before a release: whether this may be the last reference. `all`: a reset drops them all. */
static bool may_be_last(CUdevice device, bool all)
{
    return counts(device) && (all || __atomic_load_n(&retained[device], __ATOMIC_RELAXED) <= 1);
}

/* The card, if it may be. */
static struct qg_card *leave_primary(CUdevice device, bool all)
{
    struct qg_card *card = may_be_last(device, all) && qg_rm_any() ? qg_card_by_ordinal(device) : NULL;
    return qg_rm_leave(card) ? card : NULL;
}

static void released(CUdevice device, bool all)
{
    unsigned now = counts(device) ? __atomic_load_n(&retained[device], __ATOMIC_RELAXED) : 0;
    while (now && !__atomic_compare_exchange_n(&retained[device], &now, all ? 0 : now - 1, false, __ATOMIC_RELAXED,
                                               __ATOMIC_RELAXED))
        ;
}

void qg_primaries_after_fork(void)
{
    memset(retained, 0, sizeof(retained));
    pthread_mutex_init(&usage_lock, NULL);
    usages = NULL; /* the parent's */
    qg_greens_after_fork();
}

struct qg_primary_end qg_primary_ending(CUdevice device, bool all)
{
    struct qg_primary_end end = {.context = qg_primary(device), .left = leave_primary(device, all)};
    if (end.context && may_be_last(device, all))
        qg_streams_context_ends(end.context);
    return end;
}

void qg_primary_ended(CUdevice device, bool all, const struct qg_primary_end *end, CUresult result)
{
    if (end->left)
        qg_rm_left(end->left);
    if (result == CUDA_SUCCESS)
        released(device, all);
    if (!end->context)
        return;
    if (result == CUDA_SUCCESS && !primary_active(device)) {
        qg_memory_context_ends(end->context);
        qg_context_gone(end->context);
    } else {
        qg_streams_context_stays(end->context);
    }
}

#define PRIMARY(name, all)                                                     \
    CUresult name(CUdevice device)                                             \
    {                                                                          \
        struct qg_primary_end end = qg_primary_ending(device, all);            \
        CUresult result = QG_REAL(name)(device);                               \
        qg_primary_ended(device, all, &end, result);                           \
        return result;                                                         \
    }

PRIMARY(cuDevicePrimaryCtxReset, true)
PRIMARY(cuDevicePrimaryCtxReset_v2, true)
PRIMARY(cuDevicePrimaryCtxRelease, false)
PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
