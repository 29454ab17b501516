/* SPDX-License-Identifier: Apache-2.0
 *
 * First and newest forms of calls whose work is done elsewhere.
 */
#include "cu.h"

CUresult CUDAAPI cuStreamBeginCapture(CUstream stream)
{
    return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream stream)
{
    return cuStreamBeginCapture_v2_ptsz(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult CUDAAPI cuGraphAddNode_v3(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                   const CUgraphEdgeData *edges, size_t n,
                                   CUgraphNodeParams *params)
{
    return cuGraphAddNode_v2(out, graph, after, edges, n, params);
}
