/* SPDX-License-Identifier: Apache-2.0
 *
 * Fence slots: which fence word of the process's slot belongs to which stream. Only streams with
 * work have one. An idle stream gives its fence slot to the next stream that works. A stream that
 * finds none free is put on the list of slotless streams.
 */
#include "track/table.h"

#include <string.h>

uint64_t qg_fence_slots_taken[QG_MAX_CARDS];
struct qg_stream *qg_fence_slot_owner[QG_MAX_CARDS][QG_FENCES];
struct qg_stream *qg_slotless[QG_MAX_CARDS];
unsigned qg_slotless_count;
/* last value written through the fence slot */
static uint32_t slot_value[QG_MAX_CARDS][QG_FENCES];

void qg_fence_slots_after_fork(void)
{
    memset(qg_fence_slots_taken, 0, sizeof(qg_fence_slots_taken));
    memset(qg_fence_slot_owner, 0, sizeof(qg_fence_slot_owner));
    memset(slot_value, 0, sizeof(slot_value));
    memset(qg_slotless, 0, sizeof(qg_slotless));
    qg_slotless_count = 0;
}

void qg_slotless_remove(struct qg_stream *stream)
{
    struct qg_stream **link = &qg_slotless[stream->card - qg_cards];
    if (!stream->slotless)
        return;
    while (*link != stream)
        link = &(*link)->slotless_next;
    *link = stream->slotless_next;
    stream->slotless = false;
    __atomic_fetch_sub(&qg_slotless_count, 1, __ATOMIC_RELAXED);
}

void qg_fence_slot_release(struct qg_stream *stream)
{
    int at = (int)(stream->card - qg_cards);
    if (stream->fence_slot < 0)
        return;
    slot_value[at][stream->fence_slot] = stream->value;
    qg_fence_slots_taken[at] &= ~(1ull << stream->fence_slot);
    qg_fence_slot_owner[at][stream->fence_slot] = NULL;
    __atomic_store_n(&stream->fence_slot, -1, __ATOMIC_RELAXED);
}

/* Under qg_table_lock: releases the fence slot of an idle stream. Its last fence was reached and no
 * newer work exists or is being submitted. */
static bool release_idle(struct qg_stream *stream, const struct qg_pages *pages)
{
    pthread_mutex_lock(&stream->lock);
    uint32_t done =
        __atomic_load_n(&pages->proc->fences[stream->fence_slot].done, __ATOMIC_ACQUIRE);
    bool idle = done == stream->value && !stream->calling &&
                !__atomic_load_n(&stream->unfenced, __ATOMIC_SEQ_CST) &&
                !qg_stream_inflight(stream);
    if (idle)
        qg_fence_slot_release(stream);
    pthread_mutex_unlock(&stream->lock);
    return idle;
}

/* Under qg_table_lock: a fence slot whose last fence was reached. It is a free one or that of an
 * idle stream. -1: none. */
static int free_slot(int at, const struct qg_pages *pages)
{
    for (int i = 0; i < (int)QG_FENCES; i++)
        if (!(qg_fence_slots_taken[at] & (1ull << i)) &&
            (!pages || __atomic_load_n(&pages->proc->fences[i].done, __ATOMIC_ACQUIRE) ==
                           __atomic_load_n(&pages->proc->fences[i].submitted, __ATOMIC_RELAXED)))
            return i; /* otherwise work of a destroyed stream will still write it */
    for (int i = 0; pages && i < (int)QG_FENCES; i++) {
        struct qg_stream *owner = qg_fence_slot_owner[at][i];
        if (owner && release_idle(owner, pages))
            return i;
    }
    return -1;
}

/* Under qg_table_lock. */
static void take_slot(struct qg_stream *stream)
{
    int card = (int)(stream->card - qg_cards), at = free_slot(card, qg_pages_of(stream->card));
    if (at < 0)
        return;
    pthread_mutex_lock(&stream->lock);
    stream->value = slot_value[card][at];
    __atomic_store_n(&stream->fence_slot, at, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&stream->lock);
    qg_fence_slots_taken[card] |= 1ull << at;
    qg_fence_slot_owner[card][at] = stream;
    qg_slotless_remove(stream);
}

/* Only streams with work get one of the QG_FENCES fence slots. An idle stream gives its slot away.
 */
void qg_fence_slot_want(struct qg_stream *stream)
{
    if (QG_LIKELY(__atomic_load_n(&stream->fence_slot, __ATOMIC_RELAXED) >= 0))
        return;
    pthread_mutex_lock(&qg_table_lock);
    if (stream->fence_slot < 0 && !stream->dead)
        take_slot(stream);
    pthread_mutex_unlock(&qg_table_lock);
}

void qg_stream_has_work(struct qg_stream *stream)
{
    if (QG_LIKELY(__atomic_load_n(&stream->fence_slot, __ATOMIC_RELAXED) >= 0))
        return;
    pthread_mutex_lock(&qg_table_lock);
    if (stream->fence_slot < 0 && !stream->dead && !stream->slotless) {
        struct qg_stream **first = &qg_slotless[stream->card - qg_cards];
        stream->slotless_next = *first;
        stream->slotless = true;
        __atomic_fetch_add(&qg_slotless_count, 1, __ATOMIC_RELAXED);
        *first = stream;
    }
    pthread_mutex_unlock(&qg_table_lock);
}

void qg_dead_stream_call_ended(struct qg_stream *stream)
{
    pthread_mutex_lock(&qg_table_lock);
    pthread_mutex_lock(&stream->lock);
    qg_fence_slot_release(stream);
    pthread_mutex_unlock(&stream->lock);
    pthread_mutex_unlock(&qg_table_lock);
}
