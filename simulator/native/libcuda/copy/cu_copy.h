/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and fills of more than one dimension, as graphs need them too.
 */
#ifndef QGPU_SIM_CU_COPY_H
#define QGPU_SIM_CU_COPY_H

#include "cu.h"

/* cu_copy2d.c */
/* what it costs; checks all of it */
CUresult cu_copy3d_cmd(const CUDA_MEMCPY3D *copy, struct sim_cmd *cmd);
CUresult cu_fill2d_cmd(const CUDA_MEMSET_NODE_PARAMS *set, struct sim_cmd *cmd);
/* What the first two checked moves, unless memory that the driver knew then is gone. */
CUresult cu_copy3d_contents(const CUDA_MEMCPY3D *copy, const struct sim_cmd *cmd);
CUresult cu_fill2d_contents(const CUDA_MEMSET_NODE_PARAMS *set);
/* a box of one row, wherever its ends are */
CUDA_MEMCPY3D cu_copy_row(CUdeviceptr dst, CUdeviceptr src, size_t bytes);

#endif
