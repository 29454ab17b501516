/* SPDX-License-Identifier: Apache-2.0
 *
 * A marker is a word in the process's slot that the GPU itself writes when the work before it is done, so anybody
 * who maps the page can tell whether a stream is idle without asking the driver or running our code.
 */
#include "streams.h"

/* ---- unmarked work ---------------------------------------------------------------------------------------- */

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

/* ---- markers ---------------------------------------------------------------------------------------------- */

bool qg_relax(CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return QG_HAVE(cuThreadExchangeStreamCaptureMode) &&
           QG_REAL(cuThreadExchangeStreamCaptureMode)(mode) == CUDA_SUCCESS;
}

void qg_unrelax(bool relaxed, CUstreamCaptureMode *mode)
{
    if (relaxed)
        QG_REAL(cuThreadExchangeStreamCaptureMode)(mode);
}

/* Makes our slot's page known to the GPU in this context, under context->lock. Rare, so it always guards against
 * captures elsewhere. */
static bool attach(struct qg_context *context, struct qg_proc *page)
{
    CUstreamCaptureMode mode;
    CUcontext before = NULL, popped;
    bool relaxed = qg_relax(&mode);
    QG_REAL(cuCtxGetCurrent)(&before);
    bool pushed = before != context->handle && QG_REAL(cuCtxPushCurrent_v2)(context->handle) == CUDA_SUCCESS;
    CUresult result = QG_REAL(cuMemHostRegister_v2)(page, QG_PAGE,
                                                    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        result = QG_REAL(cuMemHostGetDevicePointer_v2)(&context->device_page, page, 0);
    if (pushed)
        QG_REAL(cuCtxPopCurrent_v2)(&popped);
    qg_unrelax(relaxed, &mode);
    context->refused = result != CUDA_SUCCESS;
    context->attached = page;
    return result == CUDA_SUCCESS;
}

/* The page as the GPU sees it in this context; 0: the driver cannot do it. */
static CUdeviceptr device_page(struct qg_context *context, struct qg_proc *page)
{
    pthread_mutex_lock(&context->lock);
    bool good = context->attached == page ? !context->refused : attach(context, page);
    CUdeviceptr device = good ? context->device_page : 0;
    pthread_mutex_unlock(&context->lock);
    return device;
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
        return QG_REAL(cuStreamWriteValue32_v2)(stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT);
    return QG_REAL(cuStreamWriteValue32)(stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

/* A thread without a current context may work in a stream all the same; for us the driver may want one. */
static CUresult write_word(const struct qg_stream *stream, CUdeviceptr address, uint32_t value)
{
    CUcontext popped;
    CUresult result = write_into(stream->handle, address, value);
    if (result != CUDA_ERROR_INVALID_CONTEXT || QG_REAL(cuCtxPushCurrent_v2)(stream->context->handle) != CUDA_SUCCESS)
        return result;
    result = write_into(stream->handle, address, value);
    QG_REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

/* Under stream->lock: what was estimated since the last marker ends with this one. */
static void push_ring(struct qg_stream *stream)
{
    if (!stream->open_ns)
        return;
    if (stream->ring_count == QG_RING) { /* merge into the newest: it ends later, which is the safe side */
        struct qg_ring_item *last = &stream->ring[(stream->ring_first + QG_RING - 1) % QG_RING];
        last->value = stream->value;
        last->est_ns += stream->open_ns;
        last->low_ns += stream->open_low_ns;
        last->function = NULL;
    } else {
        stream->ring[(stream->ring_first + stream->ring_count++) % QG_RING] =
            (struct qg_ring_item){stream->value, stream->open_ns, stream->open_low_ns, stream->open_function};
    }
    stream->open_ns = stream->open_low_ns = 0;
}

void qg_mark(struct qg_stream *stream)
{
    struct qg_pages *pages = qg_pages_of(stream->card);
    struct qg_context *context = stream->context;
    if (!pages || __atomic_load_n(&stream->dead, __ATOMIC_RELAXED))
        return;
    if (stream->key == 2 && stream->thread != qg_this_thread())
        return; /* its handle means another stream on this thread */
    struct qg_proc *page = pages->proc;
    CUstreamCaptureMode mode;
    qg_want_marker(stream);
    qg_depth++;
    bool relaxed = __atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE) && qg_relax(&mode);
    pthread_mutex_lock(&stream->lock);
    CUdeviceptr device = stream->dead || stream->marker < 0 ? 0 : device_page(context, page);
    if (!device)
        goto out;
    stream->page = page;
    struct qg_marker *marker = &page->markers[stream->marker];
    /* Until the driver has taken the marker the work before it counts as unmarked, which is believed in for less long: a
     * driver that takes its time over this call must not look like a long kernel. */
    __atomic_add_fetch(&stream->card->unmarked, 1, __ATOMIC_SEQ_CST);
    qg_clear_unmarked(stream);
    uint32_t value = ++stream->value;
    CUdeviceptr word = device + (CUdeviceptr)((char *)&marker->done - (char *)page);
    if (write_word(stream, word, value) == CUDA_SUCCESS) {
        __atomic_store_n(&marker->submitted, value, __ATOMIC_SEQ_CST);
        __atomic_store_n(&stream->marked_tick, qg_tick(), __ATOMIC_RELAXED);
        push_ring(stream);
    } else {
        /* Not supported here, or the context is in error: take it back, else the stream looks busy for ever. */
        stream->value = value - 1;
        refuse(context);
        qg_set_unmarked(stream);
    }
    __atomic_sub_fetch(&stream->card->unmarked, 1, __ATOMIC_SEQ_CST);
    qg_show_unmarked(stream->card);
out:
    pthread_mutex_unlock(&stream->lock);
    qg_unrelax(relaxed, &mode);
    qg_depth--;
}

bool qg_stream_enter(const struct qg_stream *stream, bool *pushed)
{
    CUcontext current = NULL;
    *pushed = false;
    if (stream->key > 2)
        return true;
    if (QG_REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == stream->context_key)
        return true;
    return *pushed = QG_REAL(cuCtxPushCurrent_v2)(stream->context_key) == CUDA_SUCCESS;
}

void qg_stream_leave(bool pushed)
{
    CUcontext popped;
    if (pushed)
        QG_REAL(cuCtxPopCurrent_v2)(&popped);
}

void qg_observe_stream(CUstream handle, bool ptsz)
{
    if (!qg_unmarked_anywhere())
        return;
    if (!qg_stream_key(handle, ptsz)) { /* the legacy stream waits for the other streams of its context as well */
        qg_observe_context(NULL);
        return;
    }
    struct qg_stream *stream = qg_stream_of(handle, ptsz);
    if (stream && __atomic_load_n(&stream->unmarked, __ATOMIC_RELAXED) && !qg_stream_captures(stream))
        qg_mark(stream);
}

/* ---- window mode ------------------------------------------------------------------------------------------ */

uint64_t qg_stream_inflight(struct qg_stream *stream)
{
    uint64_t sum = stream->open_ns;
    while (stream->ring_count && stream->page) {
        struct qg_ring_item *first = &stream->ring[stream->ring_first];
        uint32_t done = __atomic_load_n(&stream->page->markers[stream->marker].done, __ATOMIC_ACQUIRE);
        if ((int32_t)(done - first->value) < 0)
            break;
        stream->ring_first = (stream->ring_first + 1) % QG_RING;
        stream->ring_count--;
    }
    for (uint32_t i = 0; i < stream->ring_count; i++)
        sum += stream->ring[(stream->ring_first + i) % QG_RING].est_ns;
    return sum;
}

bool qg_stream_over(struct qg_stream *stream)
{
    /* A query of a stream, even of another one than captures, may spoil a capture. */
    if (__atomic_load_n(&qg_captures, __ATOMIC_ACQUIRE) || stream->dead ||
        (stream->key == 2 && stream->thread != qg_this_thread()))
        return false;
    bool pushed;
    if (!qg_stream_enter(stream, &pushed))
        return false;
    CUresult result = QG_REAL(cuStreamQuery)(stream->handle);
    qg_stream_leave(pushed);
    if (result == CUDA_ERROR_NOT_READY)
        return false;
    pthread_mutex_lock(&stream->lock);
    stream->open_ns = stream->open_low_ns = 0;
    stream->ring_count = 0;
    pthread_mutex_unlock(&stream->lock);
    if (result != CUDA_SUCCESS)
        __atomic_store_n(&stream->context->broken, true, __ATOMIC_RELAXED);
    return true;
}
