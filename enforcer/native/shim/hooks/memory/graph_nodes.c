/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of graphs with memory nodes. A node alone takes no memory. The driver reserves memory when
 * the executable graph is uploaded or first launched. It keeps that memory after the graph is gone,
 * and frees it when it is trimmed. The bytes that it has reserved for a card are one entry of the
 * allocation table.
 */
#include "hooks/memory/charge.h"
#include "gate/gate.h"
#include "hooks/memory/graph_nodes.h"
#include "memory/pools.h"
#include "window/window.h"
#include "memory/graph_memory.h"

#include <stdlib.h>

/* Levels of graphs within graphs. Chosen, not measured; deeper graphs with memory are refused. */
#define DEEP 1000

static bool looked_at(void)
{
    return __atomic_load_n(&qg_graph_memory.exists, __ATOMIC_ACQUIRE) && qg_governed && !qg_depth;
}

#define NODE(name, parameters, arguments, when)                                                    \
    CUresult name parameters                                                                       \
    {                                                                                              \
        CUresult result = QG_REAL(name) arguments;                                                 \
        if (result == CUDA_SUCCESS && (when))                                                      \
            qg_graph_memory_exists();                                                              \
        return result;                                                                             \
    }
#define AFTER const CUgraphNode *after
#define EDGES const CUgraphEdgeData *edges

NODE(cuGraphAddMemAllocNode,
     (CUgraphNode * node, CUgraph graph, AFTER, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p),
     (node, graph, after, n, p), true)
NODE(cuGraphAddNode, (CUgraphNode * node, CUgraph graph, AFTER, size_t n, CUgraphNodeParams *p),
     (node, graph, after, n, p), p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
NODE(cuGraphAddNode_v2,
     (CUgraphNode * node, CUgraph graph, AFTER, EDGES, size_t n, CUgraphNodeParams *p),
     (node, graph, after, edges, n, p), p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
NODE(cuGraphAddNode_v3,
     (CUgraphNode * node, CUgraph graph, AFTER, EDGES, size_t n, CUgraphNodeParams *p),
     (node, graph, after, edges, n, p), p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)

/* ---- what a graph may take ---- */

struct need {
    uint64_t bytes[QG_MAX_CARDS];
    /* on a card that was not granted, or of unknown size: refused at its launch */
    bool elsewhere;
};

static void add_graph(CUgraph graph, struct need *need, int depth);

static void add_node(CUgraphNode node, struct need *need, int depth)
{
    CUgraphNodeType type;
    CUgraph inner;
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    if (QG_REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
        QG_REAL(cuGraphChildGraphNodeGetGraph)(node, &inner) == CUDA_SUCCESS)
        add_graph(inner, need, depth + 1);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
        QG_REAL(cuGraphMemAllocNodeGetParams)(node, &params) != CUDA_SUCCESS)
        return;
    if (!qg_place_counts(&params.poolProps.location, params.poolProps.allocType))
        return; /* captured from a pool of the host */
    struct qg_card *card = card_at(&params.poolProps.location);
    uint64_t *bytes = card ? &need->bytes[card - qg_cards] : NULL;
    if (!bytes)
        need->elsewhere |= params.bytesize > 0;
    else if (__builtin_add_overflow(*bytes, params.bytesize, bytes))
        *bytes = UINT64_MAX;
}

static void add_graph(CUgraph graph, struct need *need, int depth)
{
    size_t count = 0;
    if (depth > DEEP)
        need->elsewhere = true;
    if (depth > DEEP || QG_REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return;
    CUgraphNode *nodes = calloc(count, sizeof(*nodes));
    need->elsewhere |= !nodes;
    if (nodes && QG_REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++)
            add_node(nodes[i], need, depth);
    free(nodes);
}

static struct need need_of(CUgraph graph)
{
    struct need need = {0};
    qg_depth++;
    add_graph(graph, &need, 0);
    qg_depth--;
    if (need.elsewhere)
        need.bytes[0] = UINT64_MAX;
    return need;
}

/* Key of the one entry of the allocation table per card. No handle is so high. */
static uint64_t key_on(CUgraphExec exec, unsigned card)
{
    return key_of(exec) ^ (uint64_t)card << 56;
}

static void note(CUgraphExec exec, const struct need *need)
{
    for (unsigned i = 0; i < QG_MAX_CARDS; i++) {
        if (!need->bytes[i])
            continue;
        if (i)
            __atomic_store_n(&qg_graph_memory.several, true, __ATOMIC_RELEASE);
        qg_record(&qg_cards[i], QG_KIND_EXEC, key_on(exec, i), 0, need->bytes[i]);
    }
}

static void instantiated(CUgraphExec exec, CUgraph graph)
{
    struct need need = need_of(graph);
    note(exec, &need);
}

#define INSTANTIATES(name, parameters, arguments)                                                  \
    CUresult name parameters                                                                       \
    {                                                                                              \
        CUresult result = QG_REAL(name) arguments;                                                 \
        if (result == CUDA_SUCCESS && looked_at())                                                 \
            instantiated(*exec, graph);                                                            \
        return result;                                                                             \
    }

#define WITH_LOG (CUgraphExec * exec, CUgraph graph, CUgraphNode * error, char *log, size_t size)
INSTANTIATES(cuGraphInstantiate, WITH_LOG, (exec, graph, error, log, size))
INSTANTIATES(cuGraphInstantiate_v2, WITH_LOG, (exec, graph, error, log, size))
INSTANTIATES(cuGraphInstantiateWithFlags,
             (CUgraphExec * exec, CUgraph graph, unsigned long long flags), (exec, graph, flags))

/* ---- launches ---- */

/* Times that a launch goes back to the gate because other threads took the room that it had found.
 * Chosen, not measured. */
#define ROUNDS 100u

/* Cards that a graph may have memory on. */
static unsigned cards(void)
{
    return __atomic_load_n(&qg_graph_memory.several, __ATOMIC_ACQUIRE) ? QG_MAX_CARDS : 1;
}

static void give_back(const struct qg_graph_need *reserved, unsigned cards)
{
    for (unsigned i = 0; i < cards; i++)
        if (reserved->bytes[i])
            qg_unreserve(&qg_cards[i], reserved->bytes[i]);
}

/* A launch that passes the gate does not wait for room. So its reservation is pending only as long
 * as the driver's call. */
static bool admit(struct qg_card *card, uint64_t size, uint64_t *reserved)
{
    if (!qg_reserve_now(card, size))
        return qg_graphs_spare(card, size);
    *reserved = size;
    return true;
}

/* Waits for room, as an allocation does, and takes none: the launch goes to the gate first. False:
 * a cap refuses. */
static bool make_room(struct qg_card *card, uint64_t size, unsigned round)
{
    if (round >= ROUNDS) {
        qg_refuse(card, size);
        return false;
    }
    if (qg_graphs_spare(card, size))
        return true;
    if (!qg_reserve(card, size))
        return false;
    qg_unreserve(card, size);
    return true;
}

/* Bytes of the card that a launch of it may take: none if it was launched since the last trim. */
static bool needs(CUgraphExec exec, unsigned card, struct qg_entry *entry)
{
    return qg_find_entry(QG_KIND_EXEC, key_on(exec, card), entry) &&
           entry->refs != __atomic_load_n(&qg_graph_memory.trims, __ATOMIC_ACQUIRE);
}

/* Reserves bytes after the gate, without waiting (entered: qg_enter() gave a stream). False: there
 * is no room now. */
static bool reserve(CUgraphExec exec, bool entered, struct qg_graph_need *reserved)
{
    struct qg_entry entry;
    reserved->cards = 0;
    if (QG_LIKELY(!__atomic_load_n(&qg_graph_memory.exists, __ATOMIC_ACQUIRE)) || !qg_governed ||
        (qg_depth && !entered))
        return true;
    for (unsigned i = 0; i < cards(); i++) {
        reserved->bytes[i] = 0;
        reserved->cards = i + 1;
        if (!needs(exec, i, &entry) ||
            admit(&qg_cards[entry.card], entry.size, &reserved->bytes[i]))
            continue;
        give_back(reserved, i);
        return false;
    }
    return true;
}

/* False: a cap refuses. */
static bool wait_for_room(CUgraphExec exec, unsigned round)
{
    struct qg_entry entry;
    for (unsigned i = 0; i < cards(); i++)
        if (needs(exec, i, &entry) && !make_room(&qg_cards[entry.card], entry.size, round))
            return false;
    return true;
}

/* The first card on which it needs memory. One that was launched since the last trim has it. */
static void look(CUgraphExec exec, struct qg_room *room)
{
    struct qg_entry entry;
    room->pages = NULL;
    for (unsigned i = 0; i < cards(); i++) {
        if (!needs(exec, i, &entry))
            continue;
        qg_room_look(room, &qg_cards[entry.card], entry.size);
        return;
    }
}

bool qg_graph_enter(CUgraphExec exec, CUstream handle, bool ptsz, bool launch,
                    struct qg_stream **stream, struct qg_graph_need *reserved, struct qg_room *room)
{
    if (QG_UNLIKELY(__atomic_load_n(&qg_graph_memory.exists, __ATOMIC_ACQUIRE)) && looked_at())
        look(exec, room);
    for (unsigned round = 0;; round++) {
        bool fast = launch && (qg_fast(handle) || qg_fast_default(handle, ptsz));
        *stream = fast ? NULL : qg_enter(handle, ptsz, launch ? exec : NULL, 0);
        if (QG_LIKELY(reserve(exec, *stream != NULL, reserved)))
            return true;
        qg_leave(*stream, CUDA_ERROR_OUT_OF_MEMORY);
        if (!wait_for_room(exec, round)) {
            qg_room_refused(room);
            return false;
        }
    }
}

void qg_graph_memory_after(CUgraphExec exec, const struct qg_graph_need *reserved, CUresult result)
{
    struct qg_entry entry;
    for (unsigned i = 0; i < reserved->cards; i++) {
        if (!qg_find_entry(QG_KIND_EXEC, key_on(exec, i), &entry)) {
            if (reserved->bytes[i]) /* another thread destroyed it meanwhile */
                qg_graphs_poll(&qg_cards[i], reserved->bytes[i]);
            continue;
        }
        qg_graphs_poll(&qg_cards[i], reserved->bytes[i]);
        int change = (int)(__atomic_load_n(&qg_graph_memory.trims, __ATOMIC_ACQUIRE) - entry.refs);
        if (change && result == CUDA_SUCCESS)
            qg_reopen(QG_KIND_EXEC, entry.key, change, &entry);
        qg_pools_stale();
    }
}

/* ---- uploads ---- */

static bool admit_all(const struct need *need, struct qg_graph_need *reserved)
{
    *reserved = (struct qg_graph_need){.cards = QG_MAX_CARDS};
    for (unsigned i = 0; i < QG_MAX_CARDS; i++) {
        if (!need->bytes[i] || admit(&qg_cards[i], need->bytes[i], &reserved->bytes[i]))
            continue;
        give_back(reserved, i);
        return false;
    }
    return true;
}

static void look_need(const struct need *need, struct qg_room *room)
{
    room->pages = NULL;
    for (unsigned i = 0; i < QG_MAX_CARDS; i++) {
        if (!need->bytes[i])
            continue;
        qg_room_look(room, &qg_cards[i], need->bytes[i]);
        return;
    }
}

/* Reserves the bytes of its memory nodes before the call, and asks for them after it. */
static CUresult upload_once(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p,
                            bool ptsz, struct qg_room *room)
{
    struct need need = looked_at() ? need_of(graph) : (struct need){0};
    struct qg_graph_need reserved;
    look_need(&need, room);
    struct qg_stream *seen;
    for (unsigned round = 0;; round++) {
        seen = qg_enter(p->hUploadStream, ptsz, NULL, 0);
        if (admit_all(&need, &reserved))
            break;
        qg_leave(seen, CUDA_ERROR_OUT_OF_MEMORY);
        for (unsigned i = 0; i < QG_MAX_CARDS; i++)
            if (need.bytes[i] && !make_room(&qg_cards[i], need.bytes[i], round))
                return qg_room_refused(room);
    }
    CUresult result = ptsz ? DIRECT(QG_REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, p))
                           : DIRECT(QG_REAL(cuGraphInstantiateWithParams)(exec, graph, p));
    qg_leave(seen, result);
    for (unsigned i = 0; i < QG_MAX_CARDS; i++)
        if (need.bytes[i])
            qg_graphs_poll(&qg_cards[i], reserved.bytes[i]);
    if (result == CUDA_SUCCESS)
        note(*exec, &need);
    return result;
}

static CUresult upload_at_once(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p,
                               bool ptsz)
{
    return QG_ROOMY(NULL, 0, upload_once(exec, graph, p, ptsz, &qg_room));
}

/* These may upload at once, which is work. */
#define INSTANTIATES_AND_UPLOADS(name, ptsz)                                                       \
    CUresult name(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)              \
    {                                                                                              \
        if (qg_governed && !qg_depth && p && (p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))      \
            return upload_at_once(exec, graph, p, ptsz);                                           \
        CUresult result = QG_REAL(name)(exec, graph, p);                                           \
        if (result == CUDA_SUCCESS && looked_at())                                                 \
            instantiated(*exec, graph);                                                            \
        return result;                                                                             \
    }

INSTANTIATES_AND_UPLOADS(cuGraphInstantiateWithParams, false)
INSTANTIATES_AND_UPLOADS(cuGraphInstantiateWithParams_ptsz, true)

#define UPLOADS(name, ptsz)                                                                        \
    CUresult name(CUgraphExec exec, CUstream stream)                                               \
    {                                                                                              \
        struct qg_graph_need reserved;                                                             \
        struct qg_room room = {0};                                                                 \
        struct qg_stream *seen;                                                                    \
        CUresult result;                                                                           \
        do {                                                                                       \
            result = CUDA_ERROR_OUT_OF_MEMORY;                                                     \
            if (!qg_graph_enter(exec, stream, ptsz, false, &seen, &reserved, &room))               \
                continue;                                                                          \
            result = QG_REAL(name)(exec, stream);                                                  \
            qg_leave(seen, result);                                                                \
            qg_graph_memory_after(exec, &reserved, result);                                        \
        } while (qg_room_again(&room, result));                                                    \
        return result;                                                                             \
    }

UPLOADS(cuGraphUpload, false)
UPLOADS(cuGraphUpload_ptsz, true)

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct qg_entry entries[QG_MAX_CARDS];
    unsigned known = 0, among = looked_at() ? cards() : 0;
    for (unsigned i = 0; i < among; i++)
        known += qg_detach(QG_KIND_EXEC, key_on(exec, i), &entries[known]);
    CUresult result = QG_REAL(cuGraphExecDestroy)(exec);
    if (result == CUDA_SUCCESS)
        qg_window_forget(exec);
    for (unsigned i = 0; i < known; i++) {
        if (result == CUDA_SUCCESS)
            qg_graphs_poll(&qg_cards[entries[i].card], 0);
        else
            qg_reattach(&entries[i]);
    }
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult result = QG_REAL(cuDeviceGraphMemTrim)(device);
    qg_graph_memory_trimmed();
    struct qg_card *card = qg_card_by_ordinal(device);
    if (looked_at() && card)
        qg_graphs_poll(card, 0);
    return result;
}
