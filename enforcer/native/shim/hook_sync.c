/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of calls that wait for work or look at it (a marker goes in first, so that others see when it is done), of
 * captures (nothing of ours may go into one), and of the ends of streams.
 */
#include "streams.h"

static bool tracked(void)
{
    return qg_governed && !qg_depth;
}

#define OBSERVES_STREAM(name, ptsz, parameters, arguments, stream)             \
    CUresult name parameters                                                   \
    {                                                                          \
        if (tracked())                                                         \
            qg_observe_stream(stream, ptsz);                                   \
        return QG_REAL(name) arguments;                                        \
    }
#define OBSERVES_CONTEXT(name, parameters, arguments, context)                 \
    CUresult name parameters                                                   \
    {                                                                          \
        if (tracked())                                                         \
            qg_observe_context(context);                                       \
        return QG_REAL(name) arguments;                                        \
    }

OBSERVES_STREAM(cuStreamSynchronize, false, (CUstream s), (s), s)
OBSERVES_STREAM(cuStreamSynchronize_ptsz, true, (CUstream s), (s), s)
OBSERVES_STREAM(cuStreamQuery, false, (CUstream s), (s), s)
OBSERVES_STREAM(cuStreamQuery_ptsz, true, (CUstream s), (s), s)
OBSERVES_STREAM(cuEventRecord, false, (CUevent e, CUstream s), (e, s), s)
OBSERVES_STREAM(cuEventRecord_ptsz, true, (CUevent e, CUstream s), (e, s), s)
OBSERVES_STREAM(cuEventRecordWithFlags, false, (CUevent e, CUstream s, unsigned int flags), (e, s, flags), s)
OBSERVES_STREAM(cuEventRecordWithFlags_ptsz, true, (CUevent e, CUstream s, unsigned int flags), (e, s, flags), s)
OBSERVES_CONTEXT(cuCtxSynchronize, (void), (), NULL)
OBSERVES_CONTEXT(cuCtxSynchronize_v2, (CUcontext context), (context), context)
OBSERVES_CONTEXT(cuEventSynchronize, (CUevent e), (e), NULL)
OBSERVES_CONTEXT(cuEventQuery, (CUevent e), (e), NULL)

/* ---- captures --------------------------------------------------------------------------------------------- */

#define BEGINS(name, parameters, arguments)                                    \
    CUresult name parameters                                                   \
    {                                                                          \
        /* Before the call: another thread must not miss it. */                \
        __atomic_add_fetch(&qg_captures, 1, __ATOMIC_SEQ_CST);                 \
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
