/* SPDX-License-Identifier: Apache-2.0
 *
 * The records of streams and contexts. They are found by handle and made at the first use. They are
 * retired when the program destroys its object. Each may hold a fence slot.
 */
#include "process/green.h"
#include "memory/modules.h"
#include "track/table.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "track/waiters.h"
#include "track/wants.h"

/* count: Retired records before the oldest is used again. A thread may hold a pointer for one call.
 * Evidence: bound. */
#define RETIRED_RECORDS 64u

pthread_mutex_t qg_table_lock = PTHREAD_MUTEX_INITIALIZER;
struct qg_stream *qg_streams[QG_BUCKETS];
static struct qg_stream *retired_first,
    **retired_last = &retired_first; /* dead records, oldest first */
static unsigned retired;
struct qg_context *qg_contexts;
static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

__thread struct qg_thread qg_thread __attribute__((tls_model("initial-exec")));
static __thread uint64_t thread_id __attribute__((tls_model("initial-exec")));

void qg_streams_after_fork(void)
{
    pthread_mutex_init(&qg_table_lock, NULL);
    /* the records are the parent's; a few leaked bytes are not worth a walk */
    memset(qg_streams, 0, sizeof(qg_streams));
    qg_contexts = NULL;
    retired_first = NULL;
    retired_last = &retired_first;
    retired = 0;
    qg_fence_slots_after_fork();
    __atomic_store_n(&qg_captures, 0, __ATOMIC_RELAXED);
    thread_id = 0;
    __atomic_add_fetch(&qg_generation, 1, __ATOMIC_SEQ_CST);
}

size_t qg_bucket(uint64_t key, CUcontext context, uint64_t thread)
{
    uint64_t hash =
        (key ^ ((uint64_t)(uintptr_t)context << 1) ^ (thread << 40)) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 40) % QG_BUCKETS;
}

/* Under qg_table_lock. Never freed, because stream records point to them, but used again. */
static struct qg_context *context_record(CUcontext handle, struct qg_card *card)
{
    struct qg_context *record, *unused = NULL;
    for (record = qg_contexts; record; record = record->next) {
        if (record->handle == handle)
            return record;
        if (!record->handle)
            unused = record;
    }
    record = unused ? unused : calloc(1, sizeof(*record));
    if (!record)
        return NULL;
    if (!unused) {
        pthread_mutex_init(&record->lock, NULL);
        record->next = qg_contexts;
        qg_contexts = record;
    }
    record->handle = handle;
    record->owner = qg_context_owner(handle);
    record->card = card;
    pthread_mutex_lock(&record->lock);
    record->attached = NULL;
    record->ends++;
    record->refused = false;
    __atomic_store_n(&record->ending, false, __ATOMIC_RELAXED);
    __atomic_store_n(&record->broken, false, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&record->lock);
    return record;
}

/* True: the record may not be used again. A call into the stream is still under way, or a thread
 * waits for its end, or begins a capture. */
static bool still_used(struct qg_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    bool used = stream->calling || stream->awaited || stream->beginning;
    pthread_mutex_unlock(&stream->lock);
    return used;
}

/* Under qg_table_lock: an empty record. Records are never freed. A thread that just found one, or
 * put it on its list of streams to fence, may touch it under its lock after it was retired. */
static struct qg_stream *blank_stream(void)
{
    struct qg_stream *stream;
    if (retired < RETIRED_RECORDS || still_used(retired_first)) {
        /* two threads' streams share no line */
        stream = aligned_alloc(64, (sizeof(*stream) + 63) & ~(size_t)63);
        if (stream) {
            memset(stream, 0, sizeof(*stream));
            pthread_mutex_init(&stream->lock, NULL);
        }
        return stream;
    }
    stream = retired_first;
    retired_first = stream->next;
    if (!retired_first)
        retired_last = &retired_first;
    retired--;
    pthread_mutex_lock(&stream->lock);
    size_t after = offsetof(struct qg_stream, fence_slot);
    memset(stream, 0, offsetof(struct qg_stream, lock));
    memset((char *)stream + after, 0, sizeof(*stream) - after);
    pthread_mutex_unlock(&stream->lock);
    return stream;
}

void qg_retire_record(struct qg_stream *stream)
{
    stream->next = NULL;
    *retired_last = stream;
    retired_last = &stream->next;
    retired++;
}

/* A thread ended: its per-thread default streams have no further work, and its lane and its place
 * at the gate are free. */
static void thread_ended(void *thread)
{
    memset(qg_thread.seen, 0, sizeof(qg_thread.seen));
    qg_lane_release();
    qg_waiter_release();
    qg_want_release();
    thread_id = 0;
    qg_streams_thread_gone((uint64_t)(uintptr_t)thread);
}

static void make_thread_key(void)
{
    pthread_key_create(&thread_key, thread_ended);
}

uint64_t qg_this_thread(void)
{
    if (!thread_id) {
        thread_id = (uint64_t)syscall(SYS_gettid);
        pthread_once(&thread_once, make_thread_key);
        pthread_setspecific(thread_key, (void *)(uintptr_t)thread_id);
    }
    return thread_id;
}

/* Context and card of a stream. Found by asking the driver, so never under qg_table_lock. */
struct home {
    CUcontext context;
    struct qg_card *card;
};

/* Under qg_table_lock. */
static struct qg_stream *new_stream(uint64_t key, CUcontext current, uint64_t thread,
                                    CUstream handle, const struct home *home)
{
    struct qg_context *context = home->card ? context_record(home->context, home->card) : NULL;
    struct qg_stream *stream = context ? blank_stream() : NULL;
    if (!stream)
        return NULL;
    stream->key = key;
    stream->context_key = key <= 2 ? current : NULL;
    stream->thread = thread;
    stream->handle = key == 2 ? CU_STREAM_PER_THREAD : key == 0 ? CU_STREAM_LEGACY : handle;
    stream->context = context;
    stream->card = context->card;
    __atomic_store_n(&stream->fence_slot, -1, __ATOMIC_RELAXED);
    size_t at = qg_bucket(key, stream->context_key, thread);
    stream->next = qg_streams[at];
    __atomic_store_n(&qg_streams[at], stream, __ATOMIC_RELEASE);
    return stream;
}

bool qg_stream_lost(CUstream stream)
{
    CUcontext own;
    return (uint64_t)(uintptr_t)stream > 2 && QG_HAVE(cuStreamGetCtx) &&
           qg_is_lost(QG_REAL(cuStreamGetCtx)(stream, &own));
}

/* A stream belongs to the context in which it was created. That need not be the current one at the
 * first launch. An invalid handle has no card: the driver refuses work for it, and no launch waits.
 */
static struct home home_of(CUstream stream, CUcontext current)
{
    struct home home = {current, NULL};
    CUcontext own = NULL, popped;
    CUresult result = CUDA_SUCCESS;
    if ((uint64_t)(uintptr_t)stream > 2 && QG_HAVE(cuStreamGetCtx))
        result = QG_REAL(cuStreamGetCtx)(stream, &own);
    if (qg_is_lost(result))
        return home;
    if (result == CUDA_SUCCESS && own && own != current &&
        QG_REAL(cuCtxPushCurrent_v2)(own) == CUDA_SUCCESS) {
        home.context = own;
        home.card = qg_card_current();
        QG_REAL(cuCtxPopCurrent_v2)(&popped);
        return home;
    }
    home.card = qg_card_current();
    return home;
}

struct qg_stream *qg_find_stream(uint64_t key, CUcontext context, uint64_t thread)
{
    struct qg_stream *found = qg_streams[qg_bucket(key, context, thread)];
    while (found && (found->key != key || found->context_key != context ||
                     found->thread != thread || found->dead))
        found = found->next;
    return found;
}

/* Caches what a launch into the stream needs, if it only has to be counted. */
static void cache_stream(struct qg_stream *stream, uint64_t key, CUcontext context,
                         unsigned generation)
{
    struct qg_seen *seen = qg_seen_of(key);
    struct qg_pages *pages = stream ? qg_pages_of(stream->card) : NULL;
    uint32_t skip = seen->stream == stream ? seen->skip : 0;
    uint16_t stride = seen->stream == stream ? seen->stride : 0;
    *seen = (struct qg_seen){.key = key > 2 ? key : QG_SEEN_DEFAULT + key,
                             .generation = generation,
                             .stream = stream,
                             .context = context};
    seen->stride = stride;
    seen->skip = skip;
    seen->skip_set = (uint16_t)skip;
    seen->attention = QG_GATE_ATTENTION;
    if (!pages || !pages->lanes || __atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE) ||
        __atomic_load_n(&qg_libraries_large, __ATOMIC_ACQUIRE))
        return;
    int lane = qg_lane_mine();
    if (lane >= (int)QG_LANES)
        return;
    seen->launches = &pages->proc->lanes[lane - 1].launches;
    seen->gate = &pages->gate->flags;
    seen->fast = generation;
}

struct qg_stream *qg_stream_slow(CUstream stream, bool ptsz)
{
    uint64_t key = qg_stream_key(stream, ptsz), thread = 0;
    CUcontext current = NULL;
    unsigned generation = __atomic_load_n(&qg_generation, __ATOMIC_ACQUIRE);
    /* Without a current context work can be put into streams that have one. */
    if (QG_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || (!current && key <= 2))
        return NULL;
    if (key == 2)
        thread = qg_this_thread();
    CUcontext of_key = key <= 2 ? current : NULL;
    pthread_mutex_lock(&qg_table_lock);
    struct qg_stream *found = qg_find_stream(key, of_key, thread);
    pthread_mutex_unlock(&qg_table_lock);
    if (!found) {
        struct home home = home_of(stream, current);
        pthread_mutex_lock(&qg_table_lock);
        found = qg_find_stream(key, of_key, thread); /* another thread may have been faster */
        if (!found)
            found = new_stream(key, current, thread, stream, &home);
        pthread_mutex_unlock(&qg_table_lock);
    }
    cache_stream(found, key, of_key, generation);
    return found;
}

bool qg_stream_captures_slow(struct qg_stream *stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return QG_REAL(cuStreamIsCapturing)(stream->handle, &status) != CUDA_SUCCESS ||
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}
