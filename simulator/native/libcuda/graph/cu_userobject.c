/* SPDX-License-Identifier: Apache-2.0
 *
 * User objects: a pointer of the program with a function that is called when the last reference is
 * gone. The program and graphs own references; a copy of a graph and an executable graph own as
 * many as their source. References of an executable graph that is destroyed or changed while it
 * runs go when the launch is done. One thread makes the calls, as the driver's does: the program
 * cannot wait for them.
 */
#include "cu_context.h"
#include "cu_graph.h"
#include "cu_owned.h"
#include "cu_stream.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define BUCKETS 1024u

struct CUuserObject_st {
    struct CUuserObject_st *next; /* in its bucket, or waiting for its call */
    void *data;
    CUhostFn destroy;
    uint64_t refs, callers; /* all, and those that the program owns */
};

struct cu_owned {
    struct cu_owned *next;
    CUuserObject object;
    uint64_t count;
};

struct later { /* references that go when a place in a stream is reached */
    struct later *next;
    struct cu_owned *owned;
    CUcontext ctx;
    uint32_t ctx_id, slot;
    uint64_t seq;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static CUuserObject living[BUCKETS], ended, *last_ended = &ended;
static struct later *first_later, **last_later = &first_later;
static bool running[2]; /* the threads: of calls, of what goes later */

static CUuserObject *bucket(const struct CUuserObject_st *object)
{
    return &living[(uintptr_t)object / 16 % BUCKETS];
}

/* ---- the threads ---- */

static void *call_destructors(void *unused)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!ended)
            pthread_cond_wait(&work, &lock);
        CUuserObject object = ended;
        ended = object->next;
        if (!ended)
            last_ended = &ended;
        pthread_mutex_unlock(&lock);
        object->destroy(object->data);
        free(object);
        pthread_mutex_lock(&lock);
    }
    return unused;
}

static void drop(struct cu_owned **owned);

static bool over(const struct later *later)
{
    /* a context waits for all its work before it ends */
    return !cu_handle_ok(CU_CTX, later->ctx) || later->ctx->id != later->ctx_id ||
           cu_seq_done(later->ctx, later->slot, later->seq) ||
           cu_sticky(later->ctx) != CUDA_SUCCESS || cu.lost;
}

/* Polls, since one launch that does not end may not keep the references of others. */
static void *wait_for_launches(void *unused)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!first_later)
            pthread_cond_wait(&work, &lock);
        struct later **link = &first_later;
        while (*link) {
            struct later *later = *link;
            if (!over(later)) {
                link = &later->next;
                continue;
            }
            *link = later->next;
            drop(&later->owned);
            free(later);
        }
        last_later = link;
        pthread_mutex_unlock(&lock);
        cu_server_alive();
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
    }
    return unused;
}

/* Under the lock. The program's signals are not for these threads. */
static bool start(unsigned which, void *(*loop)(void *))
{
    sigset_t all, before;
    pthread_t thread;
    if (!running[which]) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        running[which] = pthread_create(&thread, NULL, loop, NULL) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (running[which])
            pthread_detach(thread);
    }
    return running[which];
}

/* ---- references; all under the lock ---- */

static bool known(CUuserObject object)
{
    CUuserObject at = *bucket(object);
    while (at && at != object)
        at = at->next;
    return at != NULL;
}

static void unref(CUuserObject object, uint64_t count)
{
    object->refs -= count;
    if (object->refs)
        return;
    CUuserObject *link = bucket(object);
    while (*link != object)
        link = &(*link)->next;
    *link = object->next;
    object->next = NULL;
    *last_ended = object;
    last_ended = &object->next;
    pthread_cond_broadcast(&work);
}

static void drop(struct cu_owned **owned)
{
    while (*owned) {
        struct cu_owned *entry = *owned;
        *owned = entry->next;
        unref(entry->object, entry->count);
        free(entry);
    }
}

static struct cu_owned **entry_of(struct cu_owned **owned, CUuserObject object)
{
    while (*owned && (*owned)->object != object)
        owned = &(*owned)->next;
    return owned;
}

/* Counts them for the list; the caller counts them for the object. */
static CUresult own(struct cu_owned **owned, CUuserObject object, uint64_t count)
{
    struct cu_owned **entry = entry_of(owned, object);
    if (!*entry && (*entry = calloc(1, sizeof **entry)) != NULL)
        (*entry)->object = object;
    if (!*entry)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*entry)->count += count;
    return CUDA_SUCCESS;
}

/* ---- for graphs ---- */

CUresult cu_owned_copy(struct cu_owned **to, const struct cu_owned *from)
{
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (; from && status == CUDA_SUCCESS; from = from->next) {
        status = own(to, from->object, from->count);
        if (status == CUDA_SUCCESS)
            from->object->refs += from->count;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static struct later *place_of(CUstream stream)
{
    struct later *later = calloc(1, sizeof *later);
    if (!later)
        return NULL;
    *later = (struct later){.ctx = stream->ctx, .ctx_id = stream->ctx->id, .slot = stream->slot};
    if (cu_fence(stream, &later->seq) == CUDA_SUCCESS)
        return later;
    free(later);
    return NULL;
}

void cu_owned_release(struct cu_owned **owned, CUstream after)
{
    if (!*owned)
        return;
    struct later *later = after ? place_of(after) : NULL;
    pthread_mutex_lock(&lock);
    if (later && start(1, wait_for_launches)) {
        later->owned = *owned;
        *owned = NULL;
        *last_later = later;
        last_later = &later->next;
        pthread_cond_broadcast(&work);
    } else {
        free(later);
        drop(owned);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- the driver's functions ---- */

static bool count_ok(unsigned count)
{
    return count && count <= INT_MAX;
}

CUresult CUDAAPI cuUserObjectCreate(CUuserObject *out, void *data, CUhostFn destroy,
                                    unsigned int count, unsigned int flags)
{
    CU_TRY(cu_ready());
    if (!out || !destroy || !count_ok(count) || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    CUuserObject object = calloc(1, sizeof *object);
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    bool threads = start(0, call_destructors);
    if (threads) {
        CUuserObject *head = bucket(object);
        *object = (struct CUuserObject_st){*head, data, destroy, count, count};
        *head = object;
    }
    pthread_mutex_unlock(&lock);
    if (threads)
        *out = object;
    else
        free(object);
    return threads ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    CU_TRY(cu_ready());
    pthread_mutex_lock(&lock);
    bool ok = count_ok(count) && known(object);
    if (ok) {
        object->refs += count;
        object->callers += count;
    }
    pthread_mutex_unlock(&lock);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* More than the program owns: a real driver does not notice, and what follows is undefined. */
CUresult CUDAAPI cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    CU_TRY(cu_ready());
    pthread_mutex_lock(&lock);
    bool ok = count_ok(count) && known(object) && count <= object->callers;
    if (ok) {
        object->callers -= count;
        unref(object, count);
    }
    pthread_mutex_unlock(&lock);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                         unsigned int flags)
{
    bool move = flags == CU_GRAPH_USER_OBJECT_MOVE;
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_GRAPH, graph) || !count_ok(count) || (flags && !move))
        return status;
    pthread_mutex_lock(&lock);
    if (known(object) && (!move || count <= object->callers))
        status = own(&graph->owned, object, count);
    if (status == CUDA_SUCCESS && move)
        object->callers -= count;
    else if (status == CUDA_SUCCESS)
        object->refs += count;
    pthread_mutex_unlock(&lock);
    return status;
}

CUresult CUDAAPI cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_GRAPH, graph) || !count_ok(count))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct cu_owned **entry = entry_of(&graph->owned, object), *own = *entry;
    bool ok = own && count <= own->count;
    if (ok) {
        own->count -= count;
        if (!own->count) {
            *entry = own->next;
            free(own);
        }
        unref(object, count);
    }
    pthread_mutex_unlock(&lock);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
