/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of calls that wait for work or ask about it, of captures, and of the ends of streams. A
 * fence goes in before such a call, so that the arbiter can observe the end of the work. No call of
 * ours may go into a capture.
 */
#include "gate/gate.h"
#include "hooks/context/contexts.h"
#include "memory/pools.h"
#include "track/streams.h"

static bool tracked(void)
{
    return qg_governed && !qg_depth;
}

/* A stream without a fence slot could not be fenced while all slots were in use. By now one may be
 * free. */
static CUresult call_returned(CUresult result, bool slept)
{
    if (result == CUDA_SUCCESS && tracked()) {
        qg_observe_slotless();
        qg_pools_poll();
        qg_report_idle(slept);
    }
    return result;
}

#define FENCES(name, before, parameters, arguments)                                                \
    CUresult name parameters                                                                       \
    {                                                                                              \
        if (tracked())                                                                             \
            before;                                                                                \
        return QG_REAL(name) arguments;                                                            \
    }
#define ASKS(name, before, parameters, arguments, slept)                                           \
    CUresult name parameters                                                                       \
    {                                                                                              \
        if (tracked())                                                                             \
            before;                                                                                \
        return call_returned(QG_REAL(name) arguments, slept);                                      \
    }
#define WAITS(name, before, parameters, arguments) ASKS(name, before, parameters, arguments, true)
#define OF_STREAM                                  qg_observe_stream(s, false)
#define OF_THREADS_STREAM                          qg_observe_stream(s, true)

WAITS(cuStreamSynchronize, OF_STREAM, (CUstream s), (s))
WAITS(cuStreamSynchronize_ptsz, OF_THREADS_STREAM, (CUstream s), (s))
ASKS(cuStreamQuery, OF_STREAM, (CUstream s), (s), false)
ASKS(cuStreamQuery_ptsz, OF_THREADS_STREAM, (CUstream s), (s), false)
WAITS(cuCtxSynchronize, qg_observe_context(NULL), (void), ())
WAITS(cuCtxSynchronize_v2, qg_observe_context(context), (CUcontext context), (context))
WAITS(cuEventSynchronize, qg_observe_context(NULL), (CUevent e), (e))
ASKS(cuEventQuery, qg_observe_context(NULL), (CUevent e), (e), false)
FENCES(cuEventRecord, OF_STREAM, (CUevent e, CUstream s), (e, s))
FENCES(cuEventRecord_ptsz, OF_THREADS_STREAM, (CUevent e, CUstream s), (e, s))
FENCES(cuEventRecordWithFlags, OF_STREAM, (CUevent e, CUstream s, unsigned int flags),
       (e, s, flags))
FENCES(cuEventRecordWithFlags_ptsz, OF_THREADS_STREAM, (CUevent e, CUstream s, unsigned int flags),
       (e, s, flags))
FENCES(cuCtxRecordEvent, qg_observe_context(context), (CUcontext context, CUevent e), (context, e))
FENCES(cuGreenCtxRecordEvent, qg_observe_context(qg_green_context(context)),
       (CUgreenCtx context, CUevent e), (context, e))
/* These calls do not ask about work, but the whole context may block behind them: see order.c. */
FENCES(cuCtxWaitEvent, qg_observe_context(context), (CUcontext context, CUevent e), (context, e))
FENCES(cuGreenCtxWaitEvent, qg_observe_context(qg_green_context(context)),
       (CUgreenCtx context, CUevent e), (context, e))

/* ---- captures ---- */

/* A stream that ends while it captures takes its capture with it: stream_ends.c. */
static void capture_began(CUresult result, CUstream s, bool ptsz, struct qg_stream *known)
{
    struct qg_stream *stream = result == CUDA_SUCCESS && tracked() ? qg_stream_of(s, ptsz) : NULL;
    /* If the record shows a capture already, its end was missed. */
    if (result != CUDA_SUCCESS ||
        (stream && __atomic_exchange_n(&stream->began, true, __ATOMIC_RELAXED)))
        qg_capture_over();
    if (known)
        qg_capture_begun(known);
}

/* Earlier work gets its fence before the capture begins, since none can be inserted until the
 * capture ends. */
#define BEGINS(name, ptsz, parameters, arguments)                                                  \
    CUresult name parameters                                                                       \
    {                                                                                              \
        if (tracked())                                                                             \
            qg_observe_stream(s, ptsz);                                                            \
        /* Before the call: another thread must not miss it. */                                    \
        __atomic_add_fetch(&qg_captures, 1, __ATOMIC_SEQ_CST);                                     \
        __atomic_add_fetch(&qg_generation, 1, __ATOMIC_SEQ_CST);                                   \
        struct qg_stream *known = tracked() ? qg_capture_begins(s, ptsz) : NULL;                   \
        CUresult result = QG_REAL(name) arguments;                                                 \
        capture_began(result, s, ptsz, known);                                                     \
        return result;                                                                             \
    }

/* True: the stream is part of a capture, even of an invalid one. */
static bool captures(CUstream s, bool ptsz)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    s = s || !ptsz ? s : CU_STREAM_PER_THREAD;
    return __atomic_load_n(&qg_captures, __ATOMIC_RELAXED) &&
           QG_REAL(cuStreamIsCapturing)(s, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The call ends the capture, whatever its result (invalidated, not joined). Only with a wrong
 * stream or thread does the capture go on. */
static void capture_ended(CUresult result, CUstream s, bool ptsz, bool captured)
{
    if (result != CUDA_SUCCESS && (!captured || captures(s, ptsz)))
        return;
    struct qg_stream *stream = tracked() ? qg_stream_of(s, ptsz) : NULL;
    if (!stream || __atomic_exchange_n(&stream->began, false, __ATOMIC_RELAXED))
        qg_capture_over();
}

#define ENDS(name, ptsz, parameters, arguments)                                                    \
    CUresult name parameters                                                                       \
    {                                                                                              \
        bool captured = captures(s, ptsz);                                                         \
        CUresult result = QG_REAL(name) arguments;                                                 \
        capture_ended(result, s, ptsz, captured);                                                  \
        return result;                                                                             \
    }

#define INTO_GRAPH                                                                                 \
    (CUstream s, CUgraph g, const CUgraphNode *d, const CUgraphEdgeData *e, size_t n,              \
     CUstreamCaptureMode mode)
#define AGAIN                                                                                      \
    (CUstream s, CUstreamCaptureMode mode, CUgraph g, CUgraphRecaptureCallback call, void *data)
BEGINS(cuStreamBeginCapture, false, (CUstream s), (s))
BEGINS(cuStreamBeginCapture_ptsz, true, (CUstream s), (s))
BEGINS(cuStreamBeginCapture_v2, false, (CUstream s, CUstreamCaptureMode mode), (s, mode))
BEGINS(cuStreamBeginCapture_v2_ptsz, true, (CUstream s, CUstreamCaptureMode mode), (s, mode))
BEGINS(cuStreamBeginCaptureToGraph, false, INTO_GRAPH, (s, g, d, e, n, mode))
BEGINS(cuStreamBeginCaptureToGraph_ptsz, true, INTO_GRAPH, (s, g, d, e, n, mode))
BEGINS(cuStreamBeginRecaptureToGraph, false, AGAIN, (s, mode, g, call, data))
BEGINS(cuStreamBeginRecaptureToGraph_ptsz, true, AGAIN, (s, mode, g, call, data))
BEGINS(cuStreamBeginCaptureToCig, false, (CUstream s, CUstreamCigCaptureParams *p), (s, p))
BEGINS(cuStreamBeginCaptureToCig_ptsz, true, (CUstream s, CUstreamCigCaptureParams *p), (s, p))
ENDS(cuStreamEndCapture, false, (CUstream s, CUgraph *g), (s, g))
ENDS(cuStreamEndCapture_ptsz, true, (CUstream s, CUgraph *g), (s, g))
ENDS(cuStreamEndCaptureToCig, false, (CUstream s), (s))
ENDS(cuStreamEndCaptureToCig_ptsz, true, (CUstream s), (s))

/* ---- ends ---- */

static void destroys(CUstream s)
{
    if (!tracked() || (uint64_t)(uintptr_t)s <= 2)
        return;
    qg_observe_stream(s, false);
    qg_stream_destroyed(s);
}

#define DESTROYS(name)                                                                             \
    CUresult name(CUstream s)                                                                      \
    {                                                                                              \
        destroys(s);                                                                               \
        return QG_REAL(name)(s);                                                                   \
    }

DESTROYS(cuStreamDestroy)
DESTROYS(cuStreamDestroy_v2)
