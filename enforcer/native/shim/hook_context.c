/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of contexts: their channel groups are told before the first work, and nothing of a context is stopped by hardware
 * when it ends and takes its memory with it.
 */
#include "charge.h"
#include "pools.h"
#include "rm.h"
#include "window.h"

#include <string.h>

static void context_gone(CUcontext context)
{
    if (!qg_governed || !context)
        return;
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

/* Set apart before the call: the driver may give the same handle to another thread's new context at once. */
#define DESTROYS(name)                                                         \
    CUresult name(CUcontext context)                                           \
    {                                                                          \
        bool apart = qg_governed && !qg_depth && context;                      \
        struct qg_card *left = apart && qg_rm_any() ? card_of(context) : NULL; \
        left = qg_rm_leave(left) ? left : NULL;                                \
        if (apart)                                                             \
            qg_memory_context_ends(context);                                   \
        CUresult result = QG_REAL(name)(context);                              \
        if (left)                                                              \
            qg_rm_left(left);                                                  \
        if (apart && result == CUDA_SUCCESS)                                   \
            context_gone(context);                                             \
        else if (apart)                                                        \
            qg_memory_context_stays(context);                                  \
        return result;                                                         \
    }

DESTROYS(cuCtxDestroy_v2)
DESTROYS(cuCtxDestroy)

/* The primary context's handle, while it lives. */
static CUcontext primary(CUdevice device)
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

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    bool counted = !qg_depth && qg_rm_making();
    CUresult result = QG_REAL(cuDevicePrimaryCtxRetain)(context, device);
    bool ours = result == CUDA_SUCCESS && counts(device);
    if (ours)
        __atomic_add_fetch(&retained[device], 1, __ATOMIC_RELAXED);
    qg_rm_context_made(counted, ours);
    return result;
}

/* Before a release: the card, if this may be the last reference. `all`: a reset drops them all. */
static struct qg_card *leave_primary(CUdevice device, bool all)
{
    if (!counts(device) || !qg_rm_any())
        return NULL;
    struct qg_card *card = qg_card_by_ordinal(device);
    bool last = all || __atomic_load_n(&retained[device], __ATOMIC_RELAXED) <= 1;
    return last && qg_rm_leave(card) ? card : NULL;
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
}

#define PRIMARY(name, all)                                                     \
    CUresult name(CUdevice device)                                             \
    {                                                                          \
        CUcontext context = primary(device);                                   \
        struct qg_card *left = leave_primary(device, all);                     \
        CUresult result = QG_REAL(name)(device);                               \
        if (left)                                                              \
            qg_rm_left(left);                                                  \
        if (result == CUDA_SUCCESS)                                            \
            released(device, all);                                             \
        if (context && result == CUDA_SUCCESS && !primary_active(device)) {    \
            qg_memory_context_ends(context);                                   \
            context_gone(context);                                             \
        }                                                                      \
        return result;                                                         \
    }

PRIMARY(cuDevicePrimaryCtxReset, true)
PRIMARY(cuDevicePrimaryCtxReset_v2, true)
PRIMARY(cuDevicePrimaryCtxRelease, false)
PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
