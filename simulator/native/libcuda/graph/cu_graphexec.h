/* SPDX-License-Identifier: Apache-2.0
 *
 * Executable graphs, as cu_graphexec.c makes and launches them and cu_graphupdate.c changes them.
 */
#ifndef QGPU_SIM_CU_GRAPHEXEC_H
#define QGPU_SIM_CU_GRAPHEXEC_H

#include "cu_graph.h"

#define CU_BRANCHES 32u /* more run one after the other in the last one */

struct cu_item {
    struct cu_node *node;         /* of the executable graph's own copy */
    const struct cu_node *origin; /* in the graph that it was made of */
    size_t *deps, ndeps;          /* earlier items */
    unsigned branch;
    uint64_t seq; /* of the newest launch */
};

struct CUgraphExec_st {
    enum cu_magic magic;
    CUgraph graph; /* its own copy */
    struct cu_item *items;
    size_t count;
    unsigned nbranches;
    unsigned long long flags;
    CUstream streams[CU_BRANCHES]; /* of branches from 1 */
    CUcontext ctx;                 /* where they are */
    CUstream last_stream;          /* of the newest launch */
    struct cu_owned *owned;        /* references to user objects */
    pthread_mutex_t lock;
};

_Static_assert(sizeof(struct CUgraphExec_st) <= CU_EXEC_SIZE, "the arena's items are too small");

/* cu_graphexec.c */
CUresult cu_graph_instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags);
/* Where its newest launch is; NULL: there is none, or nothing of it can still run. */
CUstream cu_graph_busy_in(CUgraphExec exec);

#endif
