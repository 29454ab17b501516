/* SPDX-License-Identifier: Apache-2.0
 *
 * Marker indices: which of the slot's words belongs to which stream. Only streams that are used for
 * work have one; who rests gives it to the next that works, and who finds none stands on a list.
 */
#include "track/table.h"

#include <string.h>

uint64_t qg_marker_taken[QG_MAX_CARDS];
struct qg_stream *qg_marker_owner[QG_MAX_CARDS][QG_MARKERS];
struct qg_stream *qg_homeless[QG_MAX_CARDS];
unsigned qg_homeless_count;
static uint32_t marker_value[QG_MAX_CARDS][QG_MARKERS]; /* last value written through the index */

void qg_indices_after_fork(void)
{
    memset(qg_marker_taken, 0, sizeof(qg_marker_taken));
    memset(qg_marker_owner, 0, sizeof(qg_marker_owner));
    memset(marker_value, 0, sizeof(marker_value));
    memset(qg_homeless, 0, sizeof(qg_homeless));
    qg_homeless_count = 0;
}

void qg_homeless_remove(struct qg_stream *stream)
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

void qg_release_marker(struct qg_stream *stream)
{
    int at = (int)(stream->card - qg_cards);
    if (stream->marker < 0)
        return;
    marker_value[at][stream->marker] = stream->value;
    qg_marker_taken[at] &= ~(1ull << stream->marker);
    qg_marker_owner[at][stream->marker] = NULL;
    __atomic_store_n(&stream->marker, -1, __ATOMIC_RELAXED);
}

/* Under qg_table_lock: takes the index of a stream whose last marker was reached, if nothing came
 * after it nor is just coming. */
static bool give_away(struct qg_stream *stream, const struct qg_pages *pages)
{
    pthread_mutex_lock(&stream->lock);
    uint32_t done = __atomic_load_n(&pages->proc->markers[stream->marker].done, __ATOMIC_ACQUIRE);
    bool rests = done == stream->value && !stream->calling &&
                 !__atomic_load_n(&stream->unmarked, __ATOMIC_SEQ_CST) &&
                 !qg_stream_inflight(stream);
    if (rests)
        qg_release_marker(stream);
    pthread_mutex_unlock(&stream->lock);
    return rests;
}

/* Under qg_table_lock: an index whose last marker has been reached: a free one, or that of a stream
 * at rest. -1: none. */
static int free_marker(int at, const struct qg_pages *pages)
{
    for (int i = 0; i < (int)QG_MARKERS; i++)
        if (!(qg_marker_taken[at] & (1ull << i)) &&
            (!pages || __atomic_load_n(&pages->proc->markers[i].done, __ATOMIC_ACQUIRE) ==
                           __atomic_load_n(&pages->proc->markers[i].submitted, __ATOMIC_RELAXED)))
            return i; /* else a destroyed stream still runs towards it */
    for (int i = 0; pages && i < (int)QG_MARKERS; i++) {
        struct qg_stream *owner = qg_marker_owner[at][i];
        if (owner && give_away(owner, pages))
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
    qg_homeless_remove(stream);
}

/* Only streams that are used for work get an index: there are QG_MARKERS of them, and who rests
 * gives its one away. */
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

void qg_stream_buried(struct qg_stream *stream)
{
    pthread_mutex_lock(&qg_table_lock);
    pthread_mutex_lock(&stream->lock);
    qg_release_marker(stream);
    pthread_mutex_unlock(&stream->lock);
    pthread_mutex_unlock(&qg_table_lock);
}
