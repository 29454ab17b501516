/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture: a command of a capturing stream becomes a node of a graph.
 */
#ifndef QGPU_SIM_CU_CAPTURE_H
#define QGPU_SIM_CU_CAPTURE_H

#include "cu.h"

/* cu_capture.c */
CUresult cu_capture(CUstream stream, const struct sim_cmd *cmd); /* a word, else refused */
CUresult cu_capture_kernel(CUstream stream, const CUDA_KERNEL_NODE_PARAMS_v2 *params);
CUresult cu_capture_copy(CUstream stream, const CUDA_MEMCPY3D *copy);
CUresult cu_capture_set(CUstream stream, const CUDA_MEMSET_NODE_PARAMS *set);
CUresult cu_capture_host(CUstream stream, CUhostFn fn, void *data);
CUresult cu_capture_child(CUstream stream, CUgraph child); /* taken over, unless refused */
CUresult cu_capture_record(CUevent event, CUstream stream);
CUresult cu_capture_wait(CUstream stream, CUevent event);
CUresult cu_capture_unsafe(void); /* of calls that may synchronise */
bool cu_event_captured(CUevent event);
void cu_front_drop(struct cu_front **front);

#endif
