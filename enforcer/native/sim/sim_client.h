/* SPDX-License-Identifier: Apache-2.0
 *
 * What libcuda and libnvidia-ml of the simulator share: the connection to the device side.
 */
#ifndef QGPU_SIM_CLIENT_H
#define QGPU_SIM_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#include "sim_proto.h"

int sim_connect(void); /* to the directory that QGPU_SIM_DIR names; -1: nobody there */
/* One request and its answer; answer begins with struct sim_rep. False: the connection is useless from now on. */
bool sim_exchange(int sock, const struct sim_req *req, void *answer, size_t size, int *fds, unsigned nfds);
bool sim_may_see(const struct sim_card_info *info);

#endif
