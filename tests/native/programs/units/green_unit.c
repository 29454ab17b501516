/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles of green contexts are used again: while one thread is in cuGreenCtxDestroy(), another's
 * cuGreenCtxCreate() may be given the same. The driver here does that each time.
 */
#include <stdio.h>
#include <stdlib.h>

#include "hooks/context/contexts.h"
#include "groups/rm.h"
#include "memory/contexts.h"
#include "track/streams.h"
#include "window/window.h"

#define HANDLE  ((CUgreenCtx)0x10)
#define CONTEXT ((CUcontext)0x20)
#define PRIMARY ((CUcontext)0x30)

void *qg_real[QG_NSYMBOLS];
bool qg_governed = true;
__thread int qg_depth;

static unsigned ended, gone;
static bool again, fails;

void qg_primary_await(CUdevice device, struct qg_room *room)
{
    (void)device, (void)room;
}
bool qg_room_awaited(struct qg_room *room)
{
    (void)room;
    return false;
}
void qg_room_over(const struct qg_room *room)
{
    (void)room;
}
void qg_observe_context(CUcontext context)
{
    (void)context;
}
void qg_streams_context_gone(CUcontext context)
{
    (void)context;
}
void qg_streams_green_gone(CUcontext context)
{
    gone += context == CONTEXT && qg_green_context(HANDLE) != CONTEXT;
}
void qg_window_context_gone(CUcontext context)
{
    (void)context;
}
bool qg_context_refused(CUdevice device)
{
    (void)device;
    return false;
}
bool qg_primary_begins(CUdevice device, struct qg_making *making)
{
    (void)device;
    *making = (struct qg_making){.primary = -1};
    return true;
}
void qg_context_made(const struct qg_making *making, CUcontext context)
{
    (void)making, (void)context;
}
bool qg_rm_making(void)
{
    return false;
}
void qg_primary_retained(CUdevice device, bool counted, CUresult result)
{
    (void)device, (void)counted, (void)result;
}
CUcontext qg_primary(CUdevice device)
{
    return device == 0 ? PRIMARY : NULL;
}
struct qg_primary_end qg_primary_ending(CUdevice device, bool all)
{
    (void)device, (void)all;
    return (struct qg_primary_end){0};
}

void qg_primary_ended(CUdevice device, const struct qg_primary_end *end, CUresult result)
{
    (void)device, (void)end;
    ended += result == CUDA_SUCCESS;
}

static CUresult create(CUgreenCtx *handle, CUdevResourceDesc resources, CUdevice device,
                       unsigned int flags)
{
    (void)resources, (void)device, (void)flags;
    *handle = HANDLE;
    return CUDA_SUCCESS;
}

static CUresult context_of(CUcontext *context, CUgreenCtx handle)
{
    *context = handle == HANDLE ? CONTEXT : NULL;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUgreenCtx handle)
{
    CUgreenCtx made;
    if (fails || handle != HANDLE)
        return CUDA_ERROR_INVALID_VALUE;
    return again ? cuGreenCtxCreate(&made, NULL, 0, 0) : CUDA_SUCCESS;
}

#define CHECK(what)                                                                                \
    if (!(what)) {                                                                                 \
        printf("line %d: %s\n", __LINE__, #what);                                                  \
        return 1;                                                                                  \
    }

int main(void)
{
    CUgreenCtx handle;
    qg_real[QG_SYM_cuGreenCtxCreate] = (void *)create;
    qg_real[QG_SYM_cuCtxFromGreenCtx] = (void *)context_of;
    qg_real[QG_SYM_cuGreenCtxDestroy] = (void *)destroy;
    CHECK(cuGreenCtxCreate(&handle, NULL, 0, 0) == CUDA_SUCCESS &&
          qg_context_owner(CONTEXT) == PRIMARY);
    fails = true;
    CHECK(cuGreenCtxDestroy(handle) == CUDA_ERROR_INVALID_VALUE &&
          qg_context_owner(CONTEXT) == PRIMARY && !ended);
    fails = false;
    gone = 0;
    again = true;
    CHECK(cuGreenCtxDestroy(handle) == CUDA_SUCCESS && ended == 1 && gone == 1);
    CHECK(qg_greens == 1 && qg_context_owner(CONTEXT) == PRIMARY &&
          qg_green_context(HANDLE) == CONTEXT);
    again = false;
    CHECK(cuGreenCtxDestroy(handle) == CUDA_SUCCESS && ended == 2 && gone == 2);
    CHECK(qg_greens == 0 && qg_context_owner(CONTEXT) == CONTEXT && !qg_green_context(HANDLE));
    return 0;
}
