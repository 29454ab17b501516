/* SPDX-License-Identifier: Apache-2.0
 *
 * The records of streams and contexts: found by handle, made at the first use, laid to rest when the program destroys
 * its object, and the marker indices that they hold.
 */
#include "table.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "waiters.h"

#define BUCKETS 1024u
#define REST 64u /* dead records lie so long, counted in records, before one is used again */

pthread_mutex_t qg_table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct qg_stream *table[BUCKETS];
static struct qg_stream *rest_first, **rest_last = &rest_first; /* dead records, oldest first */
static unsigned resting;
static struct qg_context *contexts;
uint64_t qg_marker_taken[QG_MAX_CARDS];                        /* bit per marker index */
struct qg_stream *qg_marker_owner[QG_MAX_CARDS][QG_MARKERS];   /* valid where the bit is set */
static uint32_t marker_value[QG_MAX_CARDS][QG_MARKERS];  /* last value written through the index */
static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

__thread struct qg_thread qg_thread __attribute__((tls_model("initial-exec")));
unsigned qg_homeless_count; /* atomic: on all lists */
struct qg_stream *qg_homeless[QG_MAX_CARDS]; /* streams with work and without an index */
static __thread uint64_t thread_id __attribute__((tls_model("initial-exec")));
unsigned qg_generation = 1;
int qg_captures;

void qg_streams_after_fork(void)
{
    pthread_mutex_init(&qg_table_lock, NULL);
    memset(table, 0, sizeof(table)); /* the records are the parent's; a few leaked bytes are not worth a walk */
    memset(qg_marker_taken, 0, sizeof(qg_marker_taken));
    memset(marker_value, 0, sizeof(marker_value));
    contexts = NULL;
    rest_first = NULL;
    rest_last = &rest_first;
    resting = 0;
    memset(qg_marker_owner, 0, sizeof(qg_marker_owner));
    memset(qg_homeless, 0, sizeof(qg_homeless));
    qg_homeless_count = 0;
    __atomic_store_n(&qg_captures, 0, __ATOMIC_RELAXED);
    thread_id = 0;
    __atomic_add_fetch(&qg_generation, 1, __ATOMIC_SEQ_CST);
}

static size_t bucket(uint64_t key, CUcontext context, uint64_t thread)
{
    uint64_t hash = (key ^ ((uint64_t)(uintptr_t)context << 1) ^ (thread << 40)) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 40) % BUCKETS;
}

/* Under qg_table_lock: tells the arbiter in how many contexts this process works on the card. Each is a client of the card's
 * own time slices, so that the card does not divide equally between processes. */
static void show_contexts(struct qg_card *card)
{
    struct qg_pages *pages = qg_pages_of(card);
    uint32_t count = 0;
    if (!pages)
        return;
    for (const struct qg_context *record = contexts; record; record = record->next)
        count += record->handle && record->card == card;
    __atomic_store_n(&pages->proc->contexts, count, __ATOMIC_RELAXED);
}

/* Under qg_table_lock. The record of a context that is gone. */
static void free_record(struct qg_context *record)
{
    record->handle = NULL;
    show_contexts(record->card);
}

/* Under qg_table_lock. Never freed, because stream records point to them, but used again. */
static struct qg_context *context_record(CUcontext handle, struct qg_card *card)
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
        pthread_mutex_init(&record->lock, NULL);
        record->next = contexts;
        contexts = record;
    }
    record->handle = handle;
    record->card = card;
    pthread_mutex_lock(&record->lock);
    record->attached = NULL;
    record->refused = false;
    __atomic_store_n(&record->broken, false, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&record->lock);
    show_contexts(card);
    return record;
}

/* Under qg_table_lock: an empty record. Records are never given back to the heap: a thread that just looked one up, or
 * put it on its list of streams to mark, may touch it (under its lock) after it died. */
static struct qg_stream *blank_stream(void)
{
    struct qg_stream *stream;
    if (resting < REST) {
        stream = aligned_alloc(64, (sizeof(*stream) + 63) & ~(size_t)63); /* two threads' streams share no line */
        if (stream) {
            memset(stream, 0, sizeof(*stream));
            pthread_mutex_init(&stream->lock, NULL);
        }
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

static void homeless_remove(struct qg_stream *stream)
{
    struct qg_stream **link = &qg_homeless[stream->card - qg_cards];
    if (!stream->homeless)
        return;
    while (*link != stream)
        link = &(*link)->homeless_next;
    *link = stream->homeless_next;
    stream->homeless = false;
    __atomic_fetch_sub(&qg_homeless_count, 1, __ATOMIC_RELAXED);
}

/* Under qg_table_lock: whether the stream's last marker was reached and nothing came after it. */
static bool at_rest(struct qg_stream *stream, const struct qg_pages *pages)
{
    pthread_mutex_lock(&stream->lock);
    uint32_t done = __atomic_load_n(&pages->proc->markers[stream->marker].done, __ATOMIC_ACQUIRE);
    bool rests = done == stream->value && !__atomic_load_n(&stream->unmarked, __ATOMIC_SEQ_CST) &&
                 !qg_stream_inflight(stream);
    pthread_mutex_unlock(&stream->lock);
    return rests;
}

static void release_marker(struct qg_stream *stream)
{
    int at = (int)(stream->card - qg_cards);
    if (stream->marker < 0)
        return;
    marker_value[at][stream->marker] = stream->value;
    qg_marker_taken[at] &= ~(1ull << stream->marker);
    qg_marker_owner[at][stream->marker] = NULL;
    __atomic_store_n(&stream->marker, -1, __ATOMIC_RELAXED);
}

/* Under qg_table_lock: an index whose last marker has been reached: a free one, or that of a stream at rest. -1: none. */
static int free_marker(int at, const struct qg_pages *pages)
{
    for (int i = 0; i < (int)QG_MARKERS; i++)
        if (!(qg_marker_taken[at] & (1ull << i)) &&
            (!pages || __atomic_load_n(&pages->proc->markers[i].done, __ATOMIC_ACQUIRE) ==
                           __atomic_load_n(&pages->proc->markers[i].submitted, __ATOMIC_RELAXED)))
            return i; /* else a destroyed stream still runs towards it */
    for (int i = 0; pages && i < (int)QG_MARKERS; i++) {
        struct qg_stream *owner = qg_marker_owner[at][i];
        if (!owner || !at_rest(owner, pages))
            continue;
        pthread_mutex_lock(&owner->lock);
        release_marker(owner);
        pthread_mutex_unlock(&owner->lock);
        return i;
    }
    return -1;
}

/* Under qg_table_lock. */
static void take_marker(struct qg_stream *stream)
{
    int card = (int)(stream->card - qg_cards), at = free_marker(card, qg_pages_of(stream->card));
    if (at < 0)
        return;
    pthread_mutex_lock(&stream->lock);
    stream->value = marker_value[card][at];
    __atomic_store_n(&stream->marker, at, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&stream->lock);
    qg_marker_taken[card] |= 1ull << at;
    qg_marker_owner[card][at] = stream;
    homeless_remove(stream);
}

/* Only streams that are used for work get an index: there are QG_MARKERS of them, and who rests gives its one away. */
void qg_want_marker(struct qg_stream *stream)
{
    if (QG_LIKELY(__atomic_load_n(&stream->marker, __ATOMIC_RELAXED) >= 0))
        return;
    pthread_mutex_lock(&qg_table_lock);
    if (stream->marker < 0 && !stream->dead)
        take_marker(stream);
    pthread_mutex_unlock(&qg_table_lock);
}

void qg_stream_works(struct qg_stream *stream)
{
    if (QG_LIKELY(__atomic_load_n(&stream->marker, __ATOMIC_RELAXED) >= 0))
        return;
    pthread_mutex_lock(&qg_table_lock);
    if (stream->marker < 0 && !stream->dead && !stream->homeless) {
        struct qg_stream **first = &qg_homeless[stream->card - qg_cards];
        stream->homeless_next = *first;
        stream->homeless = true;
        __atomic_fetch_add(&qg_homeless_count, 1, __ATOMIC_RELAXED);
        *first = stream;
    }
    pthread_mutex_unlock(&qg_table_lock);
}

static void bury(struct qg_stream *stream);
static void unlink_dead(size_t at);

/* A thread ended: its per-thread default streams have no further work, and its lane and its place at the gate are free. */
static void thread_ended(void *thread)
{
    memset(qg_thread.seen, 0, sizeof(qg_thread.seen));
    qg_lane_release();
    qg_waiter_release();
    thread_id = 0;
    pthread_mutex_lock(&qg_table_lock);
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct qg_stream *stream = table[i]; stream; stream = stream->next)
            if (stream->key == 2 && stream->thread == (uint64_t)(uintptr_t)thread && !stream->dead)
                bury(stream);
        unlink_dead(i);
    }
    pthread_mutex_unlock(&qg_table_lock);
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

/* Who a stream belongs to: found by asking the driver, so never under qg_table_lock. */
struct home {
    CUcontext context;
    struct qg_card *card;
};

/* Under qg_table_lock. */
static struct qg_stream *new_stream(uint64_t key, CUcontext current, uint64_t thread, CUstream handle,
                                    const struct home *home)
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
    __atomic_store_n(&stream->marker, -1, __ATOMIC_RELAXED);
    size_t at = bucket(key, stream->context_key, thread);
    stream->next = table[at];
    __atomic_store_n(&table[at], stream, __ATOMIC_RELEASE);
    return stream;
}

/* Streams are created in some context; the one that is current at the first launch is not always that one. */
static struct home home_of(CUstream stream, CUcontext current)
{
    struct home home = {current, NULL};
    CUcontext own = NULL, popped;
    if ((uint64_t)(uintptr_t)stream > 2 && QG_HAVE(cuStreamGetCtx) &&
        QG_REAL(cuStreamGetCtx)(stream, &own) == CUDA_SUCCESS && own && own != current &&
        QG_REAL(cuCtxPushCurrent_v2)(own) == CUDA_SUCCESS) {
        home.context = own;
        home.card = qg_card_current();
        QG_REAL(cuCtxPopCurrent_v2)(&popped);
        return home;
    }
    home.card = qg_card_current();
    return home;
}

static struct qg_stream *find_stream(uint64_t key, CUcontext context, uint64_t thread)
{
    struct qg_stream *found = table[bucket(key, context, thread)];
    while (found && (found->key != key || found->context_key != context || found->thread != thread || found->dead))
        found = found->next;
    return found;
}

/* What a launch into the stream needs to know, if it needs nothing but to be counted. */
static void remember(struct qg_stream *stream, uint64_t key, CUcontext context, unsigned generation)
{
    struct qg_seen *seen = qg_seen_of(key);
    struct qg_pages *pages = stream ? qg_pages_of(stream->card) : NULL;
    uint32_t skip = seen->stream == stream ? seen->skip : 0;
    uint16_t stride = seen->stream == stream ? seen->stride : 0;
    *seen = (struct qg_seen){.key = key > 2 ? key : QG_SEEN_DEFAULT + key, .generation = generation, .stream = stream, .context = context};
    seen->stride = stride;
    seen->skip = skip;
    seen->granted = (uint16_t)skip;
    seen->attention = QG_GATE_ATTENTION;
    if (!pages || !pages->lanes || __atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE))
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
    struct qg_stream *found = find_stream(key, of_key, thread);
    pthread_mutex_unlock(&qg_table_lock);
    if (!found) {
        struct home home = home_of(stream, current);
        pthread_mutex_lock(&qg_table_lock);
        found = find_stream(key, of_key, thread); /* another thread may have been faster */
        if (!found)
            found = new_stream(key, current, thread, stream, &home);
        pthread_mutex_unlock(&qg_table_lock);
    }
    remember(found, key, of_key, generation);
    return found;
}

bool qg_stream_captures_slow(struct qg_stream *stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return QG_REAL(cuStreamIsCapturing)(stream->handle, &status) != CUDA_SUCCESS ||
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* ---- ends ------------------------------------------------------------------------------------------------- */

/* Under qg_table_lock. The record stays: another thread's cache may still hold it for one more call. */
static void bury(struct qg_stream *stream)
{
    pthread_mutex_lock(&stream->lock); /* a marker of another thread may just go into it */
    __atomic_store_n(&stream->dead, true, __ATOMIC_SEQ_CST);
    qg_clear_unmarked(stream);
    release_marker(stream);
    homeless_remove(stream);
    pthread_mutex_unlock(&stream->lock);
    __atomic_add_fetch(&qg_generation, 1, __ATOMIC_SEQ_CST);
}

/* Under qg_table_lock. */
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
    pthread_mutex_lock(&qg_table_lock);
    for (struct qg_stream *stream = table[at]; stream; stream = stream->next)
        if (stream->key == key && !stream->dead)
            bury(stream);
    unlink_dead(at);
    pthread_mutex_unlock(&qg_table_lock);
}

void qg_streams_context_gone(CUcontext handle)
{
    pthread_mutex_lock(&qg_table_lock);
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct qg_stream *stream = table[i]; stream; stream = stream->next) {
            if (stream->context->handle != handle || stream->dead)
                continue;
            /* Its work ended with the context; nothing will write the word any more. */
            struct qg_pages *pages = qg_pages_of(stream->card);
            if (pages && stream->marker >= 0)
                __atomic_store_n(&pages->proc->markers[stream->marker].done, stream->value, __ATOMIC_SEQ_CST);
            bury(stream);
        }
        unlink_dead(i);
    }
    for (struct qg_context *record = contexts; record; record = record->next) {
        pthread_mutex_lock(&record->lock);
        record->attached = NULL; /* the page may have been registered through the context that is gone */
        pthread_mutex_unlock(&record->lock);
        if (record->handle == handle)
            free_record(record);
    }
    pthread_mutex_unlock(&qg_table_lock);
}

void qg_streams_green_gone(CUcontext handle)
{
    pthread_mutex_lock(&qg_table_lock);
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct qg_stream *stream = table[i]; stream; stream = stream->next)
            if (stream->context->handle == handle && !stream->dead)
                bury(stream);
        unlink_dead(i);
    }
    for (struct qg_context *record = contexts; record; record = record->next)
        if (record->handle == handle)
            free_record(record);
    pthread_mutex_unlock(&qg_table_lock);
}

/* New pages: work whose marker stands in the old page must keep the tenant busy in the new one. */
void qg_streams_adopt(struct qg_card *card, struct qg_pages *from)
{
    pthread_mutex_lock(&qg_table_lock);
    for (unsigned i = 0; from && i < QG_MARKERS; i++) {
        uint32_t done = __atomic_load_n(&from->proc->markers[i].done, __ATOMIC_ACQUIRE);
        struct qg_stream *stream = qg_marker_owner[card - qg_cards][i];
        if (!stream)
            continue;
        pthread_mutex_lock(&stream->lock);
        bool behind = done != stream->value;
        pthread_mutex_unlock(&stream->lock);
        if (behind)
            qg_set_unmarked(stream);
    }
    show_contexts(card);
    pthread_mutex_unlock(&qg_table_lock);
    qg_show_unmarked(card);
    __atomic_add_fetch(&qg_generation, 1, __ATOMIC_SEQ_CST); /* threads know the old pages */
}
