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
/* Make a handle's context on the device, or end it there; the handle stays the caller's. */
CUresult cu_context_start(CUcontext ctx, unsigned flags, struct cu_device *device);
CUresult cu_context_end(CUcontext ctx);

/* cu_limit.c: a context begins with the usual limits; what they take goes with it */
void cu_limits_start(CUcontext ctx);

/* cu_primary.c */
CUresult cu_primary_handle(CUdevice dev, CUcontext *out);
struct cu_device *cu_primary_of(CUcontext ctx); /* NULL: no handle of a primary context */

/* cu_storage.c: what libraries keep by key in a context; without one it is the current one's */
typedef void cu_storage_end_fn(CUcontext ctx, void *key, void *value);
CUresult cu_storage_put(CUcontext ctx, void *key, void *value, cu_storage_end_fn *end);
CUresult cu_storage_get(void **value, CUcontext ctx, void *key);
CUresult cu_storage_delete(CUcontext ctx, void *key);
void cu_storage_end(CUcontext ctx); /* the context ends: each entry's function is called */

#define CU_FIRST_BUS 0x10 /* PCI bus of card 0; the others follow */

/* Of the simulated card, for occupancy and launches as well as for the program (cu_attribute.c). */
#define CU_SM_COUNT       132
#define CU_SM_THREADS     2048
#define CU_SM_BLOCKS      32
#define CU_SM_REGISTERS   65536
#define CU_SM_SHARED      233472
#define CU_BLOCK_THREADS  1024
#define CU_BLOCK_SHARED   49152
#define CU_BLOCK_OPTIN    232448
#define CU_BLOCK_RESERVED 1024 /* shared memory that each block takes beside its own */
#define CU_WARP           32

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
