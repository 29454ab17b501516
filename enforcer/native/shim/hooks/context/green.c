/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of green contexts. A green context is a part of a card's primary context and is used like a
 * context of its own. It holds a reference to the primary context, which owns its allocations.
 */
#include "hooks/context/contexts.h"
#include "groups/rm.h"
#include "memory/contexts.h"
#include "track/streams.h"
#include "window/window.h"

void qg_greens_gone(CUcontext primary)
{
    struct qg_green one;
    while (__atomic_load_n(&qg_greens, __ATOMIC_RELAXED) &&
           qg_green_find(NULL, primary, true, &one)) {
        qg_streams_context_gone(one.context);
        qg_window_context_gone(one.context);
    }
}

static CUresult create(CUgreenCtx *handle, CUdevResourceDesc resources, CUdevice device,
                       unsigned int flags, struct qg_room *room)
{
    struct qg_making making;
    if (!qg_primary_begins(device, &making))
        return qg_room_refused(room);
    room->size = making.bytes;
    bool counted = !qg_depth && qg_rm_making();
    struct qg_green one = {.device = device};
    CUresult result = QG_REAL(cuGreenCtxCreate)(handle, resources, device, flags);
    qg_context_made(&making, making.card && result == CUDA_SUCCESS ? qg_primary(device) : NULL);
    qg_primary_retained(device, counted, result);
    if (result != CUDA_SUCCESS || !qg_governed || qg_depth)
        return result;
    one.handle = *handle;
    one.primary = qg_primary(device);
    if (QG_REAL(cuCtxFromGreenCtx)(&one.context, *handle) == CUDA_SUCCESS && one.context)
        qg_green_add(&one);
    return result;
}

CUresult cuGreenCtxCreate(CUgreenCtx *handle, CUdevResourceDesc resources, CUdevice device,
                          unsigned int flags)
{
    struct qg_room room = {0};
    CUresult result;
    if (qg_context_refused(device))
        return CUDA_ERROR_NOT_PERMITTED;
    do {
        qg_primary_await(device, &room);
        result = create(handle, resources, device, flags, &room);
    } while (qg_room_again(&room, result));
    return result;
}

/* Work in its streams goes on, but no more can be submitted to them, so the last fence goes in
 * before. The record is retired before the call too: the driver may give the same handle to another
 * thread's new context at once. */
CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
    struct qg_green one;
    if (!qg_governed || qg_depth || !qg_green_find(handle, NULL, false, &one))
        return QG_REAL(cuGreenCtxDestroy)(handle);
    qg_observe_context(one.context);
    struct qg_primary_end end = qg_primary_ending(one.device, false);
    bool apart = qg_green_find(handle, NULL, true, &one);
    if (apart) {
        qg_streams_green_gone(one.context);
        qg_window_context_gone(one.context);
    }
    CUresult result = QG_REAL(cuGreenCtxDestroy)(handle);
    if (apart && result != CUDA_SUCCESS)
        qg_green_add(&one);
    qg_primary_ended(one.device, &end, result);
    return result;
}
