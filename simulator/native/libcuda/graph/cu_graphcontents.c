/* SPDX-License-Identifier: Apache-2.0
 *
 * What a node of a graph does to the contents of memory when it is launched.
 */
#include "cu_alloc.h"
#include "cu_copy.h"
#include "cu_graph.h"

/* Memory that was freed since the capture, and perhaps allocated again, has undefined contents. */
static CUresult moved(CUresult status)
{
    return status == CUDA_ERROR_OUT_OF_MEMORY ? status : CUDA_SUCCESS;
}

static CUresult captured_copy(const struct sim_cmd *cmd)
{
    bool there = (cmd->op == SIM_OP_DTOH || cu_memory_known(cmd->b)) &&
                 (cmd->op == SIM_OP_HTOD || cu_memory_known(cmd->c));
    return there ? moved(cu_memory_copy(cmd->b, cmd->c, cmd->a)) : CUDA_SUCCESS;
}

/* Contents of memory move at the launch. */
CUresult cu_node_contents(const struct cu_node *node)
{
    const struct sim_cmd *cmd = &node->cmd;
    if (node->has_copy)
        return cu_copy3d_contents(&node->as.copy);
    if (node->has_set)
        return cu_fill2d_contents(node->as.set.dst, node->as.set.pitch, node->as.set.value,
                                  node->as.set.elementSize, node->as.set.width,
                                  node->as.set.height);
    /* captured: destination and source */
    if (cmd->op >= SIM_OP_HTOD && cmd->op <= SIM_OP_DTOD && cmd->b)
        return captured_copy(cmd);
    if (cmd->op == SIM_OP_MEMSET && cmd->b) /* captured: destination, and value with width */
        return moved(cu_memory_fill(cmd->b, (uint32_t)cmd->c, (unsigned)(cmd->c >> 32),
                                    cmd->a / (cmd->c >> 32)));
    return CUDA_SUCCESS;
}
