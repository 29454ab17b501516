/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory nodes of graphs, from the launch's point of view; hooks/memory/graph_nodes.c.
 */
#ifndef QG_GRAPHMEM_H
#define QG_GRAPHMEM_H

#include "gate/room.h"

struct qg_stream;

/* What a launch reserved on each of the first cards. */
struct qg_graph_need {
    unsigned cards;
    uint64_t bytes[QG_MAX_CARDS];
};

/* Used before a launch or an upload instead of qg_fast() and qg_enter(). It passes the gate and
 * reserves the bytes of the graph's memory nodes without waiting. If there is no room, it leaves
 * the gate, waits for room and begins anew. False: the cap refuses. room: of the whole launch. */
bool qg_graph_enter(CUgraphExec exec, CUstream handle, bool ptsz, bool launch,
                    struct qg_stream **stream, struct qg_graph_need *reserved,
                    struct qg_room *room);
/* A graph that the driver refused does not have its memory: the next launch is admitted again. */
void qg_graph_memory_after(CUgraphExec exec, const struct qg_graph_need *reserved, CUresult result);

#endif
