/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture. What a capturing stream is given becomes a node behind its front; an event
 * recorded there carries the front, and a stream that waits for the event joins the capture. Modes:
 * a call that may synchronise (cu_capture_unsafe) invalidates every capture of global mode, unless
 * its thread is in relaxed mode.
 */
#include "cu_capture.h"
#include "cu_graph.h"
#include "cu_graphmem.h"
#include "cu_stream.h"

#include <stdlib.h>
#include <string.h>

#define CAPTURES 64u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of fronts and of the list */
static CUgraph captures[CAPTURES];                       /* in progress, of global mode */
static _Atomic unsigned nglobal;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- fronts ---- */

static CUresult front_add(struct cu_front **front, struct cu_node *const *nodes, size_t n)
{
    if (!*front)
        *front = calloc(1, sizeof **front);
    struct cu_node **grown =
        *front ? realloc((*front)->nodes, ((*front)->count + n + 1) * sizeof *grown) : NULL;
    if (!grown)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*front)->nodes = grown;
    for (size_t i = 0; i < n; i++)
        grown[(*front)->count++] = nodes[i];
    return CUDA_SUCCESS;
}

void cu_front_drop(struct cu_front **front)
{
    if (*front)
        free((*front)->nodes);
    free(*front);
    *front = NULL;
}

/* A node behind the stream's front; from now on it is the front. The lock is held. */
static CUresult append(CUstream stream, CUgraphNodeType type, struct cu_node **node)
{
    struct cu_front *front = stream->front;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CU_TRY(cu_graph_add(stream->capture, front ? front->nodes : NULL, front ? front->count : 0,
                        type, node));
    if (front)
        front->count = 0;
    return front_add(&stream->front, node, 1);
}

/* The node that is wanted, with what it owns; refused, that stays the caller's. */
static CUresult take(CUstream stream, const struct cu_node *wanted)
{
    struct cu_node *node;
    pthread_mutex_lock(&lock);
    CUresult status = append(stream, wanted->type, &node);
    if (status == CUDA_SUCCESS)
        cu_node_become(node, wanted);
    pthread_mutex_unlock(&lock);
    return status;
}

CUresult cu_capture(CUstream stream, const struct sim_cmd *cmd)
{
    struct cu_node wanted = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .cmd = *cmd};
    bool word = cmd->op == SIM_OP_WRITE32 || cmd->op == SIM_OP_WRITE64 ||
                cmd->op == SIM_OP_WAIT32 || cmd->op == SIM_OP_WAIT64;
    return word ? take(stream, &wanted) : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cu_capture_kernel(CUstream stream, const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    struct cu_node wanted = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    CU_TRY(cu_node_kernel(&wanted, params));
    CUresult status = take(stream, &wanted);
    if (status != CUDA_SUCCESS)
        free(wanted.arguments);
    return status;
}

CUresult cu_capture_copy(CUstream stream, const CUDA_MEMCPY3D *copy)
{
    struct cu_node wanted = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    CU_TRY(cu_node_copy(&wanted, copy));
    return wanted.cmd.a ? take(stream, &wanted) : CUDA_SUCCESS;
}

CUresult cu_capture_set(CUstream stream, const CUDA_MEMSET_NODE_PARAMS *set)
{
    struct cu_node wanted = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    if (!set->width || !set->height)
        return CUDA_SUCCESS;
    CU_TRY(cu_node_set(&wanted, set));
    return take(stream, &wanted);
}

CUresult cu_capture_host(CUstream stream, CUhostFn fn, void *data)
{
    struct cu_node wanted = {.type = CU_GRAPH_NODE_TYPE_HOST, .fn = fn, .data = data};
    return take(stream, &wanted);
}

CUresult cu_capture_child(CUstream stream, CUgraph child)
{
    struct cu_node wanted = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = child};
    return take(stream, &wanted);
}

CUresult cu_capture_record(CUevent event, CUstream stream)
{
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    cu_front_drop(&event->front);
    if (stream->front)
        status = front_add(&event->front, stream->front->nodes, stream->front->count);
    event->capture = stream->capture;
    event->capture_id = stream->capture->capture_id;
    pthread_mutex_unlock(&lock);
    return status;
}

static bool joined(const struct CUgraph_st *graph, CUstream stream)
{
    for (size_t i = 0; i < graph->nmembers; i++)
        if (graph->members[i] == stream)
            return true;
    return false;
}

static CUresult join(CUgraph graph, CUstream stream)
{
    CUstream *grown = realloc(graph->members, (graph->nmembers + 1) * sizeof *grown);
    if (!grown)
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph->members = grown;
    grown[graph->nmembers++] = stream;
    stream->capture = graph;
    return CUDA_SUCCESS;
}

/* The event was recorded in a capture that still goes on. */
bool cu_event_captured(CUevent event)
{
    return event->capture && cu_handle_ok(CU_GRAPH, event->capture) && event->capture->capturing &&
           event->capture->capture_id == event->capture_id;
}

CUresult cu_capture_wait(CUstream stream, CUevent event)
{
    CUgraph graph = event->capture;
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!cu_event_captured(event))
        status = stream->capture ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_ERROR_CAPTURED_EVENT;
    else if (stream->capture && stream->capture != graph)
        status = CUDA_ERROR_STREAM_CAPTURE_MERGE;
    else if (stream == &stream->ctx->legacy)
        status = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    else if (!joined(graph, stream))
        status = join(graph, stream);
    if (status == CUDA_SUCCESS && event->front)
        status = front_add(&stream->front, event->front->nodes, event->front->count);
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- begin and end ---- */

static void list(CUgraph graph, bool in)
{
    for (unsigned i = 0; i < CAPTURES; i++)
        if (captures[i] == (in ? NULL : graph)) {
            captures[i] = in ? graph : NULL;
            nglobal += in ? 1u : -1u;
            return;
        }
}

CUresult cu_capture_unsafe(void)
{
    if (!nglobal || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
        thread_mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        return CUDA_SUCCESS;
    bool any = false;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < CAPTURES; i++)
        if (captures[i])
            any = captures[i]->invalid = true;
    pthread_mutex_unlock(&lock);
    return any ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

static CUresult begin(CUstream handle, CUstreamCaptureMode mode, bool pt)
{
    static _Atomic uint64_t ids;
    CUstream stream;
    CUgraph graph;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED || stream->capture || stream == &stream->ctx->legacy)
        return stream->capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CU_TRY(cu_graph_new(&graph));
    graph->capturing = stream;
    graph->capture_id = ++ids;
    graph->mode = mode;
    pthread_mutex_lock(&lock);
    CUresult status = join(graph, stream);
    if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
        list(graph, true);
    pthread_mutex_unlock(&lock);
    return status;
}
CU_BOTH(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, begin,
        (CUstream stream, CUstreamCaptureMode mode), stream, mode)

static void mark(bool *seen, const struct cu_node *node)
{
    if (seen[node->index])
        return;
    seen[node->index] = true;
    for (size_t i = 0; i < node->ndeps; i++)
        mark(seen, node->deps[i]);
}

/* Everything that joined has to lead back to the stream that began. */
static bool all_lead_back(const struct CUgraph_st *graph, const struct CUstream_st *origin)
{
    bool *seen = calloc(graph->count + 1, sizeof *seen), ok = seen != NULL;
    for (size_t i = 0; ok && origin->front && i < origin->front->count; i++)
        mark(seen, origin->front->nodes[i]);
    for (size_t i = 0; ok && i < graph->count; i++)
        ok = seen[i];
    free(seen);
    return ok;
}

static void leave(CUgraph graph)
{
    for (size_t i = 0; i < graph->nmembers; i++)
        if (graph->members[i]->capture == graph) {
            graph->members[i]->capture = NULL;
            cu_front_drop(&graph->members[i]->front);
        }
    free(graph->members);
    graph->members = NULL;
    graph->nmembers = 0;
    graph->capturing = NULL;
    list(graph, false);
}

static CUresult end(CUstream handle, CUgraph *out, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    CUgraph graph = stream->capture;
    if (!out || !graph)
        return out ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_VALUE;
    if (graph->capturing != stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    pthread_mutex_lock(&lock);
    CUresult status = graph->invalid                 ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                      : all_lead_back(graph, stream) ? CUDA_SUCCESS
                                                     : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    leave(graph);
    pthread_mutex_unlock(&lock);
    if (status != CUDA_SUCCESS)
        cu_graph_free(graph);
    *out = status == CUDA_SUCCESS ? graph : NULL;
    return status;
}
CU_BOTH(cuStreamEndCapture, cuStreamEndCapture_ptsz, end, (CUstream stream, CUgraph *graph), stream,
        graph)

/* ---- queries ---- */

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    *status = !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                         : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamIsCapturing, cuStreamIsCapturing_ptsz, is_capturing,
        (CUstream stream, CUstreamCaptureStatus *status), stream, status)

static CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                             CUgraph *graph, const CUgraphNode **nodes, size_t *n, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    CU_TRY(is_capturing(handle, status, pt));
    const struct cu_front *front = stream->capture ? stream->front : NULL;
    if (id)
        *id = stream->capture ? stream->capture->capture_id : 0;
    if (graph)
        *graph = stream->capture;
    if (nodes)
        *nodes = front ? (const CUgraphNode *)front->nodes : NULL;
    if (n)
        *n = front ? front->count : 0;
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz, capture_info,
        (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
         const CUgraphNode **nodes, size_t *n),
        stream, status, id, graph, nodes, n)

static CUresult capture_info_edges(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **nodes,
                                   const CUgraphEdgeData **edges, size_t *n, bool pt)
{
    if (edges)
        *edges = NULL;
    return capture_info(stream, status, id, graph, nodes, n, pt);
}
CU_BOTH(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz, capture_info_edges,
        (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
         const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *n),
        stream, status, id, graph, nodes, edges, n)

/* ---- what the next captured node depends on ---- */

static bool in_front(const struct cu_front *front, const struct cu_node *node)
{
    for (size_t i = 0; front && i < front->count; i++)
        if (front->nodes[i] == node)
            return true;
    return false;
}

static CUresult add_to_front(CUstream stream, const CUgraphNode *nodes, size_t n, bool replace)
{
    CUgraphNodeType memory; /* its nodes have no part in the order */
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    for (size_t i = 0; i < n; i++) {
        const struct cu_node *node = (const struct cu_node *)nodes[i];
        bool own = cu_handle_ok(CU_NODE, node) && node->graph == stream->capture;
        if (!own && !cu_graphmem_node_type(nodes[i], &memory))
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (replace && stream->front)
        stream->front->count = 0;
    for (size_t i = 0; i < n; i++)
        if (cu_handle_ok(CU_NODE, nodes[i]) && !in_front(stream->front, (struct cu_node *)nodes[i]))
            CU_TRY(front_add(&stream->front, (struct cu_node *const *)&nodes[i], 1));
    return CUDA_SUCCESS;
}

static CUresult update(CUstream handle, const CUgraphNode *nodes, size_t n, unsigned flags, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if ((n && !nodes) || flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return CUDA_ERROR_INVALID_VALUE;
    if (!stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    pthread_mutex_lock(&lock);
    CUresult status = add_to_front(stream, nodes, n, flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES);
    pthread_mutex_unlock(&lock);
    return status;
}
CU_BOTH(cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz, update,
        (CUstream stream, CUgraphNode *nodes, size_t n, unsigned int flags), stream, nodes, n,
        flags)

/* Edges are full dependencies here, whatever their data. */
static CUresult update_edges(CUstream stream, const CUgraphNode *nodes,
                             const CUgraphEdgeData *edges, size_t n, unsigned flags, bool pt)
{
    (void)edges;
    return update(stream, nodes, n, flags, pt);
}
CU_BOTH(cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz,
        update_edges,
        (CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t n,
         unsigned int flags),
        stream, nodes, edges, n, flags)

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CU_TRY(cu_ready());
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
