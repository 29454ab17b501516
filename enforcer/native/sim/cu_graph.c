/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture and graphs, as far as launches, copies and fills in one stream go: EndCapture returns a chain of
 * them, Launch submits it. Memory pools are what a program asks before it uses cuMemAllocAsync.
 */
#include "cu.h"

#include <stdlib.h>
#include <string.h>

struct CUgraph_st {
    enum cu_magic magic;
    struct sim_cmd *cmds;
    size_t count, room;
    CUstream capturing;
};

struct CUgraphExec_st {
    enum cu_magic magic;
    struct sim_cmd *cmds;
    size_t count;
};

struct CUmemPoolHandle_st {
    enum cu_magic magic;
    CUcontext ctx;
    uint64_t threshold;
};

CUresult cu_capture(CUstream stream, const struct sim_cmd *cmd)
{
    CUgraph graph = stream->capture;
    if (cmd->op > SIM_OP_MEMSET) /* events, waits and words would need dependencies between streams */
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (graph->count == graph->room) {
        size_t room = graph->room ? graph->room * 2 : 64;
        struct sim_cmd *grown = realloc(graph->cmds, room * sizeof *grown);
        if (!grown)
            return CUDA_ERROR_OUT_OF_MEMORY;
        graph->cmds = grown;
        graph->room = room;
    }
    graph->cmds[graph->count++] = *cmd;
    return CUDA_SUCCESS;
}

static CUresult new_graph(CUgraph *out)
{
    CUgraph graph = out ? cu_handle_new(CU_GRAPH) : NULL;
    if (!graph)
        return out ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    *out = graph;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    CU_TRY(cu_ready());
    return flags ? CUDA_ERROR_INVALID_VALUE : new_graph(graph);
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_GRAPH, graph) || graph->capturing)
        return CUDA_ERROR_INVALID_VALUE;
    free(graph->cmds);
    cu_handle_free(CU_GRAPH, graph);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    CU_TRY(cu_ready());
    if (!out || !cu_handle_ok(CU_GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphExec exec = cu_handle_new(CU_EXEC);
    struct sim_cmd *cmds = malloc((graph->count + 1) * sizeof *cmds);
    if (!exec || !cmds) {
        free(cmds);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (graph->count)
        memcpy(cmds, graph->cmds, graph->count * sizeof *cmds);
    exec->cmds = cmds;
    exec->count = graph->count;
    *out = exec;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_EXEC, exec))
        return CUDA_ERROR_INVALID_VALUE;
    free(exec->cmds);
    cu_handle_free(CU_EXEC, exec);
    return CUDA_SUCCESS;
}

static CUresult launch_graph(CUgraphExec exec, CUstream handle, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!cu_handle_ok(CU_EXEC, exec))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < exec->count; i++)
        CU_TRY(cu_push(stream, &exec->cmds[i], false, NULL));
    return CUDA_SUCCESS;
}
CU_BOTH(cuGraphLaunch, cuGraphLaunch_ptsz, launch_graph, (CUgraphExec exec, CUstream stream), exec, stream)

/* ---- capture -------------------------------------------------------------------------------------------- */

static CUresult begin(CUstream handle, CUstreamCaptureMode mode, bool pt)
{
    CUstream stream;
    CUgraph graph;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED || stream->capture || stream == &stream->ctx->legacy)
        return stream->capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CU_TRY(new_graph(&graph));
    graph->capturing = stream;
    stream->capture = graph;
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, begin, (CUstream stream, CUstreamCaptureMode mode), stream,
        mode)

static CUresult end(CUstream handle, CUgraph *out, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!out || !stream->capture)
        return out ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_VALUE;
    *out = stream->capture;
    stream->capture->capturing = NULL;
    stream->capture = NULL;
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamEndCapture, cuStreamEndCapture_ptsz, end, (CUstream stream, CUgraph *graph), stream, graph)

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    *status = stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamIsCapturing, cuStreamIsCapturing_ptsz, is_capturing, (CUstream stream, CUstreamCaptureStatus *status),
        stream, status)

static CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                             const CUgraphNode **nodes, size_t *n, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    CU_TRY(is_capturing(handle, status, pt));
    if (id)
        *id = (cuuint64_t)(uintptr_t)stream->capture;
    if (graph)
        *graph = stream->capture;
    if (nodes)
        *nodes = NULL;
    if (n)
        *n = 0;
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz, capture_info,
        (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
         size_t *n), stream, status, id, graph, nodes, n)

static CUresult capture_info_edges(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *n, bool pt)
{
    if (edges)
        *edges = NULL;
    return capture_info(stream, status, id, graph, nodes, n, pt);
}
CU_BOTH(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz, capture_info_edges,
        (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
         const CUgraphEdgeData **edges, size_t *n), stream, status, id, graph, nodes, edges, n)

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    static __thread CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CU_TRY(cu_ready());
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = current;
    current = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* ---- pools ---------------------------------------------------------------------------------------------- */

static CUmemoryPool default_pools[SIM_MAX_CARDS];

static CUresult pool_of(CUmemoryPool *out, CUdevice dev)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cu.lock);
    if (!default_pools[dev])
        default_pools[dev] = cu_handle_new(CU_POOL);
    *out = default_pools[dev];
    pthread_mutex_unlock(&cu.lock);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev) { return pool_of(pool, dev); }
CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) { return pool_of(pool, dev); }

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_POOL, pool) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(cuuint64_t *)value; /* kept for the program; freed memory returns to the card at once */
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_POOL, pool) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        *(cuuint64_t *)value = attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? pool->threshold : 0;
    else
        *(int *)value = 1;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    (void)keep;
    CU_TRY(cu_ready());
    return cu_handle_ok(CU_POOL, pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
