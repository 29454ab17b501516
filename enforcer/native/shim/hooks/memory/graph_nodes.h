/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory nodes of graphs, from the launch's point of view; hooks/memory/graph_nodes.c.
 */
#ifndef QG_GRAPHMEM_H
#define QG_GRAPHMEM_H

#include "process/process.h"

struct qg_stream;

/* What a launch reserved on each of the first cards. */
struct qg_graph_need {
    unsigned cards;
    uint64_t bytes[QG_MAX_CARDS];
};

/* Before a launch or an upload, in the place of qg_fast() and qg_enter(): what its memory nodes may
 * take is reserved behind the gate, without a wait; where there is no room the gate is left, room
 * waited for, and all of it begun anew. False: a cap refuses. */
bool qg_graph_enter(CUgraphExec exec, CUstream handle, bool ptsz, bool launch,
                    struct qg_stream **stream, struct qg_graph_need *reserved);
void qg_graph_memory_after(CUgraphExec exec, const struct qg_graph_need *reserved);

#endif
