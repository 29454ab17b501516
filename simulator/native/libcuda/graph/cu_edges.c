/* SPDX-License-Identifier: Apache-2.0
 *
 * Edges of graphs with their data, and in both directions. All edges are full dependencies here, so
 * their data is 0.
 */
#include "cu_graph.h"

#include <string.h>

/* A caller that has no place for the data may not lose any: there is none to lose. */
static void full_dependencies(CUgraphEdgeData *data, size_t n)
{
    if (data)
        memset(data, 0, n * sizeof *data);
}

CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
                                    CUgraphEdgeData *data, size_t *n)
{
    if (data && !from)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cuGraphGetEdges(graph, from, to, n));
    full_dependencies(data, *n);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes,
                                               CUgraphEdgeData *data, size_t *n)
{
    if (data && !nodes)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cuGraphNodeGetDependencies(node, nodes, n));
    full_dependencies(data, *n);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode *nodes, size_t *n)
{
    struct cu_node *node = (struct cu_node *)handle;
    size_t found = 0;
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_NODE, node) || !n)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < node->graph->count; i++) {
        struct cu_node *other = node->graph->nodes[i];
        for (size_t k = 0; k < other->ndeps; k++)
            if (other->deps[k] == node && found++ < *n && nodes)
                nodes[found - 1] = (CUgraphNode)other;
    }
    *n = nodes && found > *n ? *n : found;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes,
                                                 CUgraphEdgeData *data, size_t *n)
{
    if (data && !nodes)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cuGraphNodeGetDependentNodes(node, nodes, n));
    full_dependencies(data, *n);
    return CUDA_SUCCESS;
}
