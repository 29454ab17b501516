/* SPDX-License-Identifier: Apache-2.0
 *
 * What programs ask of graphs and nodes, and new parameters of nodes.
 */
#include "cu_graph.h"
#include "cu_graphmem.h"

#include <stdio.h>

static CUresult node_of(CUgraphNode handle, CUgraphNodeType type, struct cu_node **node)
{
    CU_TRY(cu_ready());
    *node = (struct cu_node *)handle;
    return cu_handle_ok(CU_NODE, *node) && (*node)->type == type ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_VALUE;
}

/* ---- parameters ---- */

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
    if (!params || !node->has_kernel)
        /* a captured launch keeps its cost alone */
        return params ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
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
    const struct sim_cmd *cmd = &node->cmd; /* a captured one is linear */
    *params = node->has_copy ? node->as.copy
                             : (CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                                               .dstDevice = cmd->b,
                                               .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                                               .srcDevice = cmd->c,
                                               .WidthInBytes = cmd->a,
                                               .Height = 1,
                                               .Depth = 1};
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
    const struct sim_cmd *cmd = &node->cmd; /* a captured one: destination, value with width */
    unsigned width = (unsigned)(cmd->c >> 32);
    *params = node->has_set ? node->as.set
                            : (CUDA_MEMSET_NODE_PARAMS){.dst = cmd->b,
                                                        .value = (unsigned)cmd->c,
                                                        .elementSize = width,
                                                        .width = width ? cmd->a / width : 0,
                                                        .height = 1};
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
    if (!params || !params->fn)
        return CUDA_ERROR_INVALID_VALUE;
    node->fn = params->fn;
    node->data = params->userData;
    return CUDA_SUCCESS;
}

/* ---- queries ---- */

CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_GRAPH, graph) || !n)
        return CUDA_ERROR_INVALID_VALUE;
    size_t room = nodes ? *n : 0, mine = graph->count < room ? graph->count : room;
    for (size_t i = 0; i < mine; i++)
        nodes[i] = (CUgraphNode)graph->nodes[i];
    size_t others = cu_graphmem_nodes(graph, nodes + mine, room - mine),
           total = graph->count + others;
    *n = nodes && total > room ? room : total;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
    size_t found = 0;
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_GRAPH, graph) || !n)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->count; i++)
        if (!graph->nodes[i]->ndeps && found++ < *n && nodes)
            nodes[found - 1] = (CUgraphNode)graph->nodes[i];
    *n = nodes && found > *n ? *n : found;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type)
{
    const struct cu_node *node = (const struct cu_node *)handle;
    CU_TRY(cu_ready());
    if (!type)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cu_handle_ok(CU_NODE, node))
        return cu_graphmem_node_type(handle, type) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode *deps, size_t *n)
{
    const struct cu_node *node = (const struct cu_node *)handle;
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_NODE, node) || !n)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; deps && i < node->ndeps && i < *n; i++)
        deps[i] = (CUgraphNode)node->deps[i];
    *n = deps && node->ndeps > *n ? *n : node->ndeps;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *n)
{
    size_t found = 0;
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_GRAPH, graph) || !n || !from != !to)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->count; i++)
        for (size_t k = 0; k < graph->nodes[i]->ndeps; k++, found++)
            if (from && found < *n) {
                from[found] = (CUgraphNode)graph->nodes[i]->deps[k];
                to[found] = (CUgraphNode)graph->nodes[i];
            }
    *n = from && found > *n ? *n : found;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode *out, size_t *n)
{
    const struct cu_node *node = (const struct cu_node *)handle;
    size_t found = 0;
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_NODE, node) || !n)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < node->graph->count; i++)
        for (size_t k = 0; k < node->graph->nodes[i]->ndeps; k++)
            if (node->graph->nodes[i]->deps[k] == node && found++ < *n && out)
                out[found - 1] = (CUgraphNode)node->graph->nodes[i];
    *n = out && found > *n ? *n : found;
    return CUDA_SUCCESS;
}

/* Every edge is a full dependency, which is all zero. */
static void plain(CUgraphEdgeData *edges, const size_t *n)
{
    for (size_t i = 0; edges && i < *n; i++)
        edges[i] = (CUgraphEdgeData){0};
}

CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *deps,
                                               CUgraphEdgeData *edges, size_t *n)
{
    if (edges && !deps)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cuGraphNodeGetDependencies(node, deps, n));
    plain(edges, n);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *out,
                                                 CUgraphEdgeData *edges, size_t *n)
{
    if (edges && !out)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cuGraphNodeGetDependentNodes(node, out, n));
    plain(edges, n);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
                                    CUgraphEdgeData *edges, size_t *n)
{
    if (edges && !from)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cuGraphGetEdges(graph, from, to, n));
    plain(edges, n);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode original, CUgraph clone)
{
    CU_TRY(cu_ready());
    if (!out || !cu_handle_ok(CU_GRAPH, clone) || !cu_handle_ok(CU_NODE, original))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < clone->count; i++)
        if ((CUgraphNode)clone->nodes[i]->origin == original) {
            *out = (CUgraphNode)clone->nodes[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- a picture ---- */

static void print_node(FILE *file, const struct cu_node *node)
{
    static const char *const names[] = {"KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY"};
    const char *type = node->type < sizeof names / sizeof *names ? names[node->type] : "OTHER";
    const char *kernel = node->has_kernel && node->as.kernel.func ? node->as.kernel.func->name : "";
    fprintf(file, "  \"node_%zu\" [label=\"%zu %s%s", node->index, node->index, type,
            *kernel ? " " : "");
    for (; *kernel; kernel++) /* no byte of a name may end the string */
        fputc(*kernel == '"' || *kernel == '\\' || (unsigned char)*kernel < ' ' ? '_' : *kernel,
              file);
    fprintf(file, "\"];\n");
    for (size_t k = 0; k < node->ndeps; k++)
        fprintf(file, "  \"node_%zu\" -> \"node_%zu\";\n", node->deps[k]->index, node->index);
}

CUresult CUDAAPI cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags)
{
    (void)flags; /* how much is said of each node */
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_GRAPH, graph) || !path)
        return CUDA_ERROR_INVALID_VALUE;
    FILE *file = fopen(path, "we");
    if (!file)
        return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(file, "digraph graph_1 {\n");
    for (size_t i = 0; i < graph->count; i++)
        print_node(file, graph->nodes[i]);
    fprintf(file, "}\n");
    bool written = !ferror(file);
    return fclose(file) == 0 && written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
