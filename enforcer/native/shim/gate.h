/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands before every submission of work. qg_enter() and qg_leave() bracket the driver's call; when nothing is
 * wrong they cost one atomic increment, one load and a look at the stream's record.
 */
#ifndef QG_GATE_H
#define QG_GATE_H

#include "streams.h"

#define QG_GATE_ATTENTION (QG_GATE_CLOSED | QG_GATE_NOTIFY | QG_GATE_WINDOW)

/* What a submission is, for the estimate of its duration. */
struct qg_work {
    const void *function; /* CUfunction or CUgraphExec; NULL for a copy */
    uint64_t bytes;       /* of a copy */
};

/* The slow half of qg_enter: rings, waits at a closed gate, waits for room in the window. */
void qg_gate_attention(struct qg_stream *stream, const struct qg_work *work);

/* The slow half of qg_leave in window mode. */
void qg_window_leave(struct qg_stream *stream);
extern __thread bool qg_window_open __attribute__((tls_model("initial-exec"))); /* this thread owes a window_leave */

/* Clock check of the fast path, and a marker if the stream's last one is a millisecond old. */
void qg_leave_look(struct qg_stream *stream);

__attribute__((always_inline)) static inline struct qg_stream *qg_enter(CUstream handle, bool ptsz, const void *function, uint64_t bytes)
{
    if (QG_UNLIKELY(!qg_governed || qg_depth))
        return NULL;
    struct qg_stream *stream = qg_stream_of(handle, ptsz);
    if (QG_UNLIKELY(!stream || qg_stream_captures(stream)))
        return NULL;
    struct qg_pages *pages = qg_pages_of(stream->card);
    if (QG_LIKELY(pages != NULL)) {
        /* Counted before the gate word is read: the arbiter writes the word, fences and reads the count. */
        __atomic_fetch_add(&pages->proc->launches, 1, __ATOMIC_SEQ_CST);
        if (QG_LIKELY(!(__atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST) & QG_GATE_ATTENTION)))
            goto open;
    }
    struct qg_work work = {function, bytes};
    qg_gate_attention(stream, &work);
open:
    if (QG_UNLIKELY(!__atomic_load_n(&stream->unmarked, __ATOMIC_RELAXED)))
        qg_set_unmarked(stream);
    qg_depth = 1;
    return stream;
}

static inline void qg_leave(struct qg_stream *stream)
{
    if (!stream)
        return;
    qg_depth = 0;
    if (QG_UNLIKELY(qg_window_open))
        qg_window_leave(stream);
    /* Shared by the threads that use the stream; a lost count only moves the next look at the clock. */
    uint32_t skip = __atomic_load_n(&stream->skip, __ATOMIC_RELAXED);
    if (skip)
        __atomic_store_n(&stream->skip, skip - 1, __ATOMIC_RELAXED);
    else
        qg_leave_look(stream);
}

#endif
