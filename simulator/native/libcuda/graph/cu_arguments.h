/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of kernels that nodes of graphs own.
 */
#ifndef QGPU_SIM_CU_ARGUMENTS_H
#define QGPU_SIM_CU_ARGUMENTS_H

#include "cu.h"

/* Copies what the parameters point to, and lets them point there. owned: what free() takes; NULL:
 * there are none, or the kernel's image does not tell their sizes. */
CUresult cu_arguments_keep(CUDA_KERNEL_NODE_PARAMS_v2 *params, void **owned);

/* Of parameters that are a copy of those that own `from`: the same for the copy. */
CUresult cu_arguments_copy(CUDA_KERNEL_NODE_PARAMS_v2 *params, const void *from, void **owned);

#endif
