/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels and host functions as commands of a stream.
 */
#ifndef QGPU_SIM_CU_LAUNCH_H
#define QGPU_SIM_CU_LAUNCH_H

#include "cu.h"

/* cu_launch.c */
CUresult cu_kernel_cmd(CUfunction f, uint64_t blocks, uint64_t threads, void **params, void **extra,
                       struct sim_cmd *cmd);
CUresult cu_host_call(CUstream stream, CUhostFn fn, void *data);

#endif
