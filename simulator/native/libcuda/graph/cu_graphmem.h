/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory nodes of graphs, for captures, allocations and executable graphs.
 */
#ifndef QGPU_SIM_CU_GRAPHMEM_H
#define QGPU_SIM_CU_GRAPHMEM_H

#include "cu.h"

CUresult cu_graphmem_capture_alloc(CUdeviceptr *out, size_t bytes, CUmemoryPool pool,
                                   CUstream stream);
CUresult cu_graphmem_capture_free(CUdeviceptr ptr, CUstream stream);
CUresult cu_graphmem_instantiated(CUgraph graph, CUgraphExec exec);
bool cu_graphmem_used(CUgraphExec exec); /* it takes or frees memory */
CUresult cu_graphmem_before_launch(CUgraphExec exec);
/* frees_first: what the launch before left is freed, else the launch is refused */
CUresult cu_graphmem_launch(CUgraphExec exec, bool frees_first);
bool cu_graphmem_free(CUdeviceptr ptr, CUresult *status); /* false: no graph's memory */
void cu_graphmem_exec_gone(CUgraphExec exec);
void cu_graphmem_graph_gone(CUgraph graph);
size_t cu_graphmem_nodes(CUgraph graph, CUgraphNode *nodes, size_t room); /* how many there are */
bool cu_graphmem_node_type(CUgraphNode node, CUgraphNodeType *type);
void cu_graphmem_forget(CUcontext ctx);

/* cu_graphreserve.c */
CUresult cu_graphmem_need(CUgraphExec exec, CUdevice device, uint64_t bytes);
void cu_graphmem_unneeded(CUgraphExec exec);
void cu_graphmem_reserve_forget(CUcontext ctx);

#endif
