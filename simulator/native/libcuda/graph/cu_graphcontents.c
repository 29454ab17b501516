/* SPDX-License-Identifier: Apache-2.0
 *
 * What a node of a graph does to the contents of memory when it is launched.
 */
#include "cu_copy.h"
#include "cu_graph.h"

/* Memory that was freed since, and perhaps allocated again, has undefined contents. */
static CUresult moved(CUresult status)
{
    return status == CUDA_ERROR_OUT_OF_MEMORY ? status : CUDA_SUCCESS;
}

/* Contents of memory move at the launch. */
CUresult cu_node_contents(const struct cu_node *node)
{
    if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        return moved(cu_copy3d_contents(&node->as.copy, &node->cmd));
    if (node->type == CU_GRAPH_NODE_TYPE_MEMSET)
        return moved(cu_fill2d_contents(&node->as.set));
    return CUDA_SUCCESS;
}
