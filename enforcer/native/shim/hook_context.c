/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of contexts that end and take their memory with them.
 */
#include "charge.h"
#include "pools.h"
#include "window.h"

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

/* Set apart before the call: the driver may give the same handle to another thread's new context at once. */
#define DESTROYS(name)                                                         \
    CUresult name(CUcontext context)                                           \
    {                                                                          \
        bool apart = qg_governed && !qg_depth && context;                      \
        if (apart)                                                             \
            qg_memory_context_ends(context);                                   \
        CUresult result = QG_REAL(name)(context);                              \
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

#define PRIMARY(name)                                                          \
    CUresult name(CUdevice device)                                             \
    {                                                                          \
        CUcontext context = primary(device);                                   \
        CUresult result = QG_REAL(name)(device);                               \
        if (context && result == CUDA_SUCCESS && !primary_active(device)) {    \
            qg_memory_context_ends(context);                                   \
            context_gone(context);                                             \
        }                                                                      \
        return result;                                                         \
    }

PRIMARY(cuDevicePrimaryCtxReset)
PRIMARY(cuDevicePrimaryCtxReset_v2)
PRIMARY(cuDevicePrimaryCtxRelease)
PRIMARY(cuDevicePrimaryCtxRelease_v2)
