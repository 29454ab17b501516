/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks at all streams of a context or card: which still lack a marker, and how much work they have
 * in flight.
 */
#include "process/green.h"
#include "track/table.h"

/* The green contexts of a primary one are waited for with it, and their events may be anybody's:
 * they count as one. */
static bool wants_mark(const struct qg_stream *stream, CUcontext context, uint64_t thread)
{
    return stream && qg_context_owner(stream->context->handle) == context &&
           (stream->key != 2 || stream->thread == thread) &&
           __atomic_load_n(&stream->unmarked, __ATOMIC_RELAXED);
}

/* Streams of a context with work after their last marker. Collected first, marked after:
 * qg_mark_for() calls the driver, which must not happen under qg_table_lock. */
static unsigned unmarked_of(CUcontext context, struct qg_stream **found, unsigned room)
{
    unsigned count = 0;
    uint64_t thread = qg_this_thread();
    pthread_mutex_lock(&qg_table_lock);
    for (unsigned card = 0; card < qg_info.grant.ncards; card++) {
        for (unsigned i = 0; i < QG_MARKERS && count < room; i++)
            if (wants_mark(qg_marker_owner[card][i], context, thread))
                found[count++] = qg_marker_owner[card][i];
        for (struct qg_stream *stream = qg_homeless[card]; stream && count < room;
             stream = stream->homeless_next)
            if (wants_mark(stream, context, thread))
                found[count++] = stream;
    }
    pthread_mutex_unlock(&qg_table_lock);
    return count;
}

bool qg_unmarked_anywhere(void)
{
    for (unsigned i = 0; i < qg_info.grant.ncards; i++)
        if (__atomic_load_n(&qg_cards[i].unmarked, __ATOMIC_RELAXED) > 0)
            return true;
    return false;
}

void qg_observe_context(CUcontext context)
{
    struct qg_stream *found[4 * QG_MARKERS];
    if (!qg_unmarked_anywhere())
        return;
    if (!context && (QG_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context))
        return;
    unsigned count = unmarked_of(qg_context_owner(context), found, 4 * QG_MARKERS);
    for (unsigned i = 0; i < count; i++)
        qg_mark_for(found[i]);
}

void qg_observe_homeless(void)
{
    if (QG_UNLIKELY(__atomic_load_n(&qg_homeless_count, __ATOMIC_RELAXED)))
        qg_observe_context(NULL);
}

/* ---- window mode ---- */

static void add_inflight(struct qg_stream *stream, struct qg_inflight *out, uint32_t *most)
{
    pthread_mutex_lock(&stream->lock);
    uint64_t own = qg_stream_inflight(stream);
    uint32_t count = stream->ring_count;
    if (own && (!out->oldest || count > *most)) {
        out->oldest = stream;
        out->unmarked = !count;
        out->first_ns = count ? stream->ring[stream->ring_first].est_ns : own;
        out->first = count ? stream->ring[stream->ring_first].function : stream->open_function;
        out->first_low_ns = count ? stream->ring[stream->ring_first].low_ns : stream->open_low_ns;
        *most = count;
    }
    const struct qg_ring_item *next = count ? &stream->ring[stream->ring_first] : NULL;
    if (own && (next ? next->est_ns : own) > out->longest.ns) {
        out->longest.stream = next && next->function ? stream : NULL;
        out->longest.function = next ? next->function : NULL;
        out->longest.ns = next ? next->est_ns : own;
        out->longest.value = next ? next->value : 0;
    }
    out->sum_low_ns += own ? stream->open_low_ns : 0;
    for (uint32_t i = 0; i < count; i++)
        out->sum_low_ns += stream->ring[(stream->ring_first + i) % QG_RING].low_ns;
    pthread_mutex_unlock(&stream->lock);
    out->sum_ns += own;
}

void qg_inflight_of(struct qg_card *card, struct qg_inflight *out)
{
    uint32_t most = 0;
    *out = (struct qg_inflight){0};
    pthread_mutex_lock(&qg_table_lock);
    for (uint64_t left = qg_marker_taken[card - qg_cards]; left; left &= left - 1)
        add_inflight(qg_marker_owner[card - qg_cards][__builtin_ctzll(left)], out, &most);
    for (struct qg_stream *stream = qg_homeless[card - qg_cards]; stream;
         stream = stream->homeless_next)
        add_inflight(stream, out, &most);
    pthread_mutex_unlock(&qg_table_lock);
}
