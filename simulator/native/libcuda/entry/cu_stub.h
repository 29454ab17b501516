/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands for functions of the driver that are not simulated.
 */
#ifndef QGPU_SIM_CU_STUB_H
#define QGPU_SIM_CU_STUB_H

/* The answer of the function: CUDA_ERROR_NOT_SUPPORTED, or the fault that was asked for. */
int cu_stub(const char *function);

#endif
