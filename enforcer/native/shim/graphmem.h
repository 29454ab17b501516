/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory nodes of graphs, from the launch's point of view; hook_graphmem.c.
 */
#ifndef QG_GRAPHMEM_H
#define QG_GRAPHMEM_H

#include "shim.h"

/* What a launch reserved on each of the first cards. */
struct qg_graph_need {
    unsigned cards;
    uint64_t bytes[QG_MAX_CARDS];
};

/* A launch or upload of a graph with memory nodes reserves what it may take, behind the gate (entered: qg_enter() gave a
 * stream), where it waits for nothing. False: there is no room just now. Then the launch leaves the gate, and again() waits for
 * room: true: try anew from the gate on; false: a cap refuses. round: how often it was tried before. */
bool qg_graph_memory_before(CUgraphExec exec, bool entered, struct qg_graph_need *reserved);
bool qg_graph_memory_again(CUgraphExec exec, unsigned round);
void qg_graph_memory_after(CUgraphExec exec, const struct qg_graph_need *reserved);

/* A memory node was made (also by an allocation in a capture): from now on graphs are looked at. */
void qg_graph_memory_exists(void);

/* The driver took back what no graph was using: the next launch may need it again. */
void qg_graph_memory_trimmed(void);

void qg_graph_memory_after_fork(void);

#endif
