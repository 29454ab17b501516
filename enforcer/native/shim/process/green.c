/* SPDX-License-Identifier: Apache-2.0
 *
 * The green contexts of this process, as they were made.
 */
#include "process/green.h"

#include <pthread.h>
#include <stdlib.h>

static struct qg_green *greens;
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
    for (const struct qg_green *one = greens; one; one = one->next)
        if (one->context == context)
            owner = one->primary;
    pthread_mutex_unlock(&lock);
    return owner;
}

CUcontext qg_green_context(CUgreenCtx handle)
{
    CUcontext context = NULL;
    pthread_mutex_lock(&lock);
    for (const struct qg_green *one = greens; one && !context; one = one->next)
        if (one->handle == handle)
            context = one->context;
    pthread_mutex_unlock(&lock);
    return context;
}

void qg_green_add(const struct qg_green *made)
{
    struct qg_green *one = malloc(sizeof(*one));
    if (!one)
        return;
    *one = *made;
    pthread_mutex_lock(&lock);
    one->next = greens;
    greens = one;
    __atomic_add_fetch(&qg_greens, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

/* Finds the green context of this handle, or without a handle one of this primary context. The
 * third argument also takes it off the list. */
bool qg_green_find(CUgreenCtx handle, CUcontext primary, bool over, struct qg_green *out)
{
    pthread_mutex_lock(&lock);
    struct qg_green **link = &greens, *one;
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
