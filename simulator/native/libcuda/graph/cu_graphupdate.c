/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes of executable graphs: new parameters of a node, and those of a whole other graph.
 */
#include "cu_graphexec.h"

#include <string.h>

static CUresult kernel(struct cu_node *node, const void *params)
{
    return cu_node_kernel(node, params);
}

static CUresult copy(struct cu_node *node, const void *params)
{
    return cu_node_copy(node, params);
}

static CUresult set(struct cu_node *node, const void *params)
{
    return cu_node_set(node, params);
}

static CUresult host(struct cu_node *node, const void *params)
{
    return cu_node_host(node, params);
}

/* The executable graph's own node changes; the graph that it was made of does not. */
static CUresult change(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type,
                       CUresult (*with)(struct cu_node *, const void *), const void *params)
{
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_EXEC, exec) || !node)
        return status;
    pthread_mutex_lock(&exec->lock);
    for (size_t i = 0; i < exec->count; i++)
        if ((CUgraphNode)exec->items[i].origin == node && exec->items[i].node->type == type)
            status = with(exec->items[i].node, params);
    pthread_mutex_unlock(&exec->lock);
    return status;
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    return change(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, kernel, params);
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS_v2 converted = cu_kernel_params(params);
    return cuGraphExecKernelNodeSetParams_v2(exec, node, &converted);
}

CUresult CUDAAPI cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_MEMCPY3D *params, CUcontext ctx)
{
    (void)ctx;
    return change(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY, copy, params);
}

CUresult CUDAAPI cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_MEMSET_NODE_PARAMS *params,
                                                CUcontext ctx)
{
    (void)ctx;
    return change(exec, node, CU_GRAPH_NODE_TYPE_MEMSET, set, params);
}

CUresult CUDAAPI cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                              const CUDA_HOST_NODE_PARAMS *params)
{
    return change(exec, node, CU_GRAPH_NODE_TYPE_HOST, host, params);
}

static bool same_shape(const struct CUgraphExec_st *a, const struct CUgraphExec_st *b)
{
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++) {
        const struct cu_item *x = &a->items[i], *y = &b->items[i];
        same = x->node->type == y->node->type && x->ndeps == y->ndeps &&
               (!x->ndeps || memcmp(x->deps, y->deps, x->ndeps * sizeof *x->deps) == 0);
    }
    return same;
}

CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                      CUgraphExecUpdateResultInfo *info)
{
    CUgraphExec fresh;
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_EXEC, exec) || !info)
        return CUDA_ERROR_INVALID_VALUE;
    *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    CU_TRY(cu_graph_instantiate(&fresh, graph, exec->flags));
    pthread_mutex_lock(&exec->lock);
    bool same = same_shape(exec, fresh);
    /* the nodes are the other graph's; SetParams still goes by those that it was made of */
    if (same) {
        struct cu_owned *before = exec->owned;
        CUgraph own = exec->graph;
        for (size_t i = 0; i < exec->count; i++)
            exec->items[i].node = fresh->items[i].node;
        exec->graph = fresh->graph;
        fresh->graph = own;
        exec->owned = fresh->owned;
        fresh->owned = NULL;
        cu_owned_release(&before, cu_graph_busy_in(exec));
    }
    pthread_mutex_unlock(&exec->lock);
    cuGraphExecDestroy(fresh);
    info->result =
        same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node,
                                   CUgraphExecUpdateResult *result)
{
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    CUresult status = cuGraphExecUpdate_v2(exec, graph, &info);
    if (node)
        *node = NULL;
    if (result)
        *result = info.result;
    return status;
}
