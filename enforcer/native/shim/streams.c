/* SPDX-License-Identifier: Apache-2.0
 *
 * The records of streams and contexts: found by handle, made at the first use, laid to rest when the program destroys
 * its object, and the marker indices that they hold.
 */
#include "streams.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BUCKETS 1024u
#define REST 64u /* dead records lie so long, counted in records, before one is used again */

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct qg_stream *table[BUCKETS];
static struct qg_stream *rest_first, **rest_last = &rest_first; /* dead records, oldest first */
static unsigned resting;
static struct qg_context *contexts;
static uint64_t marker_taken[QG_MAX_CARDS];                        /* bit per marker index */
static struct qg_stream *marker_owner[QG_MAX_CARDS][QG_MARKERS];   /* valid where the bit is set */
static uint32_t marker_value[QG_MAX_CARDS][QG_MARKERS];  /* last value written through the index */
static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

__thread struct qg_stream_cache qg_cache __attribute__((tls_model("initial-exec")));
static __thread uint64_t thread_id __attribute__((tls_model("initial-exec")));
unsigned qg_generation = 1;
int qg_captures;

void qg_streams_after_fork(void)
{
    pthread_mutex_init(&table_lock, NULL);
    memset(table, 0, sizeof(table)); /* the records are the parent's; a few leaked bytes are not worth a walk */
    memset(marker_taken, 0, sizeof(marker_taken));
    memset(marker_value, 0, sizeof(marker_value));
    contexts = NULL;
    rest_first = NULL;
    rest_last = &rest_first;
    resting = 0;
    memset(marker_owner, 0, sizeof(marker_owner));
    qg_captures = 0;
    thread_id = 0;
    __atomic_add_fetch(&qg_generation, 1, __ATOMIC_SEQ_CST);
}

static size_t bucket(uint64_t key, CUcontext context, uint64_t thread)
{
    uint64_t hash = (key ^ ((uint64_t)(uintptr_t)context << 1) ^ (thread << 40)) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 40) % BUCKETS;
}

/* Under table_lock. Never freed, because stream records point to them, but used again. */
static struct qg_context *context_record(CUcontext handle)
{
    struct qg_context *record, *unused = NULL;
    for (record = contexts; record; record = record->next) {
        if (record->handle == handle)
            return record;
        if (!record->handle)
            unused = record;
    }
    record = unused ? unused : calloc(1, sizeof(*record));
    if (!record)
        return NULL;
    if (!unused) {
        record->next = contexts;
        contexts = record;
    }
    record->handle = handle;
    record->card = qg_card_current();
    record->attached = NULL;
    record->refused = false;
    return record;
}

/* Under table_lock: an empty record. Records are never given back to the heap: a thread that just looked one up, or
 * put it on its list of streams to mark, may touch it (under its lock) after it died. */
static struct qg_stream *blank_stream(void)
{
    struct qg_stream *stream;
    if (resting < REST) {
        stream = calloc(1, sizeof(*stream));
        if (stream)
            pthread_mutex_init(&stream->lock, NULL);
        return stream;
    }
    stream = rest_first;
    rest_first = stream->next;
    if (!rest_first)
        rest_last = &rest_first;
    resting--;
    pthread_mutex_lock(&stream->lock);
    size_t after = offsetof(struct qg_stream, marker);
    memset(stream, 0, offsetof(struct qg_stream, lock));
    memset((char *)stream + after, 0, sizeof(*stream) - after);
    pthread_mutex_unlock(&stream->lock);
    return stream;
}

static void lay_to_rest(struct qg_stream *stream)
{
    stream->next = NULL;
    *rest_last = stream;
    rest_last = &stream->next;
    resting++;
}

/* Under table_lock: gives the stream an index whose last marker has been reached, if there is one. */
static void take_marker(struct qg_stream *stream)
{
    int at = (int)(stream->card - qg_cards);
    struct qg_pages *pages = qg_pages_of(stream->card);
    for (unsigned i = 0; i < QG_MARKERS; i++) {
        if (marker_taken[at] & (1ull << i))
            continue;
        if (pages && __atomic_load_n(&pages->proc->markers[i].done, __ATOMIC_ACQUIRE) !=
                         __atomic_load_n(&pages->proc->markers[i].submitted, __ATOMIC_RELAXED))
            continue; /* a destroyed stream still runs towards it */
        pthread_mutex_lock(&stream->lock);
        stream->value = marker_value[at][i];
        stream->marker = (int)i;
        pthread_mutex_unlock(&stream->lock);
        marker_taken[at] |= 1ull << i;
        marker_owner[at][i] = stream;
        return;
    }
}

/* Only streams that are used for work get an index: there are QG_MARKERS of them. */
void qg_want_marker(struct qg_stream *stream)
{
    if (QG_LIKELY(__atomic_load_n(&stream->marker, __ATOMIC_RELAXED) >= 0))
        return;
    pthread_mutex_lock(&table_lock);
    if (stream->marker < 0 && !stream->dead)
        take_marker(stream);
    pthread_mutex_unlock(&table_lock);
}

static void release_marker(struct qg_stream *stream)
{
    int at = (int)(stream->card - qg_cards);
    if (stream->marker < 0)
        return;
    marker_value[at][stream->marker] = stream->value;
    marker_taken[at] &= ~(1ull << stream->marker);
    marker_owner[at][stream->marker] = NULL;
    stream->marker = -1;
}

static void bury(struct qg_stream *stream);
static void unlink_dead(size_t at);

/* A thread ended: its per-thread default streams have no further work. */
static void thread_ended(void *thread)
{
    pthread_mutex_lock(&table_lock);
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct qg_stream *stream = table[i]; stream; stream = stream->next)
            if (stream->key == 2 && stream->thread == (uint64_t)(uintptr_t)thread && !stream->dead)
                bury(stream);
        unlink_dead(i);
    }
    pthread_mutex_unlock(&table_lock);
}

static void make_thread_key(void)
{
    pthread_key_create(&thread_key, thread_ended);
}

static uint64_t this_thread(void)
{
    if (!thread_id) {
        thread_id = (uint64_t)syscall(SYS_gettid);
        pthread_once(&thread_once, make_thread_key);
        pthread_setspecific(thread_key, (void *)(uintptr_t)thread_id);
    }
    return thread_id;
}

/* Under table_lock. */
static struct qg_stream *new_stream(uint64_t key, CUcontext current, uint64_t thread, CUstream handle)
{
    struct qg_context *context = context_record(current);
    struct qg_stream *stream = context && context->card ? blank_stream() : NULL;
    if (!stream)
        return NULL;
    stream->key = key;
    stream->context_key = key <= 2 ? current : NULL;
    stream->thread = thread;
    stream->handle = key == 2 ? CU_STREAM_PER_THREAD : key == 0 ? CU_STREAM_LEGACY : handle;
    stream->context = context;
    stream->card = context->card;
    stream->marker = -1;
    size_t at = bucket(key, stream->context_key, thread);
    stream->next = table[at];
    __atomic_store_n(&table[at], stream, __ATOMIC_RELEASE);
    return stream;
}

/* Streams are created in some context; the one that is current at the first launch is not always that one. */
static CUcontext context_of(CUstream stream, CUcontext current)
{
    CUcontext own = NULL;
    if ((uint64_t)(uintptr_t)stream <= 2)
        return current;
    if (QG_HAVE(cuStreamGetCtx) && QG_REAL(cuStreamGetCtx)(stream, &own) == CUDA_SUCCESS && own)
        return own;
    return current;
}

struct qg_stream *qg_stream_slow(CUstream stream, bool ptsz)
{
    uint64_t key = (uint64_t)(uintptr_t)stream, thread = 0;
    CUcontext current = NULL;
    unsigned generation = __atomic_load_n(&qg_generation, __ATOMIC_ACQUIRE);
    if (QG_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current)
        return NULL;
    if (key <= 2)
        key = key == 2 || (key == 0 && ptsz) ? 2 : 0;
    if (key == 2)
        thread = this_thread();
    CUcontext of_key = key <= 2 ? current : NULL;
    struct qg_stream *found;
    pthread_mutex_lock(&table_lock);
    for (found = table[bucket(key, of_key, thread)]; found; found = found->next)
        if (found->key == key && found->context_key == of_key && found->thread == thread && !found->dead)
            break;
    if (!found)
        found = new_stream(key, context_of(stream, current), thread, stream);
    pthread_mutex_unlock(&table_lock);
    qg_cache = (struct qg_stream_cache){key, of_key, generation, found};
    return found;
}

bool qg_stream_captures(struct qg_stream *stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (QG_LIKELY(!__atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE)))
        return false;
    return QG_REAL(cuStreamIsCapturing)(stream->handle, &status) != CUDA_SUCCESS ||
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* ---- observers of a whole context -------------------------------------------------------------------------- */

/* Collected first, marked after: qg_mark() calls the driver, which must not happen under table_lock. */
void qg_observe_context(CUcontext current)
{
    struct qg_stream *found[QG_MARKERS];
    unsigned count = 0;
    struct qg_card *card = qg_card_current();
    if (!card || __atomic_load_n(&card->unmarked, __ATOMIC_RELAXED) <= 0)
        return;
    if (!current && (QG_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current))
        return;
    uint64_t thread = this_thread();
    pthread_mutex_lock(&table_lock);
    for (unsigned i = 0; i < QG_MARKERS; i++) {
        struct qg_stream *stream = marker_owner[card - qg_cards][i];
        if (stream && stream->context->handle == current && stream->unmarked &&
            (stream->key != 2 || stream->thread == thread))
            found[count++] = stream;
    }
    pthread_mutex_unlock(&table_lock);
    for (unsigned i = 0; i < count; i++)
        if (!qg_stream_captures(found[i]))
            qg_mark(found[i]);
}

/* ---- ends ------------------------------------------------------------------------------------------------- */

/* Under table_lock. The record stays: another thread's cache may still hold it for one more call. */
static void bury(struct qg_stream *stream)
{
    pthread_mutex_lock(&stream->lock); /* a marker of another thread may just go into it */
    __atomic_store_n(&stream->dead, true, __ATOMIC_SEQ_CST);
    qg_clear_unmarked(stream);
    release_marker(stream);
    pthread_mutex_unlock(&stream->lock);
    __atomic_add_fetch(&qg_generation, 1, __ATOMIC_SEQ_CST);
}

/* Under table_lock. */
static void unlink_dead(size_t at)
{
    for (struct qg_stream **link = &table[at]; *link;) {
        struct qg_stream *stream = *link;
        if (stream->dead) {
            *link = stream->next;
            lay_to_rest(stream);
        } else {
            link = &stream->next;
        }
    }
}

void qg_stream_destroyed(CUstream handle)
{
    uint64_t key = (uint64_t)(uintptr_t)handle;
    size_t at = bucket(key, NULL, 0);
    pthread_mutex_lock(&table_lock);
    for (struct qg_stream *stream = table[at]; stream; stream = stream->next)
        if (stream->key == key && !stream->dead)
            bury(stream);
    unlink_dead(at);
    pthread_mutex_unlock(&table_lock);
}

void qg_streams_context_gone(CUcontext handle)
{
    pthread_mutex_lock(&table_lock);
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct qg_stream *stream = table[i]; stream; stream = stream->next) {
            if (stream->context->handle != handle || stream->dead)
                continue;
            /* Its work ended with the context; nothing will write the word any more. */
            struct qg_pages *pages = qg_pages_of(stream->card);
            if (pages && stream->marker >= 0)
                __atomic_store_n(&pages->proc->markers[stream->marker].done,
                                 pages->proc->markers[stream->marker].submitted, __ATOMIC_SEQ_CST);
            bury(stream);
        }
        unlink_dead(i);
    }
    for (struct qg_context *record = contexts; record; record = record->next) {
        record->attached = NULL; /* the page may have been registered through the context that is gone */
        if (record->handle == handle)
            record->handle = NULL;
    }
    pthread_mutex_unlock(&table_lock);
}

/* New pages: work whose marker stands in the old page must keep the tenant busy in the new one. */
void qg_streams_adopt(struct qg_card *card, struct qg_pages *from)
{
    pthread_mutex_lock(&table_lock);
    for (unsigned i = 0; from && i < QG_MARKERS; i++) {
        uint32_t done = __atomic_load_n(&from->proc->markers[i].done, __ATOMIC_ACQUIRE);
        struct qg_stream *stream = marker_owner[card - qg_cards][i];
        if (stream && done != stream->value)
            qg_set_unmarked(stream);
    }
    pthread_mutex_unlock(&table_lock);
    qg_show_unmarked(card);
}

/* ---- window mode ------------------------------------------------------------------------------------------ */

uint64_t qg_inflight_ns(struct qg_card *card, struct qg_stream **oldest)
{
    uint64_t sum = 0;
    *oldest = NULL;
    pthread_mutex_lock(&table_lock);
    for (uint64_t left = marker_taken[card - qg_cards]; left; left &= left - 1) {
        struct qg_stream *stream = marker_owner[card - qg_cards][__builtin_ctzll(left)];
        pthread_mutex_lock(&stream->lock);
        uint64_t own = qg_stream_inflight(stream);
        pthread_mutex_unlock(&stream->lock);
        if (own && (!*oldest || stream->ring_count > (*oldest)->ring_count))
            *oldest = stream;
        sum += own;
    }
    pthread_mutex_unlock(&table_lock);
    return sum;
}
