/* SPDX-License-Identifier: Apache-2.0
 *
 * Window mode: the work that the GPU has not finished is bounded in time, so that a gate that closes now means a
 * free card soon. Durations are learned per function from event pairs; how far the GPU got is read from markers.
 */
#include "window.h"

#include <string.h>
#include <sys/prctl.h>

#include "estimate.h"

#define PAIRS 16u
#define COPY_BYTES_PER_US 12000u  /* a cautious host link; only orders of magnitude matter */
#define COPY_SETUP_NS 5000u
#define STUCK_NS 2000000u         /* no progress for so long at a full window: let it through */
#define SPIN_NS 5000u             /* looks at the word before it sleeps */
#define NAP_NS 20000u

struct pair {
    CUevent start, end;
    CUcontext context; /* NULL: not created */
    const void *function;
    struct qg_pages *pages; /* and the gate's count of changes, when the start was recorded */
    uint64_t changes;
    uint64_t gap_ns; /* at the start: when; at the end: between recording the start and having launched */
    enum { PAIR_FREE, PAIR_STARTED, PAIR_PENDING } state;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct qg_functions functions;
static struct pair pairs[PAIRS];
__thread bool qg_window_open __attribute__((tls_model("initial-exec")));
static __thread struct pair *sampling __attribute__((tls_model("initial-exec")));

void qg_window_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(&functions, 0, sizeof(functions));
    memset(pairs, 0, sizeof(pairs));
    qg_window_open = false;
    sampling = NULL;
}

void qg_window_context_gone(CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < PAIRS; i++)
        if (pairs[i].context == context)
            memset(&pairs[i], 0, sizeof(pairs[i])); /* its events died with the context */
    pthread_mutex_unlock(&lock);
}

/* A gate that closed meanwhile means that others were on the card in turns with us: such a sample says nothing. */
static bool undisturbed(const struct pair *pair)
{
    return pair->changes == __atomic_load_n(&pair->pages->gate->changes, __ATOMIC_RELAXED);
}

/* Under lock: learns from every pair whose end was reached. */
static void harvest(void)
{
    float ms;
    CUstreamCaptureMode mode;
    bool relaxed = __atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE) && qg_relax(&mode);
    for (unsigned i = 0; i < PAIRS; i++) {
        struct pair *pair = &pairs[i];
        if (pair->state != PAIR_PENDING)
            continue;
        CUresult result = QG_REAL(cuEventQuery)(pair->end);
        if (result == CUDA_ERROR_NOT_READY)
            continue;
        if (result == CUDA_SUCCESS && QG_REAL(cuEventElapsedTime)(&ms, pair->start, pair->end) == CUDA_SUCCESS &&
            ms >= 0 && undisturbed(pair))
            qg_function_learn(&functions, pair->function, (uint64_t)(ms * 1e6f), pair->gap_ns);
        pair->state = PAIR_FREE;
    }
    qg_unrelax(relaxed, &mode);
}

/* Under lock: a free pair of this context, with the start recorded; NULL: sample some other time. */
static struct pair *start_sample(struct qg_stream *stream, struct qg_pages *pages, const void *function)
{
    struct pair *pair = NULL;
    for (unsigned i = 0; i < PAIRS && !pair; i++)
        if (pairs[i].state == PAIR_FREE && pairs[i].context == stream->context->handle)
            pair = &pairs[i];
    for (unsigned i = 0; i < PAIRS && !pair; i++)
        if (!pairs[i].context) {
            if (QG_REAL(cuEventCreate)(&pairs[i].start, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
                return NULL;
            if (QG_REAL(cuEventCreate)(&pairs[i].end, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
                QG_REAL(cuEventDestroy_v2)(pairs[i].start);
                return NULL;
            }
            pairs[i].context = stream->context->handle;
            pair = &pairs[i];
        }
    if (!pair)
        return NULL;
    pair->gap_ns = qg_now_ns();
    if (QG_REAL(cuEventRecord)(pair->start, stream->handle) != CUDA_SUCCESS)
        return NULL;
    pair->pages = pages;
    pair->changes = __atomic_load_n(&pages->gate->changes, __ATOMIC_RELAXED);
    pair->function = function;
    pair->state = PAIR_STARTED;
    return pair;
}

/* The usual timer slack of 50 us would more than double the nap; the program's own setting is put back. */
static void nap(uint64_t waited_ns)
{
    struct timespec wait = {0, NAP_NS};
    if (waited_ns <= SPIN_NS)
        return;
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    nanosleep(&wait, NULL);
    if (slack > 0)
        prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
}

/* Booked under lock, so that two threads cannot both take the last room. */
static void book(struct qg_stream *stream, struct qg_pages *pages, const struct qg_work *work, uint64_t estimate,
                 uint64_t inflight)
{
    pthread_mutex_lock(&stream->lock);
    stream->open_ns += estimate;
    pthread_mutex_unlock(&stream->lock);
    __atomic_store_n(&pages->proc->inflight_us, (inflight + estimate) / 1000, __ATOMIC_RELAXED);
    qg_window_open = true;
    sampling = NULL;
    if (work->function && qg_function_launched(qg_function_of(&functions, work->function))) {
        harvest();
        sampling = start_sample(stream, pages, work->function);
    }
}

static uint64_t estimate_of(const struct qg_work *work, uint64_t window_ns)
{
    if (!work->function)
        return COPY_SETUP_NS + work->bytes * 1000u / COPY_BYTES_PER_US;
    return qg_function_estimate(qg_function_of(&functions, work->function), window_ns);
}

bool qg_window_enter(struct qg_stream *stream, struct qg_pages *pages, const struct qg_work *work)
{
    uint64_t window_ns = (uint64_t)__atomic_load_n(&pages->gate->window_us, __ATOMIC_RELAXED) * 1000u;
    uint64_t start = qg_now_ns(), moved = start, last = UINT64_MAX;
    qg_want_marker(stream);
    for (;;) {
        struct qg_stream *oldest;
        pthread_mutex_lock(&lock);
        uint64_t inflight = qg_inflight_ns(stream->card, &oldest), now = qg_now_ns();
        uint64_t estimate = estimate_of(work, window_ns);
        if (inflight < last)
            moved = now; /* the GPU finished something */
        last = inflight;
        bool stuck = now - moved > STUCK_NS;
        if (!inflight || inflight + estimate <= window_ns || stuck) {
            if (stuck)
                __atomic_fetch_add(&pages->proc->window_bypass, 1, __ATOMIC_RELAXED);
            book(stream, pages, work, estimate, inflight);
            pthread_mutex_unlock(&lock);
            return true;
        }
        if (now - moved > SPIN_NS)
            harvest(); /* a better estimate may make it fit */
        pthread_mutex_unlock(&lock);
        if (oldest && !oldest->ring_count && !qg_stream_captures(oldest))
            qg_mark(oldest); /* nothing stands after its work yet: without a marker its end is invisible */
        nap(now - start);
        if (qg_pages_of(stream->card) != pages ||
            (__atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST) & (QG_GATE_CLOSED | QG_GATE_WINDOW)) !=
                QG_GATE_WINDOW)
            return false;
    }
}

void qg_window_leave(struct qg_stream *stream)
{
    struct qg_pages *pages = qg_pages_of(stream->card);
    qg_window_open = false;
    qg_depth++;
    if (sampling) {
        sampling->gap_ns = qg_now_ns() - sampling->gap_ns;
        bool recorded = QG_REAL(cuEventRecord)(sampling->end, stream->handle) == CUDA_SUCCESS;
        pthread_mutex_lock(&lock);
        sampling->state = recorded ? PAIR_PENDING : PAIR_FREE;
        pthread_mutex_unlock(&lock);
        sampling = NULL;
    }
    uint64_t quarter_ns = (uint64_t)__atomic_load_n(&pages->gate->window_us, __ATOMIC_RELAXED) * 250u;
    if (stream->open_ns >= quarter_ns)
        qg_mark(stream);
    qg_depth--;
}
