/* SPDX-License-Identifier: Apache-2.0
 *
 * Visits all streams of a context or card. It finds those with unfenced work, and sums up the work
 * in flight.
 */
#include "process/green.h"
#include "track/table.h"

/* A wait for a primary context also waits for its green contexts. Their events may belong to any of
 * them. So they count as one context. */
static bool wants_fence(const struct qg_stream *stream, CUcontext context, uint64_t thread)
{
    return stream && qg_context_owner(stream->context->handle) == context &&
           (stream->key != 2 || stream->thread == thread) &&
           __atomic_load_n(&stream->unfenced, __ATOMIC_RELAXED);
}

/* Streams of a context with unfenced work. They are collected first and fenced afterwards:
 * qg_fence_insert_for() calls the driver, which is forbidden under qg_table_lock. */
static unsigned unfenced_of(CUcontext context, struct qg_stream **found, unsigned room)
{
    unsigned count = 0;
    uint64_t thread = qg_this_thread();
    pthread_mutex_lock(&qg_table_lock);
    for (unsigned card = 0; card < qg_info.grant.ncards; card++) {
        for (unsigned i = 0; i < QG_FENCES && count < room; i++)
            if (wants_fence(qg_fence_slot_owner[card][i], context, thread))
                found[count++] = qg_fence_slot_owner[card][i];
        for (struct qg_stream *stream = qg_slotless[card]; stream && count < room;
             stream = stream->slotless_next)
            if (wants_fence(stream, context, thread))
                found[count++] = stream;
    }
    pthread_mutex_unlock(&qg_table_lock);
    return count;
}

bool qg_any_unfenced(void)
{
    for (unsigned i = 0; i < qg_info.grant.ncards; i++)
        if (__atomic_load_n(&qg_cards[i].unfenced, __ATOMIC_RELAXED) > 0)
            return true;
    return false;
}

void qg_observe_context(CUcontext context)
{
    struct qg_stream *found[4 * QG_FENCES];
    if (!qg_any_unfenced())
        return;
    if (!context && (QG_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context))
        return;
    unsigned count = unfenced_of(qg_context_owner(context), found, 4 * QG_FENCES);
    for (unsigned i = 0; i < count; i++)
        qg_fence_insert_for(found[i]);
}

void qg_observe_slotless(void)
{
    if (QG_UNLIKELY(__atomic_load_n(&qg_slotless_count, __ATOMIC_RELAXED)))
        qg_observe_context(NULL);
}

/* ---- window mode ---- */

static void add_inflight(struct qg_stream *stream, struct qg_inflight *out, uint32_t *most)
{
    pthread_mutex_lock(&stream->lock);
    uint64_t own = qg_stream_inflight(stream);
    uint32_t count = stream->ring_count;
    const struct qg_ring_item *next = count ? &stream->ring[stream->ring_first] : NULL;
    uint64_t next_ns = next ? next->est_ns : own;
    if (own && (!out->oldest || count > *most)) {
        out->oldest = stream;
        out->unfenced = !next;
        out->first_ns = next_ns;
        out->first = next ? next->function : stream->open_function;
        *most = count;
    }
    pthread_mutex_unlock(&stream->lock);
    if (next_ns > out->longest_ns)
        out->longest_ns = next_ns;
    out->sum_ns += own;
}

void qg_inflight_of(struct qg_card *card, struct qg_inflight *out)
{
    uint32_t most = 0;
    *out = (struct qg_inflight){0};
    pthread_mutex_lock(&qg_table_lock);
    for (uint64_t left = qg_fence_slots_taken[card - qg_cards]; left; left &= left - 1)
        add_inflight(qg_fence_slot_owner[card - qg_cards][__builtin_ctzll(left)], out, &most);
    for (struct qg_stream *stream = qg_slotless[card - qg_cards]; stream;
         stream = stream->slotless_next)
        add_inflight(stream, out, &most);
    pthread_mutex_unlock(&qg_table_lock);
}
