/* SPDX-License-Identifier: Apache-2.0
 *
 * The code before every submission of work. A normal launch passes qg_fast(). It counts the launch,
 * reads the gate word, and lets the hook jump into the driver with its arguments untouched. All
 * other submissions bracket the driver's call with qg_enter() and qg_leave().
 */
#ifndef QG_GATE_H
#define QG_GATE_H

#include "window/window.h"

/* The slow half of qg_enter: rings, waits at a closed gate, waits for room in the window. */
void qg_gate_attention(struct qg_stream *stream, const struct qg_work *work);

/* Waits while the card's gate is closed, as a launch does. */
void qg_gate_wait(struct qg_card *card);

/* The same for work of this stream that is not counted yet. False: the gate is open, nothing was
 * waited for. */
bool qg_gate_waited(struct qg_stream *stream);

/* Reads the clock at every few launches. It inserts a fence if the stream's last fence is 1 ms old.
 */
void qg_leave_slow(struct qg_seen *seen, struct qg_stream *stream);

/* Adds one to a counter that only this thread writes. The gate word is read after it. The signal
 * fence keeps the compiler's order, and the arbiter's membarrier keeps the processor's (lanes.c).
 */
static inline void qg_count_own(uint64_t *launches)
{
    __atomic_store_n(launches, __atomic_load_n(launches, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* True: counted, and the launch may go at once. */
__attribute__((always_inline)) static inline bool qg_fast_seen(struct qg_seen *seen)
{
    if (QG_UNLIKELY(seen->fast != __atomic_load_n(&qg_generation, __ATOMIC_ACQUIRE) ||
                    !seen->skip || !__atomic_load_n(&seen->stream->unfenced, __ATOMIC_RELAXED)))
        return false;
    seen->skip--;
    qg_count_own(seen->launches);
    if (QG_LIKELY(!(__atomic_load_n(seen->gate, __ATOMIC_ACQUIRE) & seen->attention)))
        return true;
    qg_thread.counted = true;
    return false;
}

/* The fast path for a stream with a handle of its own. */
__attribute__((always_inline)) static inline bool qg_fast(CUstream handle)
{
    struct qg_seen *seen = qg_seen_of((uint64_t)(uintptr_t)handle);
    return QG_LIKELY(seen->key == (uint64_t)(uintptr_t)handle) && qg_fast_seen(seen);
}

/* The fast path for a default stream. Each context has another one, so the driver is asked for the
 * current context. */
static inline bool qg_fast_default(CUstream handle, bool ptsz)
{
    CUcontext context = NULL;
    uint64_t key = qg_stream_key(handle, ptsz);
    struct qg_seen *seen = qg_seen_of(key);
    return key <= 2 && seen->key == QG_SEEN_DEFAULT + key &&
           QG_REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && seen->context == context &&
           qg_fast_seen(seen);
}

/* Counts the launch before the gate word is read. The arbiter writes the word, issues a barrier and
 * reads the counts. */
static inline void qg_count(struct qg_pages *pages)
{
    int lane = pages->lanes ? qg_lane_mine() : 0;
    if (QG_LIKELY(lane && lane < (int)QG_LANES))
        qg_count_own(&pages->proc->lanes[lane - 1].launches);
    else
        __atomic_fetch_add(lane ? &pages->proc->lanes[QG_LANES - 1].launches
                                : &pages->proc->launches,
                           1, __ATOMIC_SEQ_CST);
}

static inline struct qg_stream *qg_enter(CUstream handle, bool ptsz, const void *function,
                                         uint64_t bytes)
{
    bool counted = qg_thread.counted;
    struct qg_seen *seen;
    qg_thread.counted = false;
    if (QG_UNLIKELY(!qg_governed || qg_depth))
        return NULL;
    struct qg_stream *stream = qg_stream_seen(handle, ptsz, &seen);
    if (QG_UNLIKELY(!stream || qg_stream_captures(stream)))
        return NULL;
    struct qg_pages *pages = qg_pages_of(stream->card);
    if (QG_LIKELY(pages != NULL)) {
        if (!counted)
            qg_count(pages);
        if (QG_LIKELY(
                !(__atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST) & QG_GATE_ATTENTION)))
            goto open;
    }
    /* qg_fast() took this one off as well; not where the stream was looked up anew since then */
    uint32_t passed = seen->skip_set - seen->skip;
    passed -= passed && counted;
    struct qg_work work = {function, bytes, function ? 1 + passed : 1};
    seen->skip_set = (uint16_t)seen->skip;
    qg_gate_attention(stream, &work);
open:
    if (QG_UNLIKELY(!__atomic_load_n(&stream->unfenced, __ATOMIC_RELAXED))) {
        qg_set_unfenced(stream);
        qg_stream_has_work(stream);
    }
    qg_depth = 1;
    return stream;
}

/* After the driver's call. Work that the driver refused is not on its way to the card. */
static inline void qg_leave(struct qg_stream *stream, CUresult result)
{
    if (!stream)
        return;
    qg_depth = 0;
    bool window = qg_window_open;
    if (QG_UNLIKELY(window))
        qg_window_leave(stream, result);
    struct qg_seen *seen = qg_seen_of(stream->key);
    bool same = seen->stream == stream;
    if (same && seen->skip)
        seen->skip_set = (uint16_t)--seen->skip;
    else
        qg_leave_slow(seen, stream);
    if (same && QG_UNLIKELY(window))
        qg_window_skip_polls(seen);
}

/* True: the gate was ignored because the arbiter's heartbeat had stopped, and there is a heartbeat
 * again. */
bool qg_gate_arbiter_back(struct qg_card *card);
void qg_gate_adopted(struct qg_card *card);                            /* new pages took over */
void qg_gate_ring(struct qg_card *card, const struct qg_pages *pages); /* wakes the arbiter */
/* idle_report.c. A call has reported that work is over; slept: it waited for that. If it was the
 * last work, the arbiter gets the time in an idle report. */
void qg_report_idle(bool slept);
/* True: no arbiter will answer a thread that waits for anything but the gate: it is gone, or it
 * refuses this process. */
bool qg_gate_unanswered(struct qg_card *card, const struct qg_pages *pages);

#endif
