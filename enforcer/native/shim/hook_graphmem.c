/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of graphs with memory nodes. A node is only a wish; the driver reserves memory when the executable graph is
 * uploaded or first launched, keeps it after the graph is gone, and gives it back when it is trimmed. What it has
 * reserved for a card is one entry of the books.
 */
#include "charge.h"
#include "gate.h"
#include "graphmem.h"
#include "pools.h"
#include "window.h"

#include <stdlib.h>

#define DEEP 8 /* graphs within graphs; CUDA allows fewer */

static bool exists;        /* atomic */
static uint32_t trims = 1; /* atomic: an exec whose refs are this was launched since the last trim, so it has its memory */

void qg_graph_memory_exists(void)
{
    __atomic_store_n(&exists, true, __ATOMIC_RELEASE);
}

void qg_graph_memory_after_fork(void)
{
    exists = false;
}

void qg_graph_memory_trimmed(void)
{
    __atomic_add_fetch(&trims, 1, __ATOMIC_RELEASE);
}

static bool looked_at(void)
{
    return __atomic_load_n(&exists, __ATOMIC_ACQUIRE) && qg_governed && !qg_depth;
}

#define NODE(name, parameters, arguments, when)                               \
    CUresult name parameters                                                  \
    {                                                                         \
        CUresult result = QG_REAL(name) arguments;                            \
        if (result == CUDA_SUCCESS && (when))                                 \
            qg_graph_memory_exists();                                         \
        return result;                                                        \
    }
#define AFTER const CUgraphNode *after
#define EDGES const CUgraphEdgeData *edges

NODE(cuGraphAddMemAllocNode, (CUgraphNode *node, CUgraph graph, AFTER, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p),
     (node, graph, after, n, p), true)
NODE(cuGraphAddNode, (CUgraphNode *node, CUgraph graph, AFTER, size_t n, CUgraphNodeParams *p),
     (node, graph, after, n, p), p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
NODE(cuGraphAddNode_v2, (CUgraphNode *node, CUgraph graph, AFTER, EDGES, size_t n, CUgraphNodeParams *p),
     (node, graph, after, edges, n, p), p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
NODE(cuGraphAddNode_v3, (CUgraphNode *node, CUgraph graph, AFTER, EDGES, size_t n, CUgraphNodeParams *p),
     (node, graph, after, edges, n, p), p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)

/* ---- what a graph may take ---------------------------------------------------------------------------------- */

struct need {
    struct qg_card *card; /* graphs have their memory on one device */
    uint64_t bytes;
};

static void add_graph(CUgraph graph, struct need *need, int depth);

static void add_node(CUgraphNode node, struct need *need, int depth)
{
    CUgraphNodeType type;
    CUgraph inner;
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    if (QG_REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && QG_REAL(cuGraphChildGraphNodeGetGraph)(node, &inner) == CUDA_SUCCESS)
        add_graph(inner, need, depth + 1);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || QG_REAL(cuGraphMemAllocNodeGetParams)(node, &params) != CUDA_SUCCESS)
        return;
    if (!qg_place_counts(&params.poolProps.location, params.poolProps.allocType))
        return; /* captured from a pool of the host */
    need->card = card_at(&params.poolProps.location);
    if (__builtin_add_overflow(need->bytes, params.bytesize, &need->bytes))
        need->bytes = UINT64_MAX;
}

static void add_graph(CUgraph graph, struct need *need, int depth)
{
    size_t count = 0;
    if (depth > DEEP || QG_REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return;
    CUgraphNode *nodes = calloc(count, sizeof(*nodes));
    if (nodes && QG_REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++)
            add_node(nodes[i], need, depth);
    free(nodes);
}

static void instantiated(CUgraphExec exec, CUgraph graph)
{
    struct need need = {0};
    qg_depth++;
    add_graph(graph, &need, 0);
    qg_depth--;
    if (!need.bytes)
        return;
    if (!need.card) /* on a card that was not granted: refused at its launch */
        need = (struct need){&qg_cards[0], UINT64_MAX};
    qg_note(need.card, QG_KIND_EXEC, key_of(exec), 0, need.bytes);
}

#define INSTANTIATES(name, parameters, arguments)                             \
    CUresult name parameters                                                  \
    {                                                                         \
        CUresult result = QG_REAL(name) arguments;                            \
        if (result == CUDA_SUCCESS && looked_at())                            \
            instantiated(*exec, graph);                                       \
        return result;                                                        \
    }

#define WITH_LOG (CUgraphExec * exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
INSTANTIATES(cuGraphInstantiate, WITH_LOG, (exec, graph, error, log, size))
INSTANTIATES(cuGraphInstantiate_v2, WITH_LOG, (exec, graph, error, log, size))
INSTANTIATES(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
             (exec, graph, flags))

/* These may upload at once. */
#define WITH_PARAMS (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
#define INSTANTIATES_AND_UPLOADS(name)                                        \
    CUresult name WITH_PARAMS                                                 \
    {                                                                         \
        struct need need = {0};                                               \
        if (!looked_at() || !p || !(p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) { \
            CUresult result = QG_REAL(name)(exec, graph, p);                  \
            if (result == CUDA_SUCCESS && looked_at())                        \
                instantiated(*exec, graph);                                   \
            return result;                                                    \
        }                                                                     \
        qg_depth++;                                                           \
        add_graph(graph, &need, 0);                                           \
        qg_depth--;                                                           \
        if (need.bytes && !qg_reserve(need.card, need.bytes))                 \
            return CUDA_ERROR_OUT_OF_MEMORY;                                  \
        CUresult result = DIRECT(QG_REAL(name)(exec, graph, p));              \
        if (need.bytes)                                                       \
            qg_graphs_look(need.card, need.bytes);                            \
        if (need.bytes && result == CUDA_SUCCESS)                             \
            qg_note(need.card, QG_KIND_EXEC, key_of(*exec), 0, need.bytes);   \
        return result;                                                        \
    }

INSTANTIATES_AND_UPLOADS(cuGraphInstantiateWithParams)
INSTANTIATES_AND_UPLOADS(cuGraphInstantiateWithParams_ptsz)

/* ---- launches ----------------------------------------------------------------------------------------------- */

bool qg_graph_memory_before(CUgraphExec exec, uint64_t *reserved)
{
    struct qg_entry entry;
    *reserved = 0;
    if (QG_LIKELY(!looked_at()) || !qg_look(QG_KIND_EXEC, key_of(exec), &entry))
        return true;
    struct qg_card *card = &qg_cards[entry.card];
    if (qg_reserve_now(card, entry.size))
        *reserved = entry.size;
    else if (!qg_graphs_spare(card, entry.size) && entry.refs != __atomic_load_n(&trims, __ATOMIC_ACQUIRE)) {
        if (!qg_reserve(card, entry.size))
            return false;
        *reserved = entry.size;
    }
    return true;
}

void qg_graph_memory_after(CUgraphExec exec, uint64_t reserved)
{
    struct qg_entry entry;
    if (QG_LIKELY(!looked_at()) || !qg_look(QG_KIND_EXEC, key_of(exec), &entry))
        return;
    qg_graphs_look(&qg_cards[entry.card], reserved);
    int change = (int)(__atomic_load_n(&trims, __ATOMIC_ACQUIRE) - entry.refs);
    if (change)
        qg_reopen(QG_KIND_EXEC, entry.key, change, &entry);
    qg_pools_stale();
}

#define UPLOADS(name, ptsz)                                                   \
    CUresult name(CUgraphExec exec, CUstream stream)                          \
    {                                                                         \
        uint64_t reserved;                                                    \
        if (!qg_graph_memory_before(exec, &reserved))                         \
            return CUDA_ERROR_OUT_OF_MEMORY;                                  \
        struct qg_stream *seen = qg_enter(stream, ptsz, NULL, 0);             \
        CUresult result = QG_REAL(name)(exec, stream);                        \
        qg_leave(seen);                                                       \
        qg_graph_memory_after(exec, reserved);                                \
        return result;                                                        \
    }

UPLOADS(cuGraphUpload, false)
UPLOADS(cuGraphUpload_ptsz, true)

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct qg_entry entry;
    bool known = looked_at() && qg_take(QG_KIND_EXEC, key_of(exec), &entry);
    CUresult result = QG_REAL(cuGraphExecDestroy)(exec);
    if (result == CUDA_SUCCESS)
        qg_window_forget(exec);
    if (known && result == CUDA_SUCCESS)
        qg_graphs_look(&qg_cards[entry.card], 0);
    else if (known)
        qg_restore(&entry);
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult result = QG_REAL(cuDeviceGraphMemTrim)(device);
    qg_graph_memory_trimmed();
    struct qg_card *card = qg_card_by_ordinal(device);
    if (looked_at() && card)
        qg_graphs_look(card, 0);
    return result;
}
