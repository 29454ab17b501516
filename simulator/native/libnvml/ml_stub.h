/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands for functions of NVML that are not simulated.
 */
#ifndef QGPU_SIM_ML_STUB_H
#define QGPU_SIM_ML_STUB_H

/* The answer of the function: NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_UNINITIALIZED, or the fault that
 * was asked for. */
int ml_stub(const char *function);

#endif
