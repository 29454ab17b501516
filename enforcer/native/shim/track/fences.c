/* SPDX-License-Identifier: Apache-2.0
 *
 * A fence is a word in the process's slot. The GPU writes it when the work before it is done. So
 * every process that maps the page can see whether a stream is idle. It needs neither the driver
 * nor our code for that.
 */
#include "process/green.h"
#include "process/pages.h"
#include "base/message.h"
#include "track/streams.h"
#include "driver/relax.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- unfenced work ---- */

void qg_publish_unfenced(struct qg_card *card)
{
    struct qg_pages *pages = qg_pages_of(card);
    if (!pages)
        return;
    uint32_t now;
    do { /* until the published word is true: two threads may overtake each other */
        now = __atomic_load_n(&card->unfenced, __ATOMIC_SEQ_CST) > 0;
        __atomic_store_n(&pages->proc->unfenced, now, __ATOMIC_SEQ_CST);
    } while (now != (uint32_t)(__atomic_load_n(&card->unfenced, __ATOMIC_SEQ_CST) > 0));
}

void qg_set_unfenced(struct qg_stream *stream)
{
    if (__atomic_exchange_n(&stream->unfenced, true, __ATOMIC_SEQ_CST))
        return;
    __atomic_add_fetch(&stream->card->unfenced, 1, __ATOMIC_SEQ_CST);
    qg_publish_unfenced(stream->card);
}

void qg_clear_unfenced(struct qg_stream *stream)
{
    if (!__atomic_exchange_n(&stream->unfenced, false, __ATOMIC_SEQ_CST))
        return;
    __atomic_sub_fetch(&stream->card->unfenced, 1, __ATOMIC_SEQ_CST);
    qg_publish_unfenced(stream->card);
}

/* ---- fences ---- */

/* The driver cannot register such memory; a context in error or gone is another case. Then the
 * program goes on without fences, and gets a message once. */
static void report_refused(CUresult result)
{
    static bool reported;
    bool kind = result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_VALUE ||
                result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_OPERATING_SYSTEM ||
                result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_UNKNOWN;
    if (kind && !__atomic_exchange_n(&reported, true, __ATOMIC_RELAXED))
        qg_message("the driver refused to register the memory that this program shares with the "
                   "arbiter (CUDA error %d): its share of the card is less exact. Tell the "
                   "administrator: 'probe/job_page' shows which --job-memory works",
                   (int)result);
}

/* Registers the page with the driver. 0: it cannot, or the process has too many contexts. */
static CUdeviceptr register_page(struct qg_proc *page)
{
    CUdeviceptr device = 0;
    if (!page)
        return 0;
    CUresult result = QG_REAL(cuMemHostRegister_v2)(
        page, QG_PAGE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    report_refused(result);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        result = QG_REAL(cuMemHostGetDevicePointer_v2)(&device, page, 0);
    return result == CUDA_SUCCESS ? device : 0;
}

/* Registers our slot's page with the GPU in this context. This is rare, so it always guards against
 * captures elsewhere. It takes no lock: if two threads do it at once, the driver answers the second
 * that it is done. */
static CUdeviceptr attach(struct qg_context *context, struct qg_pages *pages, CUcontext handle,
                          unsigned ends)
{
    struct qg_proc *page = pages->proc;
    CUstreamCaptureMode mode;
    CUcontext before = NULL, popped;
    bool relaxed = qg_relax(&mode);
    QG_REAL(cuCtxGetCurrent)(&before);
    bool pushed = before != handle && QG_REAL(cuCtxPushCurrent_v2)(handle) == CUDA_SUCCESS;
    /* else it would be registered with another one's memory */
    bool current = pushed || before == handle;
    CUdeviceptr device = current ? register_page(qg_slot_mapping_of(pages, context->owner)) : 0;
    if (pushed)
        QG_REAL(cuCtxPopCurrent_v2)(&popped);
    qg_unrelax(relaxed, &mode);
    pthread_mutex_lock(&context->lock);
    if (context->ends == ends && (context->attached != page || device)) {
        context->refused = !device;
        context->attached = page;
        context->device_page = device;
    }
    pthread_mutex_unlock(&context->lock);
    return device;
}

/* The page as the GPU sees it in this context; 0: the driver cannot do it. */
static CUdeviceptr device_page(struct qg_context *context, struct qg_pages *pages)
{
    pthread_mutex_lock(&context->lock);
    CUcontext handle = context->handle;
    unsigned ends = context->ends;
    bool known = context->attached == pages->proc;
    CUdeviceptr device = known && !context->refused ? context->device_page : 0;
    pthread_mutex_unlock(&context->lock);
    return known || !handle ? device : attach(context, pages, handle, ends);
}

static void refuse(struct qg_context *context)
{
    pthread_mutex_lock(&context->lock);
    context->refused = true;
    pthread_mutex_unlock(&context->lock);
}

static CUresult write_into(CUstream stream, CUdeviceptr address, uint32_t value)
{
    if (QG_HAVE(cuStreamWriteValue32_v2))
        return QG_REAL(cuStreamWriteValue32_v2)(stream, address, value,
                                                CU_STREAM_WRITE_VALUE_DEFAULT);
    return QG_REAL(cuStreamWriteValue32)(stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

/* A thread may use a stream without a current context. For our call the driver may want one. */
static CUresult write_word(const struct qg_stream *stream, CUdeviceptr address, uint32_t value)
{
    CUcontext popped;
    CUresult result = write_into(stream->handle, address, value);
    if (result != CUDA_ERROR_INVALID_CONTEXT ||
        QG_REAL(cuCtxPushCurrent_v2)(stream->context->handle) != CUDA_SUCCESS)
        return result;
    result = write_into(stream->handle, address, value);
    QG_REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

/* A fence that is being inserted, and the estimated work between it and the fence before. */
struct pending_fence {
    struct qg_proc *page;
    uint32_t value;
    uint64_t open_ns;
    const void *function;
};

/* Under stream->lock: the open work ends with this fence. Work submitted while it was written stays
 * open. */
static void push_pending(struct qg_stream *stream, const struct pending_fence *fence)
{
    if (!fence->open_ns)
        return;
    /* merge into the newest: it ends later, which errs on the safe side */
    if (stream->ring_count == QG_RING) {
        struct qg_ring_item *last = &stream->ring[(stream->ring_first + QG_RING - 1) % QG_RING];
        last->value = fence->value;
        last->est_ns += fence->open_ns;
        last->function = NULL;
    } else {
        stream->ring[(stream->ring_first + stream->ring_count++) % QG_RING] =
            (struct qg_ring_item){fence->value, fence->open_ns, fence->function};
    }
    stream->open_ns -= fence->open_ns;
}

/* Claims the stream for one call of ours. One call at a time keeps the fences in order, and the
 * thread that destroys the stream knows when none is left. The call is made without a lock, since
 * it may take as long as the card's work. foreign: not while the stream's own thread is submitting.
 * False: not now; if a fence was wanted, the current caller inserts it afterwards. */
static bool call_begins(struct qg_stream *stream, bool inserts, bool foreign)
{
    pthread_mutex_lock(&stream->lock);
    bool good = !stream->dead && !stream->beginning &&
                !__atomic_load_n(&stream->context->ending, __ATOMIC_RELAXED);
    bool mine = good && !stream->calling && !(foreign && stream->entered) &&
                !(inserts && stream->fence_slot < 0);
    if (mine) {
        __atomic_store_n(&stream->calling, 1, __ATOMIC_RELAXED);
        stream->again &= !inserts; /* what was wanted until now comes with this one */
    } else {
        stream->again |= inserts && (stream->calling || stream->entered);
    }
    pthread_mutex_unlock(&stream->lock);
    return mine;
}

/* Ends the claim. False: another fence is wanted, and the same thread inserts it. */
static bool call_ends(struct qg_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    bool again = stream->again && !stream->dead && !stream->beginning && stream->fence_slot >= 0;
    stream->again = false;
    if (again) {
        pthread_mutex_unlock(&stream->lock);
        return false;
    }
    bool dead = stream->dead;
    if (dead) { /* a fence slot is released under the table's lock */
        pthread_mutex_unlock(&stream->lock);
        qg_dead_stream_call_ended(stream);
        pthread_mutex_lock(&stream->lock);
    }
    __atomic_store_n(&stream->calling, 0, __ATOMIC_RELAXED);
    bool awaited = stream->awaited;
    pthread_mutex_unlock(&stream->lock);
    if (awaited)
        syscall(SYS_futex, &stream->calling, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    return true;
}

void qg_stream_await(struct qg_stream *stream)
{
    while (__atomic_load_n(&stream->calling, __ATOMIC_RELAXED))
        syscall(SYS_futex, &stream->calling, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    pthread_mutex_lock(&stream->lock);
    stream->awaited--;
    pthread_mutex_unlock(&stream->lock);
}

/* Before the call. */
static void prepare(struct qg_stream *stream, struct pending_fence *fence)
{
    /* Until the driver has taken the fence, the work before it counts as unfenced. Unfenced work is
     * believed for a shorter time. So a slow driver call does not look like a long kernel. */
    __atomic_add_fetch(&stream->card->unfenced, 1, __ATOMIC_SEQ_CST);
    qg_clear_unfenced(stream);
    pthread_mutex_lock(&stream->lock);
    stream->page = fence->page;
    fence->value = ++stream->value;
    fence->open_ns = stream->open_ns;
    fence->function = stream->open_function;
    pthread_mutex_unlock(&stream->lock);
}

/* After it. */
static void publish(struct qg_stream *stream, const struct pending_fence *fence, CUresult result)
{
    pthread_mutex_lock(&stream->lock);
    struct qg_fence *slot = &fence->page->fences[stream->fence_slot];
    bool lost = qg_is_lost(result);
    if (lost)
        qg_nothing_open(stream);
    /* it or its context ended meanwhile: nothing will write the word any more */
    if (stream->dead || lost) {
        __atomic_store_n(&slot->submitted, fence->value, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->done, fence->value, __ATOMIC_SEQ_CST);
    } else if (result == CUDA_SUCCESS) {
        __atomic_store_n(&slot->submitted, fence->value, __ATOMIC_SEQ_CST);
        __atomic_store_n(&stream->fenced_tick, qg_tick(), __ATOMIC_RELAXED);
        push_pending(stream, fence);
    } else { /* withdraw it, or the stream would look busy for ever */
        stream->value = fence->value - 1;
        qg_set_unfenced(stream);
    }
    pthread_mutex_unlock(&stream->lock);
    __atomic_sub_fetch(&stream->card->unfenced, 1, __ATOMIC_SEQ_CST);
    qg_publish_unfenced(stream->card);
}

static void insert_once(struct qg_stream *stream)
{
    struct qg_pages *pages = qg_pages_of(stream->card);
    struct pending_fence fence = {.page = pages->proc};
    CUdeviceptr device = device_page(stream->context, pages);
    if (!device)
        return;
    prepare(stream, &fence);
    /* The fence slot stays this stream's while a call goes into it. */
    struct qg_fence *slot =
        &fence.page->fences[__atomic_load_n(&stream->fence_slot, __ATOMIC_RELAXED)];
    CUdeviceptr word = device + (CUdeviceptr)((char *)&slot->done - (char *)fence.page);
    CUresult result = write_word(stream, word, fence.value);
    /* not supported here, or the context is in error */
    if (result != CUDA_SUCCESS && !qg_is_lost(result))
        refuse(stream->context);
    publish(stream, &fence, result);
}

/* Its handle means another stream on this thread. */
static bool elsewhere(const struct qg_stream *stream)
{
    return stream->key == 2 && stream->thread != qg_this_thread();
}

/* A default stream's handle means that of the current context: makes the stream's context current.
 * False: impossible. */
static bool enter_context(const struct qg_stream *stream, bool *pushed)
{
    CUcontext current = NULL;
    *pushed = false;
    if (stream->key > 2)
        return true;
    if (QG_REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == stream->context_key)
        return true;
    return *pushed = QG_REAL(cuCtxPushCurrent_v2)(stream->context_key) == CUDA_SUCCESS;
}

static void leave_context(bool pushed)
{
    CUcontext popped;
    if (pushed)
        QG_REAL(cuCtxPopCurrent_v2)(&popped);
}

/* The stream is claimed. Inserts a fence, and repeats it while another one is wanted. Each time it
 * asks whether the stream captures. Its thread may have begun a capture since the last answer. */
static void insert_wanted(struct qg_stream *stream)
{
    CUstreamCaptureMode mode;
    bool pushed;
    do {
        if (!enter_context(stream, &pushed))
            continue;
        if (!qg_stream_captures(stream)) {
            bool relaxed = __atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE) && qg_relax(&mode);
            insert_once(stream);
            qg_unrelax(relaxed, &mode);
        }
        leave_context(pushed);
    } while (!call_ends(stream));
}

static void insert_fence(struct qg_stream *stream, bool foreign)
{
    if (!qg_pages_of(stream->card) || __atomic_load_n(&stream->dead, __ATOMIC_RELAXED) ||
        elsewhere(stream))
        return;
    qg_fence_slot_want(stream);
    qg_depth++;
    if (call_begins(stream, true, foreign))
        insert_wanted(stream);
    qg_depth--;
}

void qg_fence_insert(struct qg_stream *stream)
{
    insert_fence(stream, false);
}

void qg_fence_insert_for(struct qg_stream *stream)
{
    insert_fence(stream, true);
}

void qg_observe_stream(CUstream handle, bool ptsz)
{
    if (!qg_any_unfenced())
        return;
    /* the legacy stream waits for the other streams of its context as well */
    if (!qg_stream_key(handle, ptsz)) {
        qg_observe_context(NULL);
        return;
    }
    struct qg_stream *stream = qg_stream_of(handle, ptsz);
    if (stream && __atomic_load_n(&stream->unfenced, __ATOMIC_RELAXED))
        qg_fence_insert_for(stream);
}

/* ---- window mode ---- */

uint64_t qg_stream_inflight(struct qg_stream *stream)
{
    uint64_t sum = stream->open_ns;
    while (stream->ring_count && stream->page) {
        struct qg_ring_item *first = &stream->ring[stream->ring_first];
        uint32_t done =
            __atomic_load_n(&stream->page->fences[stream->fence_slot].done, __ATOMIC_ACQUIRE);
        if ((int32_t)(done - first->value) < 0)
            break;
        stream->ring_first = (stream->ring_first + 1) % QG_RING;
        stream->ring_count--;
    }
    for (uint32_t i = 0; i < stream->ring_count; i++)
        sum += stream->ring[(stream->ring_first + i) % QG_RING].est_ns;
    return sum;
}

/* The stream is claimed, so no capture begins in it now. A query of the legacy stream may spoil a
 * capture in another stream. For other streams, a global capture of another thread may begin just
 * before the driver gets the query. */
static bool query_over(struct qg_stream *stream)
{
    CUstreamCaptureMode mode;
    bool pushed;
    if (__atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE) || !enter_context(stream, &pushed))
        return false;
    bool relaxed = qg_relax(&mode);
    CUresult result = QG_REAL(cuStreamQuery)(stream->handle);
    qg_unrelax(relaxed, &mode);
    leave_context(pushed);
    bool over = result != CUDA_ERROR_NOT_READY && (result < CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
                                                   result > CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    if (over && result != CUDA_SUCCESS && !qg_is_lost(result))
        __atomic_store_n(&stream->context->broken, true, __ATOMIC_RELAXED);
    return over;
}

/* There is no fence, and during a capture the driver cannot be asked. The work has had its
 * estimated time and more, so it is assumed to be over. Otherwise all of it would count as
 * unfinished until the capture ends, and each launch would wait for the sum. Not while a call into
 * the stream is under way: its work has had no time yet. */
static void assume_over(struct qg_stream *stream)
{
    pthread_mutex_lock(&stream->context->lock);
    bool refused = stream->context->refused;
    pthread_mutex_unlock(&stream->context->lock);
    if (!refused)
        return;
    pthread_mutex_lock(&stream->lock);
    if (!stream->calling && !stream->entered && !stream->beginning && !stream->ring_count)
        qg_nothing_open(stream);
    pthread_mutex_unlock(&stream->lock);
}

bool qg_stream_over(struct qg_stream *stream)
{
    if (__atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE))
        assume_over(stream);
    if (__atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE) || elsewhere(stream) ||
        !call_begins(stream, false, true))
        return false;
    pthread_mutex_lock(&stream->lock);
    uint64_t open_ns = stream->open_ns;
    pthread_mutex_unlock(&stream->lock);
    bool over = query_over(stream);
    pthread_mutex_lock(&stream->lock);
    /* otherwise a launch came meanwhile, and the query did not cover it */
    over = over && stream->open_ns == open_ns;
    if (over)
        qg_nothing_open(stream);
    pthread_mutex_unlock(&stream->lock);
    if (!call_ends(stream))
        insert_wanted(stream);
    return over;
}
