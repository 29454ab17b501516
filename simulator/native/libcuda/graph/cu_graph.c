/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: their nodes and edges. See cu_graph.h.
 */
#include "cu_arguments.h"
#include "cu_graph.h"
#include "cu_graphmem.h"

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

static void free_node(struct cu_node *node)
{
    free(node->arguments);
    free(node->deps);
    cu_handle_free(CU_NODE, node);
}

void cu_graph_free(CUgraph graph)
{
    cu_graphmem_graph_gone(graph);
    cu_owned_release(&graph->owned, NULL);
    for (size_t i = 0; i < graph->count; i++) {
        struct cu_node *node = graph->nodes[i];
        if (node->child)
            cu_graph_free(node->child);
        free_node(node);
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
CUresult cu_graph_make(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n,
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

/* It is the newest. */
CUresult cu_graph_keep(struct cu_node *node, CUresult status)
{
    if (status != CUDA_SUCCESS) {
        node->graph->count--;
        free_node(node);
    }
    return status;
}

CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                     size_t n)
{
    struct cu_node *node;
    CU_TRY(cu_ready());
    return cu_graph_make(out, graph, after, n, CU_GRAPH_NODE_TYPE_EMPTY, &node);
}

void cu_node_become(struct cu_node *node, const struct cu_node *wanted)
{
    struct cu_node fresh = *wanted;
    fresh.magic = node->magic;
    fresh.graph = node->graph;
    fresh.index = node->index;
    fresh.deps = node->deps;
    fresh.ndeps = node->ndeps;
    *node = fresh;
}

static CUresult copy_into(CUgraph to, CUgraph from)
{
    CU_TRY(cu_owned_copy(&to->owned, from->owned));
    for (size_t i = 0; i < from->count; i++) {
        const struct cu_node *old = from->nodes[i];
        struct cu_node *node;
        CU_TRY(cu_graph_add(to, NULL, 0, old->type, &node));
        struct cu_node fresh = *old;
        fresh.origin = old;
        fresh.child = NULL;
        fresh.arguments = NULL;
        cu_node_become(node, &fresh);
        if (old->arguments)
            CU_TRY(cu_arguments_copy(&node->as.kernel, old->arguments, &node->arguments));
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

CUresult cu_graph_duplicate(CUgraph *out, CUgraph from)
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
    return out && cu_handle_ok(CU_GRAPH, from) ? cu_graph_duplicate(out, from)
                                               : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                          size_t n, CUgraph child)
{
    struct cu_node *node;
    CU_TRY(cu_ready());
    if (!cu_handle_ok(CU_GRAPH, child) || child == graph)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_graph_make(out, graph, after, n, CU_GRAPH_NODE_TYPE_GRAPH, &node));
    return cu_graph_keep(node, cu_graph_duplicate(&node->child, child));
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
