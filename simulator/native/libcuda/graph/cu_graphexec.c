/* SPDX-License-Identifier: Apache-2.0
 *
 * Executable graphs. Each has a copy of the graph that it was made of. Instantiation puts its nodes
 * in order and deals them out to branches: a node follows in the branch of a node that it depends
 * on, or begins one of its own. A launch submits branch 0 to the program's stream and the others to
 * streams of the executable graph, with waits between them: one launch latency, kernels of
 * different branches one after the other as the card has them, copies beside kernels. Launched into
 * a capture it becomes a child node there.
 */
#include "cu_capture.h"
#include "cu_graphexec.h"
#include "cu_graphmem.h"
#include "cu_launch.h"
#include "cu_stream.h"

#include <stdlib.h>

/* ---- instantiation ---- */

static size_t count_nodes(CUgraph graph)
{
    size_t n = graph->count;
    for (size_t i = 0; i < graph->count; i++)
        n += graph->nodes[i]->child ? count_nodes(graph->nodes[i]->child) : 0;
    return n;
}

struct build {
    struct cu_item *items;
    size_t count;
};

static bool add_dep(struct cu_item *item, size_t dep)
{
    size_t *grown = realloc(item->deps, (item->ndeps + 1) * sizeof *grown);
    if (!grown)
        return false;
    item->deps = grown;
    item->deps[item->ndeps++] = dep;
    return true;
}

static CUresult place(struct build *build, struct cu_node *node, const size_t *of_node,
                      const size_t *entry);

/* The nodes of a graph in an order in which each comes after those it depends on. entry: an item
 * that all wait for. */
static CUresult place_all(struct build *build, CUgraph graph, const size_t *entry)
{
    size_t *of_node = malloc((graph->count + 1) * sizeof *of_node), done = 0;
    CUresult status = of_node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; of_node && i < graph->count; i++)
        of_node[i] = SIZE_MAX;
    for (bool moved = true; status == CUDA_SUCCESS && moved && done < graph->count;) {
        moved = false;
        for (size_t i = 0; i < graph->count && status == CUDA_SUCCESS; i++) {
            struct cu_node *node = graph->nodes[i];
            bool free_to_go = of_node[i] == SIZE_MAX;
            for (size_t k = 0; k < node->ndeps; k++)
                free_to_go &= of_node[node->deps[k]->index] != SIZE_MAX;
            if (!free_to_go)
                continue;
            status = place(build, node, of_node, entry);
            of_node[i] = build->count - 1;
            done++;
            moved = true;
        }
    }
    free(of_node);
    /* a cycle */
    return status == CUDA_SUCCESS && done < graph->count ? CUDA_ERROR_INVALID_VALUE : status;
}

/* A child graph: its nodes between an item that waits for the node's dependencies, and the node
 * itself, which waits for all of them. */
static CUresult place(struct build *build, struct cu_node *node, const size_t *of_node,
                      const size_t *entry)
{
    static struct cu_node nothing = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    struct cu_item fresh = {.node = node, .origin = node->origin};
    bool ok = true;
    for (size_t k = 0; k < node->ndeps && ok; k++)
        ok = add_dep(&fresh, of_node[node->deps[k]->index]);
    if (entry && !node->ndeps)
        ok = ok && add_dep(&fresh, *entry);
    build->items[build->count++] = fresh;
    if (!ok)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!node->child)
        return CUDA_SUCCESS;
    size_t before = build->count - 1;
    CU_TRY(place_all(build, node->child, &before));
    struct cu_item end = {.node = &nothing};
    for (size_t i = before; i < build->count && ok; i++)
        ok = add_dep(&end, i);
    build->items[build->count++] = end;
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void deal_out(CUgraphExec exec)
{
    size_t tail[CU_BRANCHES];
    for (size_t i = 0; i < exec->count; i++) {
        struct cu_item *item = &exec->items[i];
        unsigned branch = CU_BRANCHES;
        for (size_t k = 0; k < item->ndeps && branch == CU_BRANCHES; k++)
            if (tail[exec->items[item->deps[k]].branch] == item->deps[k])
                branch = exec->items[item->deps[k]].branch;
        if (branch == CU_BRANCHES)
            branch = exec->nbranches < CU_BRANCHES ? exec->nbranches++ : CU_BRANCHES - 1;
        item->branch = branch;
        tail[branch] = i;
    }
}

static void free_items(struct cu_item *items, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(items[i].deps);
    free(items);
}

/* Memory and references to user objects. */
static CUresult holdings_of(CUgraph graph, CUgraphExec exec)
{
    CU_TRY(cu_graphmem_instantiated(graph, exec));
    CU_TRY(cu_owned_copy(&exec->owned, graph->owned));
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i]->child)
            CU_TRY(holdings_of(graph->nodes[i]->child, exec));
    return CUDA_SUCCESS;
}

CUresult cu_graph_instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    CUgraph own;
    if (!out || !cu_handle_ok(CU_GRAPH, graph) || graph->capturing)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_graph_duplicate(&own, graph));
    struct build build = {.items = calloc(2 * count_nodes(own) + 1, sizeof *build.items)};
    CUresult status = build.items ? place_all(&build, own, NULL) : CUDA_ERROR_OUT_OF_MEMORY;
    CUgraphExec exec = status == CUDA_SUCCESS ? cu_handle_new(CU_EXEC) : NULL;
    if (!exec) {
        free_items(build.items, build.count);
        cu_graph_free(own);
        return status == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : status;
    }
    exec->graph = own;
    exec->items = build.items;
    exec->count = build.count;
    exec->flags = flags;
    pthread_mutex_init(&exec->lock, NULL);
    deal_out(exec);
    *out = exec;
    return holdings_of(graph, exec);
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph,
                                             unsigned long long flags)
{
    CU_TRY(cu_ready());
    return cu_graph_instantiate(out, graph, flags);
}

CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *node,
                                       char *log, size_t size)
{
    CU_TRY(cu_ready());
    if (node)
        *node = NULL;
    if (log && size)
        *log = 0;
    return cu_graph_instantiate(out, graph, 0);
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *node, char *log,
                                    size_t size)
{
    return cuGraphInstantiate_v2(out, graph, node, log, size);
}

static CUresult with_params(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
                            bool pt)
{
    CU_TRY(cu_ready());
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cu_graph_instantiate(out, graph, params->flags);
    if (status == CUDA_SUCCESS && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
        status = pt ? cuGraphUpload_ptsz(*out, params->hUploadStream)
                    : cuGraphUpload(*out, params->hUploadStream);
    params->hErrNode_out = NULL;
    params->result_out =
        status == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return status;
}
CU_BOTH(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz, with_params,
        (CUgraphExec * out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params), out, graph,
        params)

CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_EXEC, exec) || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

static void drop_streams(CUgraphExec exec)
{
    for (unsigned i = 1; i < CU_BRANCHES; i++)
        if (exec->streams[i]) {
            cuStreamDestroy_v2(exec->streams[i]);
            exec->streams[i] = NULL;
        }
}

CUstream cu_graph_busy_in(CUgraphExec exec)
{
    CUstream stream = exec->last_stream;
    if (!stream || !cu_handle_ok(CU_CTX, exec->ctx))
        return NULL;
    bool own = stream >= exec->ctx->per_thread && stream < exec->ctx->per_thread + SIM_STREAM_PT_N;
    return own || stream == &exec->ctx->legacy || cu_handle_ok(CU_STREAM, stream)
               ? stream
               : &exec->ctx->all; /* the program destroyed it: behind everything */
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_EXEC, exec))
        return CUDA_ERROR_INVALID_VALUE;
    cu_graphmem_exec_gone(exec);
    cu_owned_release(&exec->owned, cu_graph_busy_in(exec));
    drop_streams(exec);
    free_items(exec->items, exec->count);
    cu_graph_free(exec->graph);
    cu_handle_free(CU_EXEC, exec);
    return CUDA_SUCCESS;
}

/* ---- launch ---- */

static CUresult wait_for(CUstream stream, CUstream other, uint64_t seq)
{
    struct sim_cmd cmd = {.op = SIM_OP_WAIT, .a = other->ctx->id, .b = other->slot, .c = seq};
    return stream == other ? CUDA_SUCCESS : cu_push(stream, &cmd, other->ctx != stream->ctx, NULL);
}

static CUresult open_streams(CUgraphExec exec, CUcontext ctx)
{
    if (exec->ctx != ctx)
        drop_streams(exec);
    exec->ctx = ctx;
    for (unsigned i = 1; i < exec->nbranches; i++)
        if (!exec->streams[i])
            CU_TRY(cu_stream_new(ctx, CU_STREAM_NON_BLOCKING, &exec->streams[i]));
    return CUDA_SUCCESS;
}

static CUresult run_item(CUgraphExec exec, struct cu_item *item, bool first)
{
    CUstream stream = exec->streams[item->branch];
    const struct cu_node *node = item->node;
    struct sim_cmd cmd = node->cmd;
    for (size_t k = 0; k < item->ndeps; k++) {
        const struct cu_item *dep = &exec->items[item->deps[k]];
        CU_TRY(wait_for(stream, exec->streams[dep->branch], dep->seq));
    }
    CU_TRY(cu_node_contents(node));
    if (!first)
        cmd.flags |= SIM_CMD_NODE;
    if (cmd.op)
        CU_TRY(cu_push(stream, &cmd, cmd.op > SIM_OP_PEER, NULL));
    if (node->fn)
        CU_TRY(cu_host_call(stream, node->fn, node->data));
    item->seq = stream->last_seq;
    return CUDA_SUCCESS;
}

static CUresult launch_locked(CUgraphExec exec, CUstream stream)
{
    struct sim_cmd mark = {.op = SIM_OP_WAIT, .a = stream->ctx->id, .b = stream->slot};
    bool first = true;
    uint64_t head;
    CU_TRY(open_streams(exec, stream->ctx));
    if (exec->last_stream && exec->last_stream != stream &&
        cu_handle_ok(CU_STREAM, exec->last_stream))
        CU_TRY(wait_for(stream, exec->last_stream, exec->last_stream->last_seq));
    exec->last_stream = stream;
    exec->streams[0] = stream;
    if (exec->nbranches > 1) { /* where the launch is in its stream */
        CU_TRY(cu_push(stream, &mark, false, &head));
        for (unsigned i = 1; i < exec->nbranches; i++)
            CU_TRY(wait_for(exec->streams[i], stream, head));
    }
    for (size_t i = 0; i < exec->count; i++) {
        CU_TRY(run_item(exec, &exec->items[i], first));
        first &= exec->items[i].node->cmd.op != SIM_OP_KERNEL;
    }
    for (unsigned i = 1; i < exec->nbranches; i++)
        CU_TRY(wait_for(stream, exec->streams[i], exec->streams[i]->last_seq));
    return CUDA_SUCCESS;
}

/* A child as it is now: what changes in the executable graph later stays there. */
static CUresult capture_launch(CUgraphExec exec, CUstream stream)
{
    CUgraph child;
    if (cu_graphmem_used(exec))
        return CUDA_ERROR_NOT_SUPPORTED; /* no copy of a graph has its memory */
    pthread_mutex_lock(&exec->lock);
    CUresult status = cu_graph_duplicate(&child, exec->graph);
    pthread_mutex_unlock(&exec->lock);
    CU_TRY(status);
    status = cu_capture_child(stream, child);
    if (status != CUDA_SUCCESS)
        cu_graph_free(child);
    return status;
}

static CUresult launch_graph(CUgraphExec exec, CUstream handle, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!cu_handle_ok(CU_EXEC, exec))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return capture_launch(exec, stream);
    CU_TRY(cu_graphmem_before_launch(exec));
    CU_TRY(cu_graphmem_launch(exec, exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    pthread_mutex_lock(&exec->lock); /* an executable graph runs once at a time */
    CUresult status = launch_locked(exec, stream);
    pthread_mutex_unlock(&exec->lock);
    return status;
}
CU_BOTH(cuGraphLaunch, cuGraphLaunch_ptsz, launch_graph, (CUgraphExec exec, CUstream stream), exec,
        stream)

static CUresult upload_graph(CUgraphExec exec, CUstream handle, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    return cu_handle_ok(CU_EXEC, exec) ? cu_graphmem_before_launch(exec) : CUDA_ERROR_INVALID_VALUE;
}
CU_BOTH(cuGraphUpload, cuGraphUpload_ptsz, upload_graph, (CUgraphExec exec, CUstream stream), exec,
        stream)
