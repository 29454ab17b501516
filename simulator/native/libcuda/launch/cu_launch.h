/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules, and kernels and host functions as commands of a stream.
 */
#ifndef QGPU_SIM_CU_LAUNCH_H
#define QGPU_SIM_CU_LAUNCH_H

#include "cu.h"

/* cu_launch.c */
CUresult cu_kernel_cmd(CUfunction f, uint64_t blocks, uint64_t threads, unsigned shared,
                       void **params, void **extra, struct sim_cmd *cmd);
CUresult cu_host_call(CUstream stream, CUhostFn fn, void *data);

/* cu_module.c */
CUresult cu_module_load(CUmodule *out, const void *image, bool library);
CUresult cu_module_load_file(CUmodule *out, const char *path, bool library);
void cu_module_unload(CUmodule module);
bool cu_module_eager(void); /* CUDA_MODULE_LOADING=EAGER: a library is loaded at once */
CUresult cu_module_find(CUfunction *out, CUmodule module, const char *name);
/* up to most of its functions: the kernels of a module that could be read */
CUresult cu_module_list(CUfunction *out, unsigned most, CUmodule module);

/* cu_globals.c: memory of a module's variables in a context, taken once; without a context (NULL)
 * only that of managed ones */
CUresult cu_globals_load(CUmodule module, CUcontext ctx);
/* of a library, when a function of it is first needed in a context; NULL: in none */
CUresult cu_globals_use(CUmodule module, CUcontext ctx);
void cu_globals_unload(CUmodule module);
CUresult cu_globals_find(CUdeviceptr *ptr, size_t *bytes, CUmodule module, CUcontext ctx,
                         const char *name, bool managed_only);

/* cu_function.c */
CUresult cu_function_ok(CUfunction f);
void cu_function_fill(CUfunction f);

/* cu_occupancy.c: blocks that a multiprocessor runs at a time; 0: the block does not fit */
unsigned cu_blocks_per_sm(CUfunction f, uint64_t threads, size_t dynamic);

#endif
