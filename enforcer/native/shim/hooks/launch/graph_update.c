/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of calls after which a handle of a function or an executable graph means other work than
 * before: what was learned about its duration is forgotten. (cuGraphExecDestroy is hooked with the
 * memory of graphs, the ends of modules with that of modules.)
 */
#include "window/window.h"

#define FORGETS(name, what, parameters, arguments)                                                 \
    CUresult name parameters                                                                       \
    {                                                                                              \
        CUresult result = QG_REAL(name) arguments;                                                 \
        if (qg_governed && result == CUDA_SUCCESS)                                                 \
            qg_window_forget(what);                                                                \
        return result;                                                                             \
    }

#define NODE(type) (CUgraphExec g, CUgraphNode n, type p)
FORGETS(cuGraphExecUpdate, g,
        (CUgraphExec g, CUgraph from, CUgraphNode *n, CUgraphExecUpdateResult *r), (g, from, n, r))
FORGETS(cuGraphExecUpdate_v2, g, (CUgraphExec g, CUgraph from, CUgraphExecUpdateResultInfo *r),
        (g, from, r))
FORGETS(cuGraphExecKernelNodeSetParams, g, NODE(const CUDA_KERNEL_NODE_PARAMS_v1 *), (g, n, p))
FORGETS(cuGraphExecKernelNodeSetParams_v2, g, NODE(const CUDA_KERNEL_NODE_PARAMS *), (g, n, p))
FORGETS(cuGraphExecMemcpyNodeSetParams, g,
        (CUgraphExec g, CUgraphNode n, const CUDA_MEMCPY3D *p, CUcontext c), (g, n, p, c))
FORGETS(cuGraphExecMemsetNodeSetParams, g,
        (CUgraphExec g, CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext c), (g, n, p, c))
FORGETS(cuGraphExecHostNodeSetParams, g, NODE(const CUDA_HOST_NODE_PARAMS *), (g, n, p))
FORGETS(cuGraphExecChildGraphNodeSetParams, g, NODE(CUgraph), (g, n, p))
FORGETS(cuGraphExecEventRecordNodeSetEvent, g, NODE(CUevent), (g, n, p))
FORGETS(cuGraphExecEventWaitNodeSetEvent, g, NODE(CUevent), (g, n, p))
FORGETS(cuGraphExecExternalSemaphoresSignalNodeSetParams, g,
        NODE(const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *), (g, n, p))
FORGETS(cuGraphExecExternalSemaphoresWaitNodeSetParams, g,
        NODE(const CUDA_EXT_SEM_WAIT_NODE_PARAMS *), (g, n, p))
FORGETS(cuGraphExecBatchMemOpNodeSetParams, g, NODE(const CUDA_BATCH_MEM_OP_NODE_PARAMS *),
        (g, n, p))
FORGETS(cuGraphExecNodeSetParams, g, NODE(CUgraphNodeParams *), (g, n, p))
FORGETS(cuGraphNodeSetEnabled, g, NODE(unsigned int), (g, n, p))
