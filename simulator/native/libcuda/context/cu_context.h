/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts, parts of a card (green contexts), and devices.
 */
#ifndef QGPU_SIM_CU_CONTEXT_H
#define QGPU_SIM_CU_CONTEXT_H

#include "cu.h"

/* cu_ctx.c */
CUresult cu_current_in(const char *function, CUcontext *ctx);
#define cu_current(ctx) cu_current_in(__func__, ctx)
CUresult cu_sticky(CUcontext ctx); /* the error that the context is in, CUDA_SUCCESS: none */

/* cu_device.c */
CUresult cu_device_of(CUdevice dev, struct cu_device **device);

/* cu_green.c */
bool cu_green_ok(CUgreenCtx green);
CUcontext cu_green_context(CUgreenCtx green);
/* the context that it is a part of */
CUresult cu_green_primary(CUgreenCtx green, CUcontext *primary);
/* the calling thread's; NULL: none */
CUgreenCtx cu_green_current(void);

#endif
