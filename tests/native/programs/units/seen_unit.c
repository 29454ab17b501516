/* SPDX-License-Identifier: Apache-2.0
 *
 * What a thread remembers of a stream. One that it first used while another thread captured has its
 * fast path when no capture is left, and not before. A launch that leaves the fast path at a closed
 * gate stands for one launch at least, also if the stream is looked up anew in between.
 */
#include <stdio.h>

#include "gate/gate.h"
#include "hooks/context/contexts.h"
#include "process/pages.h"
#include "track/table.h"
#include "track/waiters.h"
#include "track/wants.h"

int qg_captures;
bool qg_libraries_large;
unsigned qg_generation = 1;

#define STREAM  ((CUstream)0x5000)
#define CONTEXT ((CUcontext)0x30)

void *qg_real[QG_NSYMBOLS];
struct qg_card qg_cards[QG_MAX_CARDS];
unsigned qg_greens;
__thread int qg_depth;
struct qg_stream *qg_fence_slot_owner[QG_MAX_CARDS][QG_FENCES];

int qg_lane_mine(void)
{
    return 1;
}
void qg_pages_context_gone(CUcontext owner)
{
    (void)owner;
}
void qg_slot_mappings_retire(struct qg_pages *pages)
{
    (void)pages;
}
void qg_lane_release(void)
{
}
void qg_waiter_release(void)
{
}
void qg_want_release(void)
{
}
void qg_fence_slots_after_fork(void)
{
}
void qg_slotless_remove(struct qg_stream *stream)
{
    (void)stream;
}
void qg_fence_slot_release(struct qg_stream *stream)
{
    (void)stream;
}
void qg_set_unfenced(struct qg_stream *stream)
{
    (void)stream;
}
void qg_clear_unfenced(struct qg_stream *stream)
{
    (void)stream;
}
void qg_publish_unfenced(struct qg_card *card)
{
    (void)card;
}
void qg_stream_await(struct qg_stream *stream)
{
    (void)stream;
}
CUcontext qg_green_owner(CUcontext context)
{
    return context;
}
struct qg_card *qg_card_current(void)
{
    return &qg_cards[0];
}
bool qg_have(unsigned symbol)
{
    return (void)symbol, false;
}

static uint32_t times; /* of the last launch that saw the gate */
bool qg_governed = true;

void qg_gate_attention(struct qg_stream *stream, const struct qg_work *work)
{
    (void)stream;
    times = work->times;
}
void qg_stream_has_work(struct qg_stream *stream)
{
    (void)stream;
}
void qg_window_leave(struct qg_stream *stream, CUresult result)
{
    (void)stream, (void)result;
}
void qg_leave_slow(struct qg_seen *seen, struct qg_stream *stream)
{
    (void)seen, (void)stream;
}

static CUresult current_context(CUcontext *context)
{
    *context = CONTEXT;
    return CUDA_SUCCESS;
}

static bool is_fast(void)
{
    return qg_stream_of(STREAM, false) && qg_seen_of((uintptr_t)STREAM)->fast == qg_generation;
}

#define CHECK(what)                                                                                \
    if (!(what)) {                                                                                 \
        printf("line %d: %s\n", __LINE__, #what);                                                  \
        return 1;                                                                                  \
    }

int main(void)
{
    static struct qg_job_page job;
    static struct qg_gate_page gate;
    static struct qg_pages pages = {
        .gate = &gate, .job = &job, .proc = &job.procs[0], .lanes = true};
    qg_real[QG_SYM_cuCtxGetCurrent] = (void *)current_context;
    qg_cards[0].pages = &pages;
    qg_captures = 2;
    CHECK(!is_fast());
    qg_capture_over();
    CHECK(qg_captures == 1 && !is_fast());
    qg_capture_over();
    CHECK(qg_captures == 0 && is_fast());
    unsigned before = qg_generation;
    qg_capture_over(); /* of none: nobody has to look again */
    CHECK(qg_captures == 0 && qg_generation == before && is_fast());
    struct qg_seen *seen = qg_seen_of((uintptr_t)STREAM);
    seen->stream->unfenced = 1;
    for (int anew = 0; anew < 2; anew++) {
        seen->skip = 2;
        seen->skip_set = 2;
        gate.flags = 0;
        CHECK(qg_fast(STREAM));
        gate.flags = QG_GATE_CLOSED;
        CHECK(!qg_fast(STREAM));
        qg_generation += (unsigned)anew; /* another thread: new pages, or a stream ended */
        CHECK(qg_enter(STREAM, false, &job, 0) == seen->stream);
        qg_depth = 0;
        CHECK(times == (anew ? 1 : 2)); /* two at most were launched since the last one */
    }
    return 0;
}
