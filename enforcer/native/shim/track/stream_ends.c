/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends of streams and contexts. Their records are retired, and no call of ours is left in an object
 * that the program destroys.
 */
#include "process/green.h"
#include "process/pages.h"
#include "track/table.h"

/* ---- captures ---- */

/* stream->lock orders the two. A thread that has begun a call either saw the capture in
 * qg_captures, or is waited for here. */
struct qg_stream *qg_capture_begins(CUstream handle, bool ptsz)
{
    uint64_t key = qg_stream_key(handle, ptsz), thread = key == 2 ? qg_this_thread() : 0;
    CUcontext context = NULL;
    bool busy = false;
    if (key <= 2 && QG_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
        return NULL;
    pthread_mutex_lock(&qg_table_lock);
    struct qg_stream *stream = qg_find_stream(key, context, thread);
    if (stream) {
        pthread_mutex_lock(&stream->lock);
        stream->beginning++;
        busy = stream->calling;
        stream->awaited += busy;
        pthread_mutex_unlock(&stream->lock);
    }
    pthread_mutex_unlock(&qg_table_lock);
    if (busy)
        qg_stream_await(stream);
    return stream;
}

void qg_capture_begun(struct qg_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->beginning--;
    pthread_mutex_unlock(&stream->lock);
}

void qg_capture_over(void)
{
    int now = __atomic_load_n(&qg_captures, __ATOMIC_RELAXED);
    while (now > 0 && !__atomic_compare_exchange_n(&qg_captures, &now, now - 1, false,
                                                   __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        ;
    if (now == 1) /* streams that were found meanwhile are not on the fast path: find them again */
        __atomic_add_fetch(&qg_generation, 1, __ATOMIC_SEQ_CST);
}

/* ---- ends ---- */

/* Under qg_table_lock. Retires the record of a stream. The memory stays, since another thread's
 * cache may still use it for one call. patient: if a call of ours goes into the stream, its handle
 * must stay valid. Then the answer is false, and the caller waits for the end of that call. If not
 * patient, the thread that makes the call releases the fence slot. */
static bool retire_stream(struct qg_stream *stream, bool patient)
{
    pthread_mutex_lock(&stream->lock);
    bool calling = stream->calling;
    if (calling && patient) {
        stream->awaited++;
        pthread_mutex_unlock(&stream->lock);
        return false;
    }
    __atomic_store_n(&stream->dead, true, __ATOMIC_SEQ_CST);
    qg_clear_unfenced(stream);
    if (!calling)
        qg_fence_slot_release(stream);
    qg_nothing_open(stream);
    stream->again = false;
    qg_slotless_remove(stream);
    pthread_mutex_unlock(&stream->lock);
    if (__atomic_exchange_n(&stream->began, false, __ATOMIC_RELAXED)) /* its capture ends with it */
        qg_capture_over();
    __atomic_add_fetch(&qg_generation, 1, __ATOMIC_SEQ_CST);
    return true;
}

/* Under qg_table_lock. */
static void unlink_dead(size_t at)
{
    for (struct qg_stream **link = &qg_streams[at]; *link;) {
        struct qg_stream *stream = *link;
        if (stream->dead) {
            *link = stream->next;
            qg_retire_record(stream);
        } else {
            link = &stream->next;
        }
    }
}

void qg_streams_thread_gone(uint64_t thread)
{
    pthread_mutex_lock(&qg_table_lock);
    for (size_t i = 0; i < QG_BUCKETS; i++) {
        for (struct qg_stream *stream = qg_streams[i]; stream; stream = stream->next)
            if (stream->key == 2 && stream->thread == thread && !stream->dead)
                retire_stream(stream, false); /* no other thread calls into it */
        unlink_dead(i);
    }
    pthread_mutex_unlock(&qg_table_lock);
}

void qg_stream_destroyed(CUstream handle)
{
    uint64_t key = (uint64_t)(uintptr_t)handle;
    size_t at = qg_bucket(key, NULL, 0);
    struct qg_stream *busy;
    do {
        busy = NULL;
        pthread_mutex_lock(&qg_table_lock);
        for (struct qg_stream *stream = qg_streams[at]; stream && !busy; stream = stream->next) {
            if (stream->key != key || stream->dead)
                continue;
            if (!retire_stream(stream, true))
                busy = stream;
        }
        unlink_dead(at);
        pthread_mutex_unlock(&qg_table_lock);
        if (busy)
            qg_stream_await(busy);
    } while (busy);
}

/* Under qg_table_lock: of the context, and of the green ones that are a part of it. */
static void set_ending(CUcontext handle, bool ending)
{
    for (struct qg_context *record = qg_contexts; record; record = record->next)
        if (record->handle && qg_context_owner(record->handle) == handle)
            __atomic_store_n(&record->ending, ending, __ATOMIC_RELAXED);
}

/* Under qg_table_lock: a stream of an ending context that a call of ours still goes into; it is
 * awaited. */
static struct qg_stream *busy_of_ending(void)
{
    for (size_t i = 0; i < QG_BUCKETS; i++)
        for (struct qg_stream *stream = qg_streams[i]; stream; stream = stream->next) {
            pthread_mutex_lock(&stream->lock);
            bool busy =
                stream->calling && __atomic_load_n(&stream->context->ending, __ATOMIC_RELAXED);
            stream->awaited += busy;
            pthread_mutex_unlock(&stream->lock);
            if (busy)
                return stream;
        }
    return NULL;
}

/* Waits for calls of ours: a thread of another context of the card may be inserting a fence into
 * one of its streams. */
void qg_streams_context_ends(CUcontext handle)
{
    struct qg_stream *busy;
    do {
        pthread_mutex_lock(&qg_table_lock);
        set_ending(handle, true);
        busy = busy_of_ending();
        pthread_mutex_unlock(&qg_table_lock);
        if (busy)
            qg_stream_await(busy);
    } while (busy);
}

void qg_streams_context_stays(CUcontext handle)
{
    pthread_mutex_lock(&qg_table_lock);
    set_ending(handle, false);
    pthread_mutex_unlock(&qg_table_lock);
}

void qg_streams_context_gone(CUcontext handle)
{
    pthread_mutex_lock(&qg_table_lock);
    for (size_t i = 0; i < QG_BUCKETS; i++) {
        for (struct qg_stream *stream = qg_streams[i]; stream; stream = stream->next) {
            if (stream->context->handle != handle || stream->dead)
                continue;
            /* Its work ended with the context; nothing will write the word any more. */
            struct qg_pages *pages = qg_pages_of(stream->card);
            pthread_mutex_lock(&stream->lock);
            if (pages && stream->fence_slot >= 0)
                __atomic_store_n(&pages->proc->fences[stream->fence_slot].done, stream->value,
                                 __ATOMIC_SEQ_CST);
            pthread_mutex_unlock(&stream->lock);
            retire_stream(stream, false);
        }
        unlink_dead(i);
    }
    /* first, so that a thread that finds no registration below finds its place free */
    qg_pages_context_gone(handle);
    for (struct qg_context *record = qg_contexts; record; record = record->next) {
        pthread_mutex_lock(&record->lock);
        /* its registration is gone; or a context without one may find a place now */
        record->attached = NULL;
        record->ends++;
        pthread_mutex_unlock(&record->lock);
        if (record->handle == handle)
            record->handle = NULL;
    }
    pthread_mutex_unlock(&qg_table_lock);
}

void qg_streams_green_gone(CUcontext handle)
{
    struct qg_stream *busy;
    pthread_mutex_lock(&qg_table_lock);
    for (size_t i = 0; i < QG_BUCKETS; i++) {
        busy = NULL;
        for (struct qg_stream *stream = qg_streams[i]; stream && !busy; stream = stream->next) {
            if (stream->context->handle != handle || stream->dead)
                continue;
            if (!retire_stream(stream, true))
                busy = stream;
        }
        unlink_dead(i);
        if (busy) { /* read this bucket once more afterwards */
            i--;
            pthread_mutex_unlock(&qg_table_lock);
            qg_stream_await(busy);
            pthread_mutex_lock(&qg_table_lock);
        }
    }
    for (struct qg_context *record = qg_contexts; record; record = record->next)
        if (record->handle == handle)
            record->handle = NULL;
    pthread_mutex_unlock(&qg_table_lock);
}

/* New pages: work whose fence is in the old page must keep the tenant busy in the new one. */
void qg_streams_adopt(struct qg_card *card, struct qg_pages *from)
{
    pthread_mutex_lock(&qg_table_lock);
    for (unsigned i = 0; from && i < QG_FENCES; i++) {
        uint32_t done = __atomic_load_n(&from->proc->fences[i].done, __ATOMIC_ACQUIRE);
        struct qg_stream *stream = qg_fence_slot_owner[card - qg_cards][i];
        if (!stream)
            continue;
        pthread_mutex_lock(&stream->lock);
        bool behind = done != stream->value;
        pthread_mutex_unlock(&stream->lock);
        if (behind)
            qg_set_unfenced(stream);
    }
    pthread_mutex_unlock(&qg_table_lock);
    if (from)
        qg_slot_mappings_retire(from);
    qg_publish_unfenced(card);
    __atomic_add_fetch(&qg_generation, 1, __ATOMIC_SEQ_CST); /* threads know the old pages */
}
