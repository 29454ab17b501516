/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of green contexts: parts of a card's primary context that go as contexts of their own. Each
 * holds a reference to the primary one; what is allocated in it is the primary one's.
 */
#include "contexts.h"
#include "rm.h"
#include "streams.h"
#include "window.h"

#include <stdlib.h>

static struct green {
    CUgreenCtx handle;
    CUcontext context, primary;
    CUdevice device;
    struct green *next;
} *greens;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* nothing is called under it */
unsigned qg_greens;

void qg_greens_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    greens = NULL; /* the parent's */
    __atomic_store_n(&qg_greens, 0, __ATOMIC_RELAXED);
}

CUcontext qg_green_owner(CUcontext context)
{
    CUcontext owner = context;
    pthread_mutex_lock(&lock);
    for (const struct green *one = greens; one; one = one->next)
        if (one->context == context)
            owner = one->primary;
    pthread_mutex_unlock(&lock);
    return owner;
}

CUcontext qg_green_context(CUgreenCtx handle)
{
    CUcontext context = NULL;
    pthread_mutex_lock(&lock);
    for (const struct green *one = greens; one && !context; one = one->next)
        if (one->handle == handle)
            context = one->context;
    pthread_mutex_unlock(&lock);
    return context;
}

static void enlist(const struct green *made)
{
    struct green *one = malloc(sizeof(*one));
    if (!one)
        return;
    *one = *made;
    pthread_mutex_lock(&lock);
    one->next = greens;
    greens = one;
    __atomic_add_fetch(&qg_greens, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

/* The one of this handle (or, without, one of this primary context), and out of the list with it if
 * it is over. */
static bool find(CUgreenCtx handle, CUcontext primary, bool over, struct green *out)
{
    pthread_mutex_lock(&lock);
    struct green **link = &greens, *one;
    while ((one = *link) != NULL && (handle ? one->handle != handle : one->primary != primary))
        link = &one->next;
    if (one)
        *out = *one;
    if (one && over) {
        *link = one->next;
        __atomic_sub_fetch(&qg_greens, 1, __ATOMIC_RELAXED);
        free(one);
    }
    pthread_mutex_unlock(&lock);
    return one != NULL;
}

void qg_greens_gone(CUcontext primary)
{
    struct green one;
    while (__atomic_load_n(&qg_greens, __ATOMIC_RELAXED) && find(NULL, primary, true, &one)) {
        qg_streams_context_gone(one.context);
        qg_window_context_gone(one.context);
    }
}

CUresult cuGreenCtxCreate(CUgreenCtx *handle, CUdevResourceDesc resources, CUdevice device,
                          unsigned int flags)
{
    if (qg_context_refused(device))
        return CUDA_ERROR_NOT_PERMITTED;
    bool counted = !qg_depth && qg_rm_making();
    struct green one = {.device = device};
    CUresult result = QG_REAL(cuGreenCtxCreate)(handle, resources, device, flags);
    qg_primary_retained(device, counted, result);
    if (result != CUDA_SUCCESS || !qg_governed || qg_depth)
        return result;
    one.handle = *handle;
    one.primary = qg_primary(device);
    if (QG_REAL(cuCtxFromGreenCtx)(&one.context, *handle) == CUDA_SUCCESS && one.context)
        enlist(&one);
    return result;
}

/* What runs in its streams goes on, but nothing can be put into them any more: the last marker goes
 * in before. Set apart before the call too: the driver may give the same handle to another thread's
 * new one at once. */
CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
    struct green one;
    if (!qg_governed || qg_depth || !find(handle, NULL, false, &one))
        return QG_REAL(cuGreenCtxDestroy)(handle);
    qg_observe_context(one.context);
    struct qg_primary_end end = qg_primary_ending(one.device, false);
    bool apart = find(handle, NULL, true, &one);
    if (apart) {
        qg_streams_green_gone(one.context);
        qg_window_context_gone(one.context);
    }
    CUresult result = QG_REAL(cuGreenCtxDestroy)(handle);
    if (apart && result != CUDA_SUCCESS)
        enlist(&one);
    qg_primary_ended(one.device, &end, result);
    return result;
}
