/* SPDX-License-Identifier: Apache-2.0
 *
 * Kinds of nodes: what they do, new ones, and their parameters, read and changed.
 */
#include "cu_arguments.h"
#include "cu_copy.h"
#include "cu_graph.h"
#include "cu_launch.h"

#include <stdlib.h>

/* ---- what a node does ---- */

CUresult cu_node_kernel(struct cu_node *node, const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    struct sim_cmd cmd = {.op = SIM_OP_KERNEL};
    void *arguments;
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_kernel_cmd(params->func ? params->func : (CUfunction)params->kern,
                         (uint64_t)params->gridDimX * params->gridDimY * params->gridDimZ,
                         (uint64_t)params->blockDimX * params->blockDimY * params->blockDimZ,
                         params->sharedMemBytes, params->kernelParams, params->extra, &cmd));
    CUDA_KERNEL_NODE_PARAMS_v2 kept = *params;
    CU_TRY(cu_arguments_keep(&kept, &arguments));
    free(node->arguments); /* what was read back before may have come in again: it is copied now */
    node->arguments = arguments;
    node->cmd = cmd;
    node->as.kernel = kept;
    return CUDA_SUCCESS;
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

CUresult cu_node_copy(struct cu_node *node, const CUDA_MEMCPY3D *copy)
{
    struct sim_cmd cmd;
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_copy3d_cmd(copy, &cmd));
    node->cmd = cmd;
    node->as.copy = *copy;
    return CUDA_SUCCESS;
}

CUresult cu_node_set(struct cu_node *node, const CUDA_MEMSET_NODE_PARAMS *set)
{
    struct sim_cmd cmd;
    if (!set || !set->width || !set->height)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_fill2d_cmd(set, &cmd));
    node->cmd = cmd;
    node->as.set = *set;
    return CUDA_SUCCESS;
}

CUresult cu_node_host(struct cu_node *node, const CUDA_HOST_NODE_PARAMS *params)
{
    if (!params || !params->fn)
        return CUDA_ERROR_INVALID_VALUE;
    node->fn = params->fn;
    node->data = params->userData;
    return CUDA_SUCCESS;
}

/* ---- new nodes ---- */

CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                         size_t n, const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    struct cu_node *node;
    CU_TRY(cu_ready());
    CU_TRY(cu_graph_make(out, graph, after, n, CU_GRAPH_NODE_TYPE_KERNEL, &node));
    return cu_graph_keep(node, cu_node_kernel(node, params));
}

CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                      size_t n, const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS_v2 converted = cu_kernel_params(params);
    return cuGraphAddKernelNode_v2(out, graph, after, n, &converted);
}

CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                      size_t n, const CUDA_MEMCPY3D *copy, CUcontext ctx)
{
    struct cu_node *node;
    CU_TRY(cu_ready());
    if (ctx && !cu_handle_ok(CU_CTX, ctx))
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_graph_make(out, graph, after, n, CU_GRAPH_NODE_TYPE_MEMCPY, &node));
    return cu_graph_keep(node, cu_node_copy(node, copy));
}

CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                      size_t n, const CUDA_MEMSET_NODE_PARAMS *set, CUcontext ctx)
{
    struct cu_node *node;
    CU_TRY(cu_ready());
    if (ctx && !cu_handle_ok(CU_CTX, ctx))
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_graph_make(out, graph, after, n, CU_GRAPH_NODE_TYPE_MEMSET, &node));
    return cu_graph_keep(node, cu_node_set(node, set));
}

CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                    size_t n, const CUDA_HOST_NODE_PARAMS *params)
{
    struct cu_node *node;
    CU_TRY(cu_ready());
    CU_TRY(cu_graph_make(out, graph, after, n, CU_GRAPH_NODE_TYPE_HOST, &node));
    return cu_graph_keep(node, cu_node_host(node, params));
}

/* It is the parent's from now on, with its memory nodes, which no copy could have. */
static CUresult move_child(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n,
                           CUgraph child)
{
    struct cu_node *node;
    if (!cu_handle_ok(CU_GRAPH, child) || child == graph)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_graph_make(out, graph, after, n, CU_GRAPH_NODE_TYPE_GRAPH, &node));
    node->child = child;
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

/* ---- their parameters ---- */

static CUresult node_of(CUgraphNode handle, CUgraphNodeType type, struct cu_node **node)
{
    CU_TRY(cu_ready());
    *node = (struct cu_node *)handle;
    return cu_handle_ok(CU_NODE, *node) && (*node)->type == type ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphKernelNodeSetParams_v2(CUgraphNode handle,
                                               const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    struct cu_node *node;
    CU_TRY(node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, &node));
    return cu_node_kernel(node, params);
}

CUresult CUDAAPI cuGraphKernelNodeGetParams_v2(CUgraphNode handle,
                                               CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    struct cu_node *node;
    CU_TRY(node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, &node));
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    *params = node->as.kernel;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphKernelNodeSetParams(CUgraphNode handle,
                                            const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS_v2 converted = cu_kernel_params(params);
    return cuGraphKernelNodeSetParams_v2(handle, &converted);
}

CUresult CUDAAPI cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    CUDA_KERNEL_NODE_PARAMS_v2 wide;
    CU_TRY(cuGraphKernelNodeGetParams_v2(handle, params ? &wide : NULL));
    *params = (CUDA_KERNEL_NODE_PARAMS_v1){.func = wide.func,
                                           .gridDimX = wide.gridDimX,
                                           .gridDimY = wide.gridDimY,
                                           .gridDimZ = wide.gridDimZ,
                                           .blockDimX = wide.blockDimX,
                                           .blockDimY = wide.blockDimY,
                                           .blockDimZ = wide.blockDimZ,
                                           .sharedMemBytes = wide.sharedMemBytes,
                                           .kernelParams = wide.kernelParams,
                                           .extra = wide.extra};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D *params)
{
    struct cu_node *node;
    CU_TRY(node_of(handle, CU_GRAPH_NODE_TYPE_MEMCPY, &node));
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    *params = node->as.copy;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D *params)
{
    struct cu_node *node;
    CU_TRY(node_of(handle, CU_GRAPH_NODE_TYPE_MEMCPY, &node));
    return cu_node_copy(node, params);
}

CUresult CUDAAPI cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS *params)
{
    struct cu_node *node;
    CU_TRY(node_of(handle, CU_GRAPH_NODE_TYPE_MEMSET, &node));
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    *params = node->as.set;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphMemsetNodeSetParams(CUgraphNode handle,
                                            const CUDA_MEMSET_NODE_PARAMS *params)
{
    struct cu_node *node;
    CU_TRY(node_of(handle, CU_GRAPH_NODE_TYPE_MEMSET, &node));
    return cu_node_set(node, params);
}

CUresult CUDAAPI cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS *params)
{
    struct cu_node *node;
    CU_TRY(node_of(handle, CU_GRAPH_NODE_TYPE_HOST, &node));
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    *params = (CUDA_HOST_NODE_PARAMS){.fn = node->fn, .userData = node->data};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphHostNodeSetParams(CUgraphNode handle, const CUDA_HOST_NODE_PARAMS *params)
{
    struct cu_node *node;
    CU_TRY(node_of(handle, CU_GRAPH_NODE_TYPE_HOST, &node));
    return cu_node_host(node, params);
}
