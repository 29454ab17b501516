/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs of the simulator: nodes with dependencies (cu_graph.c) and what they do (cu_graphnode.c),
 * executable graphs (cu_graphexec.c) and stream capture (cu_capture.c). Memory nodes are
 * cu_graphmem.c's; they take no time and no part in the order.
 */
#ifndef QGPU_SIM_CU_GRAPH_H
#define QGPU_SIM_CU_GRAPH_H

#include "cu_alloc.h"
#include "cu_owned.h"

struct cu_node { /* CUgraphNode points to one */
    enum cu_magic magic;
    CUgraphNodeType type;
    CUgraph graph;
    size_t index; /* in the graph */
    struct cu_node **deps;
    size_t ndeps;
    struct sim_cmd cmd;           /* op 0: takes no time on the card */
    CUgraph child;                /* of a child node: a graph of its own */
    const struct cu_node *origin; /* what it is a copy of, in cuGraphClone() */
    CUhostFn fn;
    void *data;
    void *arguments; /* owned: what as.kernel points to, cu_arguments.c */
    union {          /* by type */
        CUDA_KERNEL_NODE_PARAMS_v2 kernel;
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS set;
    } as;
};

struct CUgraph_st {
    enum cu_magic magic;
    struct cu_node **nodes;
    size_t count, room;
    CUstream capturing; /* the stream whose capture makes it */
    uint64_t capture_id;
    CUstreamCaptureMode mode;
    bool invalid;      /* the capture is */
    CUstream *members; /* streams that take part in the capture */
    size_t nmembers;
    struct cu_owned *owned; /* references to user objects */
};

_Static_assert(sizeof(struct cu_node) <= CU_NODE_SIZE && sizeof(struct CUgraph_st) <= 256,
               "the arena's items are too small");

/* what the next captured command of a stream, or a waiter of an event, depends on */
struct cu_front {
    struct cu_node **nodes;
    size_t count;
};

/* cu_graph.c: a node without parameters yet */
CUresult cu_graph_add(CUgraph graph, struct cu_node *const *deps, size_t ndeps,
                      CUgraphNodeType type, struct cu_node **out);
/* the same for the program, whose list of dependencies is checked */
CUresult cu_graph_make(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n,
                       CUgraphNodeType type, struct cu_node **node);
/* the node of the call before goes again if its parameters were refused (status) */
CUresult cu_graph_keep(struct cu_node *node, CUresult status);
/* takes over what the other one does and owns, but not its place in a graph */
void cu_node_become(struct cu_node *node, const struct cu_node *wanted);
CUresult cu_graph_new(CUgraph *out);
CUresult cu_graph_duplicate(CUgraph *out, CUgraph from); /* all but its memory nodes */
void cu_graph_free(CUgraph graph);

/* cu_graphnode.c: what a node does; refused, it does what it did before */
CUresult cu_node_kernel(struct cu_node *node, const CUDA_KERNEL_NODE_PARAMS_v2 *params);
CUresult cu_node_copy(struct cu_node *node, const CUDA_MEMCPY3D *copy);
CUresult cu_node_set(struct cu_node *node, const CUDA_MEMSET_NODE_PARAMS *set);
CUresult cu_node_host(struct cu_node *node, const CUDA_HOST_NODE_PARAMS *params);
CUDA_KERNEL_NODE_PARAMS_v2 cu_kernel_params(const CUDA_KERNEL_NODE_PARAMS_v1 *old);

/* cu_graphcontents.c */
CUresult cu_node_contents(const struct cu_node *node);

#endif
