/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of calls that go into a stream but use no time of the card: waits for and writes of words
 * and semaphores, host functions, attachments, discarded pages. None of them waits at the gate. A
 * tenant whose gate is closed must still be able to signal. Otherwise its peers (spinning kernels,
 * processes on other cards) would wait for its quantum too. None counts as work: a stream that
 * waits for another process would keep the card. But the stream may block behind such a call, so
 * earlier work gets its fence first.
 */
#include "track/streams.h"

#define BEHIND(name, stream, ptsz, parameters, arguments)                                          \
    CUresult name parameters                                                                       \
    {                                                                                              \
        if (qg_governed && !qg_depth)                                                              \
            qg_observe_stream(stream, ptsz);                                                       \
        return QG_REAL(name) arguments;                                                            \
    }
#define BEHIND2(name, suffixed, parameters, arguments)                                             \
    BEHIND(name, s, false, parameters, arguments)                                                  \
    BEHIND(suffixed, s, true, parameters, arguments)

BEHIND2(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, (CUstream s, CUhostFn f, void *d), (s, f, d))
BEHIND2(cuLaunchHostFunc_v2, cuLaunchHostFunc_v2_ptsz,
        (CUstream s, CUhostFn f, void *d, unsigned int m), (s, f, d, m))
BEHIND2(cuStreamAddCallback, cuStreamAddCallback_ptsz,
        (CUstream s, CUstreamCallback f, void *d, unsigned int x), (s, f, d, x))
BEHIND2(cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz,
        (CUstream s, CUdeviceptr d, size_t n, unsigned int x), (s, d, n, x))

#define WORD32 (CUstream s, CUdeviceptr a, cuuint32_t v, unsigned int x)
#define WORD64 (CUstream s, CUdeviceptr a, cuuint64_t v, unsigned int x)
BEHIND2(cuStreamWaitValue32, cuStreamWaitValue32_ptsz, WORD32, (s, a, v, x))
BEHIND2(cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz, WORD32, (s, a, v, x))
BEHIND2(cuStreamWaitValue64, cuStreamWaitValue64_ptsz, WORD64, (s, a, v, x))
BEHIND2(cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz, WORD64, (s, a, v, x))
BEHIND2(cuStreamWriteValue32, cuStreamWriteValue32_ptsz, WORD32, (s, a, v, x))
BEHIND2(cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz, WORD32, (s, a, v, x))
BEHIND2(cuStreamWriteValue64, cuStreamWriteValue64_ptsz, WORD64, (s, a, v, x))
BEHIND2(cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz, WORD64, (s, a, v, x))
#define OPERATIONS (CUstream s, unsigned int n, CUstreamBatchMemOpParams *p, unsigned int x)
BEHIND2(cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz, OPERATIONS, (s, n, p, x))
BEHIND2(cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz, OPERATIONS, (s, n, p, x))

#define SIGNALS                                                                                    \
    (const CUexternalSemaphore *e, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *p, unsigned int n, \
     CUstream s)
#define WAITS                                                                                      \
    (const CUexternalSemaphore *e, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *p, unsigned int n,   \
     CUstream s)
BEHIND2(cuSignalExternalSemaphoresAsync, cuSignalExternalSemaphoresAsync_ptsz, SIGNALS,
        (e, p, n, s))
BEHIND2(cuWaitExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync_ptsz, WAITS, (e, p, n, s))

BEHIND2(cuStreamWaitEvent, cuStreamWaitEvent_ptsz, (CUstream s, CUevent e, unsigned int x),
        (s, e, x))
BEHIND2(cuMemDiscardBatchAsync, cuMemDiscardBatchAsync_ptsz,
        (CUdeviceptr * d, size_t *n, size_t count, unsigned long long x, CUstream s),
        (d, n, count, x, s))
BEHIND2(cuGraphicsMapResources, cuGraphicsMapResources_ptsz,
        (unsigned int n, CUgraphicsResource *r, CUstream s), (n, r, s))
BEHIND2(cuGraphicsUnmapResources, cuGraphicsUnmapResources_ptsz,
        (unsigned int n, CUgraphicsResource *r, CUstream s), (n, r, s))
