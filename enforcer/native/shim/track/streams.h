/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, and the completion markers in them.
 */
#ifndef QG_STREAMS_H
#define QG_STREAMS_H

#include "process/process.h"

/* no launch passes these unseen */
#define QG_GATE_STOPS     (QG_GATE_CLOSED | QG_GATE_NOTIFY | QG_GATE_HOLD)
#define QG_GATE_ATTENTION (QG_GATE_STOPS | QG_GATE_WINDOW)

#define QG_RING 16u /* outstanding markers with an estimate, per stream (window mode) */

struct qg_ring_item {
    uint32_t value;  /* marker value that ends it */
    uint64_t est_ns; /* estimated work between the marker before and this one */
    uint64_t low_ns; /* what it takes at least */
    /* the only one launched between the two; NULL: none, or several launches */
    const void *function;
};

/* A context in which markers are written. */
struct qg_context {
    CUcontext handle;
    /* whose memory its own is: qg_context_owner() when the record was made */
    CUcontext owner;
    struct qg_card *card;     /* NULL: a card that was not granted */
    pthread_mutex_t lock;     /* of the next four */
    struct qg_proc *attached; /* page that is registered with CUDA here; NULL: none */
    CUdeviceptr device_page;  /* the same page, as the GPU sees it */
    bool refused;             /* the driver cannot do it: estimates only */
    /* how often a context ended: what was being attached meanwhile is worth nothing */
    unsigned ends;
    /* atomic: it is just being destroyed, no call of ours begins in its streams */
    bool ending;
    /* atomic: its calls end in errors, so nothing is in flight any more */
    bool broken;
    struct qg_context *next;
};

struct qg_stream {
    /* Identity; constant once published. key 0 = legacy stream, 2 = per-thread stream of `thread`.
     */
    uint64_t key;
    CUcontext context_key; /* only of key 0 and 2 */
    uint64_t thread;       /* only of key 2 */
    CUstream handle;       /* never 0: 0 is ambiguous between the two default streams */
    struct qg_context *context;
    struct qg_card *card;
    bool dead;  /* atomic */
    bool began; /* atomic: a capture began here and goes on */

    /* Touched on every launch. */
    bool unmarked;        /* atomic: work after the last marker */
    uint64_t marked_tick; /* atomic: of the last marker */

    /* Under lock, which is never held across a call of the driver. */
    pthread_mutex_t lock;
    /* futex: a call of ours goes into the stream; no other begins, and it is not destroyed */
    uint32_t calling;
    bool again;       /* a marker is wanted behind that one */
    unsigned awaited; /* threads that wait for the end of that call: the record stays */
    /* threads that just begin a capture in it: no call of ours begins, and the record stays */
    unsigned beginning;
    unsigned entered;          /* launches under way that are booked already (window mode) */
    int marker;                /* index into qg_proc.markers, -1: none */
    uint32_t value;            /* last marker value */
    struct qg_proc *page;      /* where it was written */
    uint64_t open_ns;          /* estimated work since the last marker (window mode) */
    uint64_t open_low_ns;      /* what it takes at least */
    const void *open_function; /* as in qg_ring_item */
    struct qg_ring_item ring[QG_RING];
    uint32_t ring_first, ring_count;
    struct qg_stream *next;          /* under the table's lock, like the next two */
    struct qg_stream *homeless_next; /* work but no marker index */
    bool homeless;
};

/* Under stream->lock: nothing of it is on the card. */
static inline void qg_nothing_open(struct qg_stream *stream)
{
    stream->open_ns = stream->open_low_ns = 0;
    stream->ring_count = 0;
}

/* An answer that is about the handle of a stream, not about its context: there is no such stream
 * any more. */
static inline bool qg_says_lost(CUresult result)
{
    return result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}
bool qg_stream_lost(CUstream stream); /* asks the driver */

/* The stream's record; NULL for a stream on a card that was not granted, and for none. ptsz: handle
 * 0 is the per-thread stream. */
struct qg_stream *qg_stream_slow(CUstream stream, bool ptsz);

/* A stream that this thread used lately: one cache line with all that a launch looks at. */
struct qg_seen {
    uint64_t key;
    /* qg_generation when it was looked up; another one: look it up again */
    unsigned generation;
    unsigned fast;        /* the same if nothing but counting is to be done, else 0 */
    uint64_t *launches;   /* this thread's counter (valid with fast) */
    const uint32_t *gate; /* the gate word (valid with fast) */
    struct qg_stream *stream;
    CUcontext context; /* of key 0 and 2, else NULL */
    uint32_t skip;     /* launches until the clock is read again */
    uint16_t granted;  /* what skip was when it was set: the difference passed since */
    uint16_t stride;
    uint32_t looked;    /* tick of the last look, in units of 1024 */
    uint32_t attention; /* bits of the gate word that a launch must not pass */
};
_Static_assert(sizeof(struct qg_seen) == 64, "one cache line");

#define QG_SEEN 4u

struct qg_thread {
    struct qg_seen seen[QG_SEEN];
    int lane;     /* index into qg_proc.lanes + 1; 0: not asked for yet */
    bool counted; /* the launch was counted by qg_fast() */
    /* window mode: so many launches may pass before the next look; 0: look each time */
    uint16_t calm;
    int waiter; /* waiters.c: slot + 1; 0: none */
} __attribute__((aligned(64)));
extern __thread struct qg_thread qg_thread __attribute__((tls_model("initial-exec")));

/* added to keys 0 and 2 in qg_seen, so that no handle is equal */
#define QG_SEEN_DEFAULT ((uint64_t)1 << 63)

static inline uint64_t qg_stream_key(CUstream stream, bool ptsz)
{
    uint64_t key = (uint64_t)(uintptr_t)stream;
    return key > 2 ? key : key == 2 || (key == 0 && ptsz) ? 2 : 0;
}

static inline struct qg_seen *qg_seen_of(uint64_t key)
{
    return &qg_thread.seen[(key >> 4 ^ key >> 9) % QG_SEEN];
}

/* lanes.c: index + 1 of the lane in which this thread counts (QG_LANES: the shared one); its end.
 */
int qg_lane_mine(void);
void qg_lane_release(void);

/* Makes sure that thread_ended() runs for this thread. */
uint64_t qg_this_thread(void);

/* The stream's record, and in *at what this thread knows of it. */
static inline struct qg_stream *qg_stream_seen(CUstream stream, bool ptsz, struct qg_seen **at)
{
    uint64_t key = qg_stream_key(stream, ptsz), shown = key > 2 ? key : QG_SEEN_DEFAULT + key;
    CUcontext context = NULL;
    if (key <= 2 && QG_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
        return NULL;
    struct qg_seen *seen = *at = qg_seen_of(key);
    if (QG_LIKELY(seen->key == shown && seen->context == context && seen->stream &&
                  seen->generation == __atomic_load_n(&qg_generation, __ATOMIC_ACQUIRE)))
        return seen->stream;
    return qg_stream_slow(stream, ptsz);
}

static inline struct qg_stream *qg_stream_of(CUstream stream, bool ptsz)
{
    struct qg_seen *seen;
    return qg_stream_seen(stream, ptsz, &seen);
}

/* True if nothing of ours may be put into this stream: it captures (or nobody can say). */
bool qg_stream_captures_slow(struct qg_stream *stream);
static inline bool qg_stream_captures(struct qg_stream *stream)
{
    return QG_UNLIKELY(__atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE)) &&
           qg_stream_captures_slow(stream);
}

/* Gives the stream a marker index, if one is free. */
void qg_want_marker(struct qg_stream *stream);

/* Puts a marker after the work so far. Where another thread is just putting one into this stream,
 * that thread puts a second one behind it, and this one does not wait. */
void qg_mark(struct qg_stream *stream);

/* The same of a stream that another thread works in. Into whose launch is under way goes none now:
 * the call would wait with it for a full queue. Who launches does it then. */
void qg_mark_for(struct qg_stream *stream);

/* Before a stream is destroyed, without locks: the end of a call of ours into it. The record was
 * found under qg_table_lock, and one was added to `awaited` there. */
void qg_stream_await(struct qg_stream *stream);
void qg_stream_buried(struct qg_stream *stream); /* such a call came back and found it dead */

/* Around a call that begins a capture, without locks: waits for the end of a call of ours into the
 * stream, and none begins until the driver can say that it captures. NULL: the stream has no
 * record. */
struct qg_stream *qg_capture_begins(CUstream stream, bool ptsz);
void qg_capture_begun(struct qg_stream *stream);
void qg_capture_over(void); /* one that was counted in qg_captures */

/* Before a call that waits for, or looks at, work: marks what is unmarked. */
void qg_observe_stream(CUstream stream, bool ptsz);
void qg_observe_context(CUcontext context); /* NULL: the current one */
void qg_observe_homeless(void);             /* streams that found no free marker index before */
bool qg_unmarked_anywhere(void);            /* some stream has work after its last marker */

/* idle_report.c. A call has answered that work is over, after it slept for it or at once: if it was
 * the last one, the arbiter is told when that was. */
void qg_tell_rest(bool slept);

void qg_stream_destroyed(CUstream stream);
/* its streams take no more work; what is in them goes on */
void qg_streams_green_gone(CUcontext context);

/* Whether a stream has work after its last marker, and the slot's word that tells it for the whole
 * process. */
void qg_set_unmarked(struct qg_stream *stream);
void qg_clear_unmarked(struct qg_stream *stream);
void qg_show_unmarked(struct qg_card *card);

/* Estimated unfinished work of one stream; under its lock. */
uint64_t qg_stream_inflight(struct qg_stream *stream);

/* The stream has work now; without a marker index it is kept on a list of its own. */
void qg_stream_works(struct qg_stream *stream);

/* Asks the driver about a stream whose markers do not move. True: its work is over (or its context
 * is broken), and so it stands in the record now. */
bool qg_stream_over(struct qg_stream *stream);

/* Estimated unfinished work of a card; visits each stream that has some. */
struct qg_inflight {
    uint64_t sum_ns;
    uint64_t sum_low_ns;   /* what all of it takes at least */
    uint64_t first_ns;     /* estimate of what ends next in `oldest` */
    uint64_t first_low_ns; /* what that takes at least */
    const void *first;     /* the function, if that is one launch of it */
    /* the stream with most markers outstanding; NULL: nothing is unfinished */
    struct qg_stream *oldest;
    struct {
        /* NULL: that is the one of no known function, or without a marker */
        struct qg_stream *stream;
        const void *function;
        uint64_t ns;
        uint32_t value; /* the marker that ends it */
    } longest;          /* of what is next to end in each stream */
    bool unmarked;      /* no marker stands in it: its end is invisible until one does */
};
/* This marker was reached, or the stream is no more. */
bool qg_stream_reached(struct qg_stream *stream, uint32_t value);
void qg_inflight_of(struct qg_card *card, struct qg_inflight *out);

void qg_lanes_after_fork(void);
void qg_streams_after_fork(void);
/* before it is destroyed: waits for our calls into its streams */
void qg_streams_context_ends(CUcontext context);
/* the driver refused, or it was not the last reference */
void qg_streams_context_stays(CUcontext context);
void qg_streams_context_gone(CUcontext context);
/* after the new pages are published */
void qg_streams_adopt(struct qg_card *card, struct qg_pages *from);

#endif
