/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of everything that starts kernels.
 */
#include "gate/gate.h"
#include "hooks/memory/graph_nodes.h"
#include "hooks/memory/libraries.h"

/* Two functions each, so that the usual case needs no stack frame: it ends in a jump to the driver,
 * with all arguments where the program put them. */
#define LAUNCH(name, parameters, arguments, stream, ptsz, function)                                \
    __attribute__((noinline)) static CUresult slow_##name parameters                               \
    {                                                                                              \
        if (!qg_launch_admitted(function))                                                         \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                       \
        if (qg_fast_default(stream, ptsz))                                                         \
            return QG_REAL(name) arguments;                                                        \
        struct qg_stream *qg_stream = qg_enter(stream, ptsz, function, 0);                         \
        CUresult qg_result = QG_REAL(name) arguments;                                              \
        qg_leave(qg_stream, qg_result);                                                            \
        return qg_result;                                                                          \
    }                                                                                              \
    CUresult name parameters                                                                       \
    {                                                                                              \
        if (QG_LIKELY(qg_fast(stream)))                                                            \
            return QG_REAL(name) arguments;                                                        \
        return slow_##name arguments;                                                              \
    }

#define GRID                                                                                       \
    unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,           \
        unsigned int bz
#define GRID_ARGS gx, gy, gz, bx, by, bz

LAUNCH(cuLaunchKernel, (CUfunction f, GRID, unsigned int shared, CUstream s, void **p, void **e),
       (f, GRID_ARGS, shared, s, p, e), s, false, f)
LAUNCH(cuLaunchKernel_ptsz,
       (CUfunction f, GRID, unsigned int shared, CUstream s, void **p, void **e),
       (f, GRID_ARGS, shared, s, p, e), s, true, f)
LAUNCH(cuLaunchCooperativeKernel, (CUfunction f, GRID, unsigned int shared, CUstream s, void **p),
       (f, GRID_ARGS, shared, s, p), s, false, f)
LAUNCH(cuLaunchCooperativeKernel_ptsz,
       (CUfunction f, GRID, unsigned int shared, CUstream s, void **p),
       (f, GRID_ARGS, shared, s, p), s, true, f)
LAUNCH(cuLaunchKernelEx, (const CUlaunchConfig *c, CUfunction f, void **p, void **e), (c, f, p, e),
       c ? c->hStream : NULL, false, f)
LAUNCH(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *c, CUfunction f, void **p, void **e),
       (c, f, p, e), c ? c->hStream : NULL, true, f)
LAUNCH(cuLaunch, (CUfunction f), (f), NULL, false, f)
LAUNCH(cuLaunchGrid, (CUfunction f, int width, int height), (f, width, height), NULL, false, f)
LAUNCH(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream s), (f, width, height, s),
       s, false, f)

/* A graph with memory nodes is admitted like an allocation, but after the gate. If it reserved
 * bytes before, the job's other threads would lack them while it waits at the gate. They would be
 * lost for good if a signal handler jumps out of the wait. */
#define LAUNCH_GRAPH(name, ptsz)                                                                   \
    CUresult name(CUgraphExec g, CUstream s)                                                       \
    {                                                                                              \
        struct qg_graph_need reserved;                                                             \
        struct qg_room room = {0};                                                                 \
        struct qg_stream *qg_stream;                                                               \
        CUresult qg_result;                                                                        \
        do {                                                                                       \
            qg_result = CUDA_ERROR_OUT_OF_MEMORY;                                                  \
            if (!qg_graph_enter(g, s, ptsz, true, &qg_stream, &reserved, &room))                   \
                continue;                                                                          \
            qg_result = QG_REAL(name)(g, s);                                                       \
            qg_leave(qg_stream, qg_result);                                                        \
            qg_graph_memory_after(g, &reserved, qg_result);                                        \
        } while (qg_room_again(&room, qg_result));                                                 \
        return qg_result;                                                                          \
    }

LAUNCH_GRAPH(cuGraphLaunch, false)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, true)

/* Passes over the gates of all cards. Their open times may rarely overlap, but a launch must not
 * wait for ever. Chosen, not measured. */
#define ROUNDS 1000u

/* While a thread waits at one card's gate, another card's gate may close. All must be open in one
 * pass. No launch is counted meanwhile, so that no card is kept for a launch that waits at another.
 */
static void wait_for_all(const CUDA_LAUNCH_PARAMS *list, unsigned int n)
{
    bool waited = qg_governed && !qg_depth;
    for (unsigned int round = 0; waited && round < ROUNDS; round++) {
        waited = false;
        for (unsigned int i = 0; i < n; i++) {
            struct qg_stream *stream = qg_stream_of(list[i].hStream, false);
            if (stream && !qg_stream_captures(stream))
                waited |= qg_gate_waited(stream);
        }
    }
}

/* One launch on several cards: it passes the gates of all. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                              unsigned int flags)
{
    struct qg_stream *streams[QG_MAX_CARDS] = {0};
    unsigned int n = list && count <= QG_MAX_CARDS ? count : 0;
    if (n > 1)
        wait_for_all(list, n);
    for (unsigned int i = 0; i < n; i++) {
        streams[i] = qg_enter(list[i].hStream, false, list[i].function, 0);
        if (streams[i])
            qg_depth = 0; /* for the next card; set again below */
    }
    int before = qg_depth;
    qg_depth = 1;
    CUresult result = QG_REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    qg_depth = before;
    for (unsigned int i = 0; i < n; i++)
        if (streams[i])
            qg_leave(streams[i], result);
    return result;
}
