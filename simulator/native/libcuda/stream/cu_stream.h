/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, events, and the ring through which commands reach the card.
 */
#ifndef QGPU_SIM_CU_STREAM_H
#define QGPU_SIM_CU_STREAM_H

#include "cu.h"

/* cu_stream.c */
CUresult cu_stream_get(CUstream handle, bool per_thread, CUstream *stream);
CUresult cu_stream_new(CUcontext ctx, unsigned flags, CUstream *out);
void cu_stream_setup(CUstream stream, CUcontext ctx, uint32_t slot, unsigned flags);

/* cu_ipc_event.c: of events that have an ipc */
void cu_ipc_record(CUevent event, uint32_t stream, uint64_t seq);
CUresult cu_ipc_wait(CUstream stream, CUevent event);
CUresult cu_ipc_query(CUevent event);
CUresult cu_ipc_synchronize(CUevent event);
void cu_ipc_end(struct cu_ipc **ipc);

/* cu_ring.c */
CUresult cu_push(CUstream stream, const struct sim_cmd *cmd, bool bell, uint64_t *seq);
CUresult cu_fence(CUstream stream, uint64_t *seq);
CUresult cu_wait_seq(CUcontext ctx, uint32_t slot, uint64_t seq);
CUresult cu_wait_work(CUcontext ctx, uint32_t slot, uint64_t seq); /* and pools stay as they are */
CUresult cu_wait_shortly(CUcontext ctx, uint32_t slot, uint64_t seq); /* or NOT_READY after 10 ms */
bool cu_ring_full(CUcontext ctx);
CUresult cu_wait_event(CUcontext ctx, uint32_t slot, uint64_t seq);
CUresult cu_stream_sync(CUstream stream);
bool cu_seq_done(CUcontext ctx, uint32_t slot, uint64_t seq);
void cu_ring_bell(CUcontext ctx);

#endif
