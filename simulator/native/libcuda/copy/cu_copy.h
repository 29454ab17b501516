/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and fills of more than one dimension, as graphs need them too.
 */
#ifndef QGPU_SIM_CU_COPY_H
#define QGPU_SIM_CU_COPY_H

#include "cu.h"

/* cu_copy2d.c */
/* what it costs; checks it too */
CUresult cu_copy3d_cmd(const CUDA_MEMCPY3D *copy, struct sim_cmd *cmd);
CUresult cu_copy3d_contents(const CUDA_MEMCPY3D *copy);
CUresult cu_fill2d_contents(CUdeviceptr dst, size_t pitch, unsigned value, unsigned width,
                            size_t columns, size_t rows);

#endif
