/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of calls that wait for work or look at it (a marker goes in first, so that others see when it is done), of
 * captures (nothing of ours may go into one), and of the ends of streams.
 */
#include "contexts.h"
#include "pools.h"
#include "streams.h"

static bool tracked(void)
{
    return qg_governed && !qg_depth;
}

/* Streams beyond the number of marker indices could not be marked while all were busy; by now one may be at rest. */
static CUresult waited(CUresult result)
{
    if (result == CUDA_SUCCESS && tracked()) {
        qg_observe_homeless();
        qg_pools_settled();
    }
    return result;
}

#define LOOKS(name, before, parameters, arguments)                             \
    CUresult name parameters                                                   \
    {                                                                          \
        if (tracked())                                                         \
            before;                                                            \
        return QG_REAL(name) arguments;                                        \
    }
#define WAITS(name, before, parameters, arguments)                             \
    CUresult name parameters                                                   \
    {                                                                          \
        if (tracked())                                                         \
            before;                                                            \
        return waited(QG_REAL(name) arguments);                                \
    }
#define OF_STREAM qg_observe_stream(s, false)
#define OF_THREADS_STREAM qg_observe_stream(s, true)

WAITS(cuStreamSynchronize, OF_STREAM, (CUstream s), (s))
WAITS(cuStreamSynchronize_ptsz, OF_THREADS_STREAM, (CUstream s), (s))
WAITS(cuStreamQuery, OF_STREAM, (CUstream s), (s))
WAITS(cuStreamQuery_ptsz, OF_THREADS_STREAM, (CUstream s), (s))
WAITS(cuCtxSynchronize, qg_observe_context(NULL), (void), ())
WAITS(cuCtxSynchronize_v2, qg_observe_context(context), (CUcontext context), (context))
WAITS(cuEventSynchronize, qg_observe_context(NULL), (CUevent e), (e))
WAITS(cuEventQuery, qg_observe_context(NULL), (CUevent e), (e))
LOOKS(cuEventRecord, OF_STREAM, (CUevent e, CUstream s), (e, s))
LOOKS(cuEventRecord_ptsz, OF_THREADS_STREAM, (CUevent e, CUstream s), (e, s))
LOOKS(cuEventRecordWithFlags, OF_STREAM, (CUevent e, CUstream s, unsigned int flags), (e, s, flags))
LOOKS(cuEventRecordWithFlags_ptsz, OF_THREADS_STREAM, (CUevent e, CUstream s, unsigned int flags), (e, s, flags))
LOOKS(cuCtxRecordEvent, qg_observe_context(context), (CUcontext context, CUevent e), (context, e))
LOOKS(cuGreenCtxRecordEvent, qg_observe_context(qg_green_context(context)), (CUgreenCtx context, CUevent e), (context, e))
/* Not themselves a look at work, but all of the context may stand still behind them: hook_order.c. */
LOOKS(cuCtxWaitEvent, qg_observe_context(context), (CUcontext context, CUevent e), (context, e))
LOOKS(cuGreenCtxWaitEvent, qg_observe_context(qg_green_context(context)), (CUgreenCtx context, CUevent e), (context, e))

/* ---- captures --------------------------------------------------------------------------------------------- */

#define BEGINS(name, parameters, arguments)                                    \
    CUresult name parameters                                                   \
    {                                                                          \
        /* Before the call: another thread must not miss it. */                \
        __atomic_add_fetch(&qg_captures, 1, __ATOMIC_SEQ_CST);                 \
        __atomic_add_fetch(&qg_generation, 1, __ATOMIC_SEQ_CST);               \
        CUresult result = QG_REAL(name) arguments;                             \
        if (result != CUDA_SUCCESS)                                            \
            __atomic_sub_fetch(&qg_captures, 1, __ATOMIC_SEQ_CST);             \
        return result;                                                         \
    }

static void capture_ended(CUresult result)
{
    int now = __atomic_load_n(&qg_captures, __ATOMIC_RELAXED);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        return;
    while (now > 0 && !__atomic_compare_exchange_n(&qg_captures, &now, now - 1, false, __ATOMIC_SEQ_CST,
                                                   __ATOMIC_RELAXED))
        ;
}

#define ENDS(name, parameters, arguments)                                      \
    CUresult name parameters                                                   \
    {                                                                          \
        CUresult result = QG_REAL(name) arguments;                             \
        capture_ended(result);                                                 \
        return result;                                                         \
    }

#define INTO_GRAPH                                                                                             \
    (CUstream s, CUgraph g, const CUgraphNode *d, const CUgraphEdgeData *e, size_t n, CUstreamCaptureMode mode)
#define AGAIN (CUstream s, CUstreamCaptureMode mode, CUgraph g, CUgraphRecaptureCallback call, void *data)
BEGINS(cuStreamBeginCapture, (CUstream s), (s))
BEGINS(cuStreamBeginCapture_ptsz, (CUstream s), (s))
BEGINS(cuStreamBeginCapture_v2, (CUstream s, CUstreamCaptureMode mode), (s, mode))
BEGINS(cuStreamBeginCapture_v2_ptsz, (CUstream s, CUstreamCaptureMode mode), (s, mode))
BEGINS(cuStreamBeginCaptureToGraph, INTO_GRAPH, (s, g, d, e, n, mode))
BEGINS(cuStreamBeginCaptureToGraph_ptsz, INTO_GRAPH, (s, g, d, e, n, mode))
BEGINS(cuStreamBeginRecaptureToGraph, AGAIN, (s, mode, g, call, data))
BEGINS(cuStreamBeginRecaptureToGraph_ptsz, AGAIN, (s, mode, g, call, data))
BEGINS(cuStreamBeginCaptureToCig, (CUstream s, CUstreamCigCaptureParams *p), (s, p))
BEGINS(cuStreamBeginCaptureToCig_ptsz, (CUstream s, CUstreamCigCaptureParams *p), (s, p))
ENDS(cuStreamEndCapture, (CUstream s, CUgraph *g), (s, g))
ENDS(cuStreamEndCapture_ptsz, (CUstream s, CUgraph *g), (s, g))
ENDS(cuStreamEndCaptureToCig, (CUstream s), (s))
ENDS(cuStreamEndCaptureToCig_ptsz, (CUstream s), (s))

/* ---- ends ------------------------------------------------------------------------------------------------- */

#define DESTROYS(name)                                                         \
    CUresult name(CUstream s)                                                  \
    {                                                                          \
        if (tracked() && (uint64_t)(uintptr_t)s > 2) {                         \
            qg_observe_stream(s, false);                                       \
            qg_stream_destroyed(s);                                            \
        }                                                                      \
        return QG_REAL(name)(s);                                               \
    }

DESTROYS(cuStreamDestroy)
DESTROYS(cuStreamDestroy_v2)
