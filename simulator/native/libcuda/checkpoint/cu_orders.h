/* SPDX-License-Identifier: Apache-2.0
 *
 * How a process is locked, leaves its cards and comes back: cu_agent.c takes the orders of the
 * device side, cu_leave.c carries them out, cu_contents_away.c moves contents.
 */
#ifndef QGPU_SIM_CU_ORDERS_H
#define QGPU_SIM_CU_ORDERS_H

#include "cu.h"

/* cu_agent.c: whether the order is given up, by its deadline or by whoever gave it */
bool cu_agent_given_up(const struct sim_order *order);

/* cu_leave.c: broken: it ended in the midst */
CUresult cu_lock_process(const struct sim_order *order);
CUresult cu_leave_cards(const struct sim_order *order, bool *broken);
CUresult cu_return_to_cards(const struct sim_order *order, bool *broken);

/* cu_contents_away.c */
CUresult cu_contents_may_leave(void);
/* midway: only half of them, CUDA_ERROR_UNKNOWN */
CUresult cu_contents_leave(bool midway);
CUresult cu_contents_return(bool midway);

#endif
