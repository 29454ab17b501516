/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, and the completion markers in them.
 */
#ifndef QG_STREAMS_H
#define QG_STREAMS_H

#include "shim.h"

#define QG_RING 16u /* outstanding markers with an estimate, per stream (window mode) */

struct qg_ring_item {
    uint32_t value;   /* marker value that ends it */
    uint64_t est_ns;  /* estimated work between the marker before and this one */
};

/* A context in which markers are written. */
struct qg_context {
    CUcontext handle;
    struct qg_card *card;      /* NULL: a card that was not granted */
    struct qg_proc *attached;  /* page that is registered with CUDA here; NULL: none */
    CUdeviceptr device_page;   /* the same page, as the GPU sees it */
    bool refused;              /* the driver cannot do it: estimates only */
    struct qg_context *next;
};

struct qg_stream {
    /* Identity; constant once published. key 0 = legacy stream, 2 = per-thread stream of `thread`. */
    uint64_t key;
    CUcontext context_key; /* only of key 0 and 2 */
    uint64_t thread;       /* only of key 2 */
    CUstream handle;       /* never 0: 0 is ambiguous between the two default streams */
    struct qg_context *context;
    struct qg_card *card;
    bool dead;             /* atomic */

    /* Touched on every launch. */
    bool unmarked;         /* atomic: work after the last marker */
    uint32_t skip;         /* launches until the clock is read again */
    uint32_t stride;
    uint64_t marked_tick;  /* of the last marker */
    uint64_t looked_tick;

    /* Under lock. */
    pthread_mutex_t lock;
    int marker;            /* index into qg_proc.markers, -1: none */
    uint32_t value;        /* last marker value */
    struct qg_proc *page;  /* where it was written */
    uint64_t open_ns;      /* estimated work since the last marker (window mode) */
    struct qg_ring_item ring[QG_RING];
    uint32_t ring_first, ring_count;
    struct qg_stream *next;
};

/* The stream's record; NULL for a stream on a card that was not granted. ptsz: handle 0 is the per-thread stream. */
struct qg_stream *qg_stream_slow(CUstream stream, bool ptsz);

struct qg_stream_cache {
    uint64_t key;
    CUcontext context;
    unsigned generation;
    struct qg_stream *stream;
};
extern __thread struct qg_stream_cache qg_cache __attribute__((tls_model("initial-exec")));

static inline struct qg_stream *qg_stream_of(CUstream stream, bool ptsz)
{
    uint64_t key = (uint64_t)(uintptr_t)stream;
    CUcontext context = NULL;
    if (key <= 2) {
        key = key == 2 || (key == 0 && ptsz) ? 2 : 0;
        if (QG_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
            return NULL;
    }
    if (QG_LIKELY(qg_cache.key == key && qg_cache.context == context && qg_cache.stream &&
                  qg_cache.generation == __atomic_load_n(&qg_generation, __ATOMIC_ACQUIRE)))
        return qg_cache.stream;
    return qg_stream_slow(stream, ptsz);
}

/* True if nothing of ours may be put into this stream: it captures (or nobody can say). */
bool qg_stream_captures(struct qg_stream *stream);

/* Around driver calls of ours that a capture of another thread would otherwise forbid, or be spoiled by. */
bool qg_relax(CUstreamCaptureMode *mode);
void qg_unrelax(bool relaxed, CUstreamCaptureMode *mode);

/* Gives the stream a marker index, if one is free. */
void qg_want_marker(struct qg_stream *stream);

/* Puts a marker after the work so far. */
void qg_mark(struct qg_stream *stream);

/* Before a call that waits for, or looks at, work: marks what is unmarked. */
void qg_observe_stream(CUstream stream, bool ptsz);
void qg_observe_context(CUcontext context); /* NULL: the current one */

void qg_stream_destroyed(CUstream stream);

/* Whether a stream has work after its last marker, and the slot's word that tells it for the whole process. */
void qg_set_unmarked(struct qg_stream *stream);
void qg_clear_unmarked(struct qg_stream *stream);
void qg_show_unmarked(struct qg_card *card);

/* Estimated unfinished work of one stream; under its lock. */
uint64_t qg_stream_inflight(struct qg_stream *stream);

/* Estimated unfinished work of a card; visits each of its streams. */
uint64_t qg_inflight_ns(struct qg_card *card, struct qg_stream **oldest);

#endif
