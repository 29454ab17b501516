/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: their nodes and edges. See cu_graph.h.
 */
#include "cu_copy.h"
#include "cu_graph.h"
#include "cu_graphmem.h"
#include "cu_launch.h"

#include <stdlib.h>
#include <string.h>

CUresult cu_graph_new(CUgraph *out)
{
    CUgraph graph = out ? cu_handle_new(CU_GRAPH) : NULL;
    if (!graph)
        return out ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    *out = graph;
    return CUDA_SUCCESS;
}

void cu_graph_free(CUgraph graph)
{
    cu_graphmem_graph_gone(graph);
    cu_owned_release(&graph->owned, NULL);
    for (size_t i = 0; i < graph->count; i++) {
        struct cu_node *node = graph->nodes[i];
        if (node->child)
            cu_graph_free(node->child);
        free(node->deps);
        cu_handle_free(CU_NODE, node);
    }
    free(graph->nodes);
    cu_handle_free(CU_GRAPH, graph);
}

CUresult CUDAAPI cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    CU_TRY(cu_ready());
    return flags ? CUDA_ERROR_INVALID_VALUE : cu_graph_new(graph);
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_GRAPH, graph) || graph->capturing)
        return CUDA_ERROR_INVALID_VALUE;
    cu_graph_free(graph);
    return CUDA_SUCCESS;
}

/* ---- nodes ---- */

static CUresult depend(struct cu_node *node, struct cu_node *const *deps, size_t n)
{
    struct cu_node **grown =
        n ? realloc(node->deps, (node->ndeps + n) * sizeof *grown) : node->deps;
    if (n && !grown)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->deps = grown;
    for (size_t i = 0; i < n; i++)
        node->deps[node->ndeps++] = deps[i];
    return CUDA_SUCCESS;
}

CUresult cu_graph_add(CUgraph graph, struct cu_node *const *deps, size_t ndeps,
                      CUgraphNodeType type, struct cu_node **out)
{
    if (graph->count == graph->room) {
        size_t room = graph->room ? graph->room * 2 : 64;
        struct cu_node **grown = realloc(graph->nodes, room * sizeof *grown);
        if (!grown)
            return CUDA_ERROR_OUT_OF_MEMORY;
        graph->nodes = grown;
        graph->room = room;
    }
    struct cu_node *node = cu_handle_new(CU_NODE);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->graph = graph;
    node->type = type;
    node->index = graph->count;
    CUresult status = depend(node, deps, ndeps);
    if (status != CUDA_SUCCESS) {
        cu_handle_free(CU_NODE, node);
        return status;
    }
    graph->nodes[graph->count++] = node;
    *out = node;
    return CUDA_SUCCESS;
}

static bool in(const struct cu_node *node, CUgraph graph)
{
    return cu_handle_ok(CU_NODE, node) && node->graph == graph;
}

/* The program's list of dependencies without the memory nodes, which nothing waits for. */
static CUresult make(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n,
                     CUgraphNodeType type, struct cu_node **node)
{
    CUgraphNodeType other;
    size_t used = 0;
    if (!out || !cu_handle_ok(CU_GRAPH, graph) || (n && !after))
        return CUDA_ERROR_INVALID_VALUE;
    struct cu_node **deps = malloc((n + 1) * sizeof *deps);
    CUresult status = deps ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < n && status == CUDA_SUCCESS; i++)
        if (in((struct cu_node *)after[i], graph))
            deps[used++] = (struct cu_node *)after[i];
        else if (!cu_graphmem_node_type(after[i], &other))
            status = CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS)
        status = cu_graph_add(graph, deps, used, type, node);
    free(deps);
    if (status == CUDA_SUCCESS)
        *out = (CUgraphNode)*node;
    return status;
}

/* A node whose parameters were refused goes again: it is the newest. */
static CUresult keep(struct cu_node *node, CUresult status)
{
    if (status != CUDA_SUCCESS) {
        node->graph->count--;
        free(node->deps);
        cu_handle_free(CU_NODE, node);
    }
    return status;
}

CUresult cu_node_kernel(struct cu_node *node, const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    struct sim_cmd cmd = {.op = SIM_OP_KERNEL};
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_kernel_cmd(params->func ? params->func : (CUfunction)params->kern,
                         (uint64_t)params->gridDimX * params->gridDimY * params->gridDimZ,
                         (uint64_t)params->blockDimX * params->blockDimY * params->blockDimZ,
                         params->sharedMemBytes, params->kernelParams, params->extra, &cmd));
    node->cmd = cmd;
    node->has_kernel = true;
    node->as.kernel = *params;
    /* their contents were the program's, and are used up */
    node->as.kernel.kernelParams = node->as.kernel.extra = NULL;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                         size_t n, const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    struct cu_node *node;
    CU_TRY(cu_ready());
    CU_TRY(make(out, graph, after, n, CU_GRAPH_NODE_TYPE_KERNEL, &node));
    return keep(node, cu_node_kernel(node, params));
}

CUDA_KERNEL_NODE_PARAMS_v2 cu_kernel_params(const CUDA_KERNEL_NODE_PARAMS_v1 *old)
{
    return (CUDA_KERNEL_NODE_PARAMS_v2){.func = old->func,
                                        .gridDimX = old->gridDimX,
                                        .gridDimY = old->gridDimY,
                                        .gridDimZ = old->gridDimZ,
                                        .blockDimX = old->blockDimX,
                                        .blockDimY = old->blockDimY,
                                        .blockDimZ = old->blockDimZ,
                                        .sharedMemBytes = old->sharedMemBytes,
                                        .kernelParams = old->kernelParams,
                                        .extra = old->extra};
}

CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                      size_t n, const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS_v2 converted = cu_kernel_params(params);
    return cuGraphAddKernelNode_v2(out, graph, after, n, &converted);
}

CUresult cu_node_copy(struct cu_node *node, const CUDA_MEMCPY3D *copy)
{
    struct sim_cmd cmd;
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_copy3d_cmd(copy, &cmd));
    node->cmd = cmd;
    node->as.copy = *copy;
    node->has_copy = true;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                      size_t n, const CUDA_MEMCPY3D *copy, CUcontext ctx)
{
    struct cu_node *node;
    CU_TRY(cu_ready());
    if (ctx && !cu_handle_ok(CU_CTX, ctx))
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(make(out, graph, after, n, CU_GRAPH_NODE_TYPE_MEMCPY, &node));
    return keep(node, cu_node_copy(node, copy));
}

CUresult cu_node_set(struct cu_node *node, const CUDA_MEMSET_NODE_PARAMS *set)
{
    size_t bytes;
    if (!set || !cu_memory_known(set->dst) || !set->width || !set->height ||
        (set->elementSize != 1 && set->elementSize != 2 && set->elementSize != 4) ||
        __builtin_mul_overflow(set->width * set->elementSize, set->height, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    node->as.set = *set;
    node->has_set = true;
    node->cmd = (struct sim_cmd){.op = SIM_OP_MEMSET, .a = bytes};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                      size_t n, const CUDA_MEMSET_NODE_PARAMS *set, CUcontext ctx)
{
    struct cu_node *node;
    CU_TRY(cu_ready());
    if (ctx && !cu_handle_ok(CU_CTX, ctx))
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(make(out, graph, after, n, CU_GRAPH_NODE_TYPE_MEMSET, &node));
    return keep(node, cu_node_set(node, set));
}

CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                    size_t n, const CUDA_HOST_NODE_PARAMS *params)
{
    struct cu_node *node;
    CU_TRY(cu_ready());
    if (!params || !params->fn)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(make(out, graph, after, n, CU_GRAPH_NODE_TYPE_HOST, &node));
    node->fn = params->fn;
    node->data = params->userData;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                     size_t n)
{
    struct cu_node *node;
    CU_TRY(cu_ready());
    return make(out, graph, after, n, CU_GRAPH_NODE_TYPE_EMPTY, &node);
}

static CUresult copy_into(CUgraph to, CUgraph from)
{
    CU_TRY(cu_owned_copy(&to->owned, from->owned));
    for (size_t i = 0; i < from->count; i++) {
        const struct cu_node *old = from->nodes[i];
        struct cu_node *node;
        CU_TRY(cu_graph_add(to, NULL, 0, old->type, &node));
        struct cu_node fresh = *old;
        fresh.graph = to;
        fresh.origin = old;
        fresh.index = i;
        fresh.deps = NULL;
        fresh.ndeps = 0;
        fresh.child = NULL;
        *node = fresh;
        if (old->child) {
            CU_TRY(cu_graph_new(&node->child));
            CU_TRY(copy_into(node->child, old->child));
        }
    }
    for (size_t i = 0; i < from->count; i++)
        for (size_t k = 0; k < from->nodes[i]->ndeps; k++)
            CU_TRY(depend(to->nodes[i], &to->nodes[from->nodes[i]->deps[k]->index], 1));
    return CUDA_SUCCESS;
}

static CUresult duplicate(CUgraph *out, CUgraph from)
{
    CU_TRY(cu_graph_new(out));
    CUresult status = copy_into(*out, from);
    if (status != CUDA_SUCCESS)
        cu_graph_free(*out);
    return status;
}

CUresult CUDAAPI cuGraphClone(CUgraph *out, CUgraph from)
{
    CU_TRY(cu_ready());
    return out && cu_handle_ok(CU_GRAPH, from) ? duplicate(out, from) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                          size_t n, CUgraph child)
{
    struct cu_node *node;
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_GRAPH, child) || child == graph)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(make(out, graph, after, n, CU_GRAPH_NODE_TYPE_GRAPH, &node));
    return keep(node, duplicate(&node->child, child));
}

/* It is the parent's from now on, with its memory nodes, which no copy could have. */
static CUresult move_child(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n,
                           CUgraph child)
{
    struct cu_node *node;
    if (!cu_handle_ok(CU_GRAPH, child) || child == graph)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(make(out, graph, after, n, CU_GRAPH_NODE_TYPE_GRAPH, &node));
    node->child = child;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph *out)
{
    struct cu_node *node = (struct cu_node *)handle;
    CU_TRY(cu_ready());
    if (!out || !cu_handle_ok(CU_NODE, node) || !node->child)
        return CUDA_ERROR_INVALID_VALUE;
    *out = node->child;
    return CUDA_SUCCESS;
}

static CUresult add_memory(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n,
                           CUDA_MEM_ALLOC_NODE_PARAMS_v2 *params)
{
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {.poolProps = params->poolProps,
                                         .bytesize = params->bytesize};
    CU_TRY(cuGraphAddMemAllocNode(out, graph, after, n, &wanted));
    params->dptr = wanted.dptr;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n,
                                CUgraphNodeParams *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_KERNEL_NODE_PARAMS_v3 *kernel = &params->kernel;
    CUDA_KERNEL_NODE_PARAMS_v2 launch = {.func = kernel->func,
                                         .gridDimX = kernel->gridDimX,
                                         .gridDimY = kernel->gridDimY,
                                         .gridDimZ = kernel->gridDimZ,
                                         .blockDimX = kernel->blockDimX,
                                         .blockDimY = kernel->blockDimY,
                                         .blockDimZ = kernel->blockDimZ,
                                         .sharedMemBytes = kernel->sharedMemBytes,
                                         .kernelParams = kernel->kernelParams,
                                         .extra = kernel->extra,
                                         .kern = kernel->kern,
                                         .ctx = kernel->ctx};
    CUDA_MEMSET_NODE_PARAMS set = {.dst = params->memset.dst,
                                   .pitch = params->memset.pitch,
                                   .value = params->memset.value,
                                   .elementSize = params->memset.elementSize,
                                   .width = params->memset.width,
                                   .height = params->memset.height};
    CUDA_HOST_NODE_PARAMS host = {.fn = params->host.fn, .userData = params->host.userData};
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphAddKernelNode_v2(out, graph, after, n, &launch);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphAddMemcpyNode(out, graph, after, n, &params->memcpy.copyParams,
                                    params->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return cuGraphAddMemsetNode(out, graph, after, n, &set, params->memset.ctx);
    case CU_GRAPH_NODE_TYPE_HOST:
        return cuGraphAddHostNode(out, graph, after, n, &host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE
                   ? move_child(out, graph, after, n, params->graph.graph)
                   : cuGraphAddChildGraphNode(out, graph, after, n, params->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return cuGraphAddEmptyNode(out, graph, after, n);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return add_memory(out, graph, after, n, &params->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(out, graph, after, n, params->free.dptr);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                   const CUgraphEdgeData *edges, size_t n,
                                   CUgraphNodeParams *params)
{
    (void)edges; /* programmatic launches start with the full dependency here */
    return cuGraphAddNode(out, graph, after, n, params);
}

CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from,
                                        const CUgraphNode *to, size_t n)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_GRAPH, graph) || (n && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++)
        if (!in((struct cu_node *)from[i], graph) || !in((struct cu_node *)to[i], graph) ||
            from[i] == to[i])
            return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++)
        CU_TRY(depend((struct cu_node *)to[i], (struct cu_node *const *)&from[i], 1));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from,
                                           const CUgraphNode *to, const CUgraphEdgeData *edges,
                                           size_t n)
{
    (void)edges;
    return cuGraphAddDependencies(graph, from, to, n);
}
