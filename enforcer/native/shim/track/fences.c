/* SPDX-License-Identifier: Apache-2.0
 *
 * A marker is a word in the process's slot that the GPU itself writes when the work before it is
 * done, so anybody who maps the page can tell whether a stream is idle without asking the driver or
 * running our code.
 */
#include "process/green.h"
#include "process/pages.h"
#include "base/message.h"
#include "track/streams.h"
#include "driver/relax.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- unmarked work ---- */

void qg_show_unmarked(struct qg_card *card)
{
    struct qg_pages *pages = qg_pages_of(card);
    if (!pages)
        return;
    uint32_t now;
    do { /* until what is shown is what is true: two threads may cross */
        now = __atomic_load_n(&card->unmarked, __ATOMIC_SEQ_CST) > 0;
        __atomic_store_n(&pages->proc->unmarked, now, __ATOMIC_SEQ_CST);
    } while (now != (uint32_t)(__atomic_load_n(&card->unmarked, __ATOMIC_SEQ_CST) > 0));
}

void qg_set_unmarked(struct qg_stream *stream)
{
    if (__atomic_exchange_n(&stream->unmarked, true, __ATOMIC_SEQ_CST))
        return;
    __atomic_add_fetch(&stream->card->unmarked, 1, __ATOMIC_SEQ_CST);
    qg_show_unmarked(stream->card);
}

void qg_clear_unmarked(struct qg_stream *stream)
{
    if (!__atomic_exchange_n(&stream->unmarked, false, __ATOMIC_SEQ_CST))
        return;
    __atomic_sub_fetch(&stream->card->unmarked, 1, __ATOMIC_SEQ_CST);
    qg_show_unmarked(stream->card);
}

/* ---- markers ---- */

/* A driver that cannot register such memory, unlike one whose context is in error or gone. The job
 * has no page of another kind: the program goes on without fences. */
static void say_refused(CUresult result)
{
    static bool said;
    bool kind = result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_VALUE ||
                result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_OPERATING_SYSTEM ||
                result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_UNKNOWN;
    if (kind && !__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        qg_say("the driver refused to register the memory that this program shares with the "
               "arbiter (CUDA error %d): its share of the card is less exact. Tell the "
               "administrator: 'make gpu PART=probe ONLY=job_page' shows which --job-memory works",
               (int)result);
}

/* The driver's calls for it. 0: it cannot, or the process has too many contexts. */
static CUdeviceptr register_page(struct qg_proc *page)
{
    CUdeviceptr device = 0;
    if (!page)
        return 0;
    CUresult result = QG_REAL(cuMemHostRegister_v2)(
        page, QG_PAGE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    say_refused(result);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        result = QG_REAL(cuMemHostGetDevicePointer_v2)(&device, page, 0);
    return result == CUDA_SUCCESS ? device : 0;
}

/* Makes our slot's page known to the GPU in this context. Rare, so it always guards against
 * captures elsewhere. Without a lock: two threads may do it at once, and the driver tells the
 * second that it is done. */
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
    CUdeviceptr device = current ? register_page(qg_alias_of(pages, context->owner)) : 0;
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

/* A thread without a current context may work in a stream all the same; for us the driver may want
 * one. */
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

/* A marker on its way into its stream, and what was estimated between the last one and this. */
struct marking {
    struct qg_proc *page;
    uint32_t value;
    uint64_t open_ns, open_low_ns;
    const void *function;
};

/* Under stream->lock: that ends with this marker. What came while it was written is still open. */
static void push_ring(struct qg_stream *stream, const struct marking *mark)
{
    if (!mark->open_ns)
        return;
    /* merge into the newest: it ends later, which is the safe side */
    if (stream->ring_count == QG_RING) {
        struct qg_ring_item *last = &stream->ring[(stream->ring_first + QG_RING - 1) % QG_RING];
        last->value = mark->value;
        last->est_ns += mark->open_ns;
        last->low_ns += mark->open_low_ns;
        last->function = NULL;
    } else {
        stream->ring[(stream->ring_first + stream->ring_count++) % QG_RING] =
            (struct qg_ring_item){mark->value, mark->open_ns, mark->open_low_ns, mark->function};
    }
    stream->open_ns -= mark->open_ns;
    stream->open_low_ns -= mark->open_low_ns;
}

/* One call of ours at a time goes into a stream: so the order of markers is that of the calls, and
 * whoever destroys the stream knows when none does. It is made without a lock, since it may take as
 * long as the card. foreign: not into a stream whose own thread is about to submit. False: not now;
 * a marker, if one was wanted, comes behind. */
static bool call_begins(struct qg_stream *stream, bool marks, bool foreign)
{
    pthread_mutex_lock(&stream->lock);
    bool good = !stream->dead && !stream->beginning &&
                !__atomic_load_n(&stream->context->ending, __ATOMIC_RELAXED);
    bool mine =
        good && !stream->calling && !(foreign && stream->entered) && !(marks && stream->marker < 0);
    if (mine) {
        __atomic_store_n(&stream->calling, 1, __ATOMIC_RELAXED);
        stream->again &= !marks; /* what was wanted until now comes with this one */
    } else {
        stream->again |= marks && (stream->calling || stream->entered);
    }
    pthread_mutex_unlock(&stream->lock);
    return mine;
}

/* False: another marker is wanted, and comes from the same thread. */
static bool call_ends(struct qg_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    bool again = stream->again && !stream->dead && !stream->beginning && stream->marker >= 0;
    stream->again = false;
    if (again) {
        pthread_mutex_unlock(&stream->lock);
        return false;
    }
    bool dead = stream->dead;
    if (dead) { /* an index is given back under the table's lock */
        pthread_mutex_unlock(&stream->lock);
        qg_stream_buried(stream);
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
static void prepare(struct qg_stream *stream, struct marking *mark)
{
    /* Until the driver has taken the marker the work before it counts as unmarked, which is
     * believed in for less long: a driver that takes its time over this call must not look like a
     * long kernel. */
    __atomic_add_fetch(&stream->card->unmarked, 1, __ATOMIC_SEQ_CST);
    qg_clear_unmarked(stream);
    pthread_mutex_lock(&stream->lock);
    stream->page = mark->page;
    mark->value = ++stream->value;
    mark->open_ns = stream->open_ns;
    mark->open_low_ns = stream->open_low_ns;
    mark->function = stream->open_function;
    pthread_mutex_unlock(&stream->lock);
}

/* After it. */
static void publish(struct qg_stream *stream, const struct marking *mark, CUresult result)
{
    pthread_mutex_lock(&stream->lock);
    struct qg_marker *marker = &mark->page->markers[stream->marker];
    bool lost = qg_says_lost(result);
    if (lost)
        qg_nothing_open(stream);
    /* it or its context ended meanwhile: nothing will write the word any more */
    if (stream->dead || lost) {
        __atomic_store_n(&marker->submitted, mark->value, __ATOMIC_SEQ_CST);
        __atomic_store_n(&marker->done, mark->value, __ATOMIC_SEQ_CST);
    } else if (result == CUDA_SUCCESS) {
        __atomic_store_n(&marker->submitted, mark->value, __ATOMIC_SEQ_CST);
        __atomic_store_n(&stream->marked_tick, qg_tick(), __ATOMIC_RELAXED);
        push_ring(stream, mark);
    } else { /* take it back, else the stream looks busy for ever */
        stream->value = mark->value - 1;
        qg_set_unmarked(stream);
    }
    pthread_mutex_unlock(&stream->lock);
    __atomic_sub_fetch(&stream->card->unmarked, 1, __ATOMIC_SEQ_CST);
    qg_show_unmarked(stream->card);
}

static void mark_once(struct qg_stream *stream)
{
    struct qg_pages *pages = qg_pages_of(stream->card);
    struct marking mark = {.page = pages->proc};
    CUdeviceptr device = device_page(stream->context, pages);
    if (!device)
        return;
    prepare(stream, &mark);
    /* The index stays this stream's while a call goes into it. */
    struct qg_marker *marker =
        &mark.page->markers[__atomic_load_n(&stream->marker, __ATOMIC_RELAXED)];
    CUdeviceptr word = device + (CUdeviceptr)((char *)&marker->done - (char *)mark.page);
    CUresult result = write_word(stream, word, mark.value);
    /* not supported here, or the context is in error */
    if (result != CUDA_SUCCESS && !qg_says_lost(result))
        refuse(stream->context);
    publish(stream, &mark, result);
}

/* Its handle means another stream on this thread. */
static bool elsewhere(const struct qg_stream *stream)
{
    return stream->key == 2 && stream->thread != qg_this_thread();
}

/* The handles of default streams mean those of the current context: makes it the stream's. False:
 * it cannot be. */
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

/* The call into the stream is ours: a marker, and another one as often as one is wanted meanwhile.
 * Whether the stream captures is asked each time: its thread may have begun to, or have made it
 * part of a capture, since somebody looked last. */
static void mark_on(struct qg_stream *stream)
{
    CUstreamCaptureMode mode;
    bool pushed;
    do {
        if (!enter_context(stream, &pushed))
            continue;
        if (!qg_stream_captures(stream)) {
            bool relaxed = __atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE) && qg_relax(&mode);
            mark_once(stream);
            qg_unrelax(relaxed, &mode);
        }
        leave_context(pushed);
    } while (!call_ends(stream));
}

static void put_marker(struct qg_stream *stream, bool foreign)
{
    if (!qg_pages_of(stream->card) || __atomic_load_n(&stream->dead, __ATOMIC_RELAXED) ||
        elsewhere(stream))
        return;
    qg_want_marker(stream);
    qg_depth++;
    if (call_begins(stream, true, foreign))
        mark_on(stream);
    qg_depth--;
}

void qg_mark(struct qg_stream *stream)
{
    put_marker(stream, false);
}

void qg_mark_for(struct qg_stream *stream)
{
    put_marker(stream, true);
}

void qg_observe_stream(CUstream handle, bool ptsz)
{
    if (!qg_unmarked_anywhere())
        return;
    /* the legacy stream waits for the other streams of its context as well */
    if (!qg_stream_key(handle, ptsz)) {
        qg_observe_context(NULL);
        return;
    }
    struct qg_stream *stream = qg_stream_of(handle, ptsz);
    if (stream && __atomic_load_n(&stream->unmarked, __ATOMIC_RELAXED))
        qg_mark_for(stream);
}

/* ---- window mode ---- */

uint64_t qg_stream_inflight(struct qg_stream *stream)
{
    uint64_t sum = stream->open_ns;
    while (stream->ring_count && stream->page) {
        struct qg_ring_item *first = &stream->ring[stream->ring_first];
        uint32_t done =
            __atomic_load_n(&stream->page->markers[stream->marker].done, __ATOMIC_ACQUIRE);
        if ((int32_t)(done - first->value) < 0)
            break;
        stream->ring_first = (stream->ring_first + 1) % QG_RING;
        stream->ring_count--;
    }
    for (uint32_t i = 0; i < stream->ring_count; i++)
        sum += stream->ring[(stream->ring_first + i) % QG_RING].est_ns;
    return sum;
}

bool qg_stream_reached(struct qg_stream *stream, uint32_t value)
{
    pthread_mutex_lock(&stream->lock);
    bool gone = stream->dead || stream->marker < 0 || !stream->page;
    bool reached = gone || (int32_t)(__atomic_load_n(&stream->page->markers[stream->marker].done,
                                                     __ATOMIC_ACQUIRE) -
                                     value) >= 0;
    pthread_mutex_unlock(&stream->lock);
    return reached;
}

/* The call into the stream is ours, so none begins to capture in it now. A query of the legacy
 * stream may spoil a capture of another one; of the rest a global capture of another thread may
 * begin just before the driver hears us. */
static bool asked_over(struct qg_stream *stream)
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
    if (over && result != CUDA_SUCCESS && !qg_says_lost(result))
        __atomic_store_n(&stream->context->broken, true, __ATOMIC_RELAXED);
    return over;
}

/* No marker tells, and while something captures the driver cannot be asked. Its work has had the
 * time that it was to take, and some more: without this all of it would count as unfinished until
 * that capture ends, and each launch wait for the sum. Not while a call is on its way into the
 * stream: what it brings has had no time yet, and its books are open. */
static void take_for_over(struct qg_stream *stream)
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
        take_for_over(stream);
    if (__atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE) || elsewhere(stream) ||
        !call_begins(stream, false, true))
        return false;
    pthread_mutex_lock(&stream->lock);
    uint64_t open_ns = stream->open_ns;
    pthread_mutex_unlock(&stream->lock);
    bool over = asked_over(stream);
    pthread_mutex_lock(&stream->lock);
    /* else a launch came meanwhile, and was not asked about */
    over = over && stream->open_ns == open_ns;
    if (over)
        qg_nothing_open(stream);
    pthread_mutex_unlock(&stream->lock);
    if (!call_ends(stream))
        mark_on(stream);
    return over;
}
