/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, and the fences in them.
 */
#ifndef QG_STREAMS_H
#define QG_STREAMS_H

#include "process/process.h"

/* mark: Gate bits at which a launch must not pass. Evidence: protocol
 * (docs/specs/shim/launch-protocol.md). */
#define QG_GATE_STOPS (QG_GATE_CLOSED | QG_GATE_NOTIFY | QG_GATE_HOLD)
/* mark: Gate bits at which a launch leaves the fast path. Evidence: protocol
 * (docs/specs/shim/launch-protocol.md). */
#define QG_GATE_ATTENTION (QG_GATE_STOPS | QG_GATE_WINDOW)

/* count: Fences of a stream that have an estimate of their own. More are merged. Evidence: bound.
 */
#define QG_RING 16u

struct qg_ring_item {
    uint32_t value;  /* fence value that ends it */
    uint64_t est_ns; /* ns of estimated work between the fence before and this one */
    /* the only one launched between the two; NULL: none, or several launches */
    const void *function;
};

/* A context in which fences are written. */
struct qg_context {
    CUcontext handle;
    /* the context that owns its memory: qg_context_owner() when the record was made */
    CUcontext owner;
    struct qg_card *card;     /* NULL: a card that was not granted */
    pthread_mutex_t lock;     /* of attached, device_page, refused and ends */
    struct qg_proc *attached; /* page that is registered with CUDA here; NULL: none */
    CUdeviceptr device_page;  /* the same page, as the GPU sees it */
    bool refused;             /* the driver cannot do it: estimates only */
    /* times that the context ended; a registration that was under way meanwhile is void */
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
    bool unfenced;        /* atomic: work after the last fence */
    uint64_t fenced_tick; /* atomic: tick of the last fence */

    /* Under lock, which is never held across a call of the driver. */
    pthread_mutex_t lock;
    /* futex: a call of ours goes into the stream; no other begins, and it is not destroyed */
    uint32_t calling;
    bool again;       /* another fence is wanted behind that one */
    unsigned awaited; /* threads that wait for the end of that call: the record stays */
    /* threads that just begin a capture in it: no call of ours begins, and the record stays */
    unsigned beginning;
    unsigned entered;          /* launches under way that are booked already (window mode) */
    int fence_slot;            /* fence slot: index into qg_proc.fences, -1: none */
    uint32_t value;            /* last fence value */
    struct qg_proc *page;      /* where it was written */
    uint64_t open_ns;          /* ns of estimated work since the last fence (window mode) */
    const void *open_function; /* as in qg_ring_item */
    struct qg_ring_item ring[QG_RING];
    uint32_t ring_first, ring_count;
    /* Under the table's lock: next, slotless_next and slotless. */
    struct qg_stream *next;
    struct qg_stream *slotless_next; /* has work but no fence slot */
    bool slotless;
};

/* Under stream->lock: nothing of it is on the card. */
static inline void qg_nothing_open(struct qg_stream *stream)
{
    stream->open_ns = 0;
    stream->ring_count = 0;
}

/* True: the error says that there is no such stream any more; it is not about the context. */
static inline bool qg_is_lost(CUresult result)
{
    return result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}
bool qg_stream_lost(CUstream stream); /* asks the driver */

/* The stream's record; NULL for a stream on a card that was not granted, and for none. ptsz: handle
 * 0 is the per-thread stream. */
struct qg_stream *qg_stream_slow(CUstream stream, bool ptsz);

/* A stream that this thread used lately: one cache line with all that a launch reads. */
struct qg_seen {
    uint64_t key;
    /* qg_generation when it was found; if that has changed, find it again */
    unsigned generation;
    unsigned fast;        /* the same if nothing but counting is to be done, else 0 */
    uint64_t *launches;   /* this thread's counter (valid with fast) */
    const uint32_t *gate; /* the gate word (valid with fast) */
    struct qg_stream *stream;
    CUcontext context; /* of key 0 and 2, else NULL */
    uint32_t skip;     /* launches until the clock is read again */
    uint16_t skip_set; /* value of skip when it was set; the difference has passed since */
    uint16_t stride;
    uint32_t polled;    /* tick of the last reading of the clock, in units of 1024 */
    uint32_t attention; /* bits of the gate word that a launch must not pass */
};
_Static_assert(sizeof(struct qg_seen) == 64, "one cache line");

/* count: Streams that a thread remembers, a cache line each. Evidence: bound. */
#define QG_SEEN 4u

struct qg_thread {
    struct qg_seen seen[QG_SEEN];
    int lane;     /* index into qg_proc.lanes + 1; 0: not asked for yet */
    bool counted; /* the launch was counted by qg_fast() */
    /* window mode: launches that may pass before the next poll; 0: poll at each */
    uint16_t unpolled;
    int waiter; /* waiters.c: slot + 1; 0: none */
} __attribute__((aligned(64)));
extern __thread struct qg_thread qg_thread __attribute__((tls_model("initial-exec")));

/* mark: Added to keys 0 and 2 in qg_seen: no handle of the driver is so large. Evidence: bound. */
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

/* The thread's id. Makes sure that thread_ended() runs at its end. */
uint64_t qg_this_thread(void);

/* The stream's record, and in *at this thread's cache entry for it. */
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

/* True: none of our calls may go into this stream, as it captures, or the driver does not say. */
bool qg_stream_captures_slow(struct qg_stream *stream);
static inline bool qg_stream_captures(struct qg_stream *stream)
{
    return QG_UNLIKELY(__atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE)) &&
           qg_stream_captures_slow(stream);
}

/* Gives the stream a fence slot, if one is free. */
void qg_fence_slot_want(struct qg_stream *stream);

/* Inserts a fence after the work so far. If another thread is inserting one into this stream, that
 * thread inserts a second one behind it. This thread does not wait. */
void qg_fence_insert(struct qg_stream *stream);

/* The same for a stream that another thread works in. While a launch into it is under way none is
 * inserted, since our call would wait with it for a full queue. The launching thread inserts it
 * afterwards. */
void qg_fence_insert_for(struct qg_stream *stream);

/* Before a stream is destroyed, without locks: the end of a call of ours into it. The record was
 * found under qg_table_lock, and one was added to `awaited` there. */
void qg_stream_await(struct qg_stream *stream);
void qg_dead_stream_call_ended(
    struct qg_stream *stream); /* such a call has returned and found the record retired */

/* Around a call that begins a capture, without locks: waits for the end of a call of ours into the
 * stream, and none begins until the driver can say that it captures. NULL: the stream has no
 * record. */
struct qg_stream *qg_capture_begins(CUstream stream, bool ptsz);
void qg_capture_begun(struct qg_stream *stream);
void qg_capture_over(void); /* one that was counted in qg_captures */

/* Before a call that waits for work or asks about it: inserts fences behind unfenced work. */
void qg_observe_stream(CUstream stream, bool ptsz);
void qg_observe_context(CUcontext context); /* NULL: the current one */
/* fences streams that found no free fence slot before */
void qg_observe_slotless(void);
bool qg_any_unfenced(void); /* some stream has unfenced work */

void qg_stream_destroyed(CUstream stream);
/* its streams take no more work, but submitted work goes on */
void qg_streams_green_gone(CUcontext context);

/* Sets, clears or publishes whether a stream has unfenced work. One word of the slot shows it for
 * the whole process. */
void qg_set_unfenced(struct qg_stream *stream);
void qg_clear_unfenced(struct qg_stream *stream);
void qg_publish_unfenced(struct qg_card *card);

/* Estimated unfinished work of one stream; under its lock. */
uint64_t qg_stream_inflight(struct qg_stream *stream);

/* The stream has work now. Without a fence slot it goes onto the list of slotless streams. */
void qg_stream_has_work(struct qg_stream *stream);

/* Asks the driver about a stream whose fences do not advance. True: its work is over, or its
 * context is broken; the record then says so. */
bool qg_stream_over(struct qg_stream *stream);

/* Estimated unfinished work of a card; visits each stream that has some. */
struct qg_inflight {
    uint64_t sum_ns;
    /* the stream with most fences outstanding; NULL: nothing is unfinished */
    struct qg_stream *oldest;
    uint64_t first_ns;   /* estimate of what ends next there */
    const void *first;   /* the function, if that is one launch of it */
    bool unfenced;       /* it has no fence: its end cannot be observed until it has one */
    uint64_t longest_ns; /* the longest estimate of what ends next in each stream */
};
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
