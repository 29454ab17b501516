/* SPDX-License-Identifier: Apache-2.0
 *
 * What programs ask of graphs: their nodes, edges, and a picture.
 */
#include "cu_graph.h"
#include "cu_graphmem.h"

#include <stdio.h>

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
    const char *kernel =
        node->type == CU_GRAPH_NODE_TYPE_KERNEL && cu_handle_ok(CU_FUNCTION, node->as.kernel.func)
            ? node->as.kernel.func->name
            : "";
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
