/* SPDX-License-Identifier: Apache-2.0
 *
 * What libcuda and libnvidia-ml of the simulator share: the connection to the device side.
 */
#ifndef QGPU_SIM_CLIENT_H
#define QGPU_SIM_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#include "sim_proto.h"

#define SIM_CUDA_VERSION  13000      /* what cuDriverGetVersion says */
#define SIM_PCI_DEVICE    0x233510de /* device and vendor: an H200 */
#define SIM_PCI_SWITCH    0x22a310de /* an NVSwitch */
#define SIM_PCI_SUBSYSTEM 0x18be10de

/* One line on stderr if QGPU_SIM_DEBUG is set (to anything but 0): what a program asked for and did
 * not get. */
void sim_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* to the directory that QGPU_SIM_DIR names, else SIM_DEFAULT_DIR; -1: no simulator there */
int sim_connect(void);
/* One request and its answer; answer begins with struct sim_rep. False: the connection is useless
 * from now on. */
bool sim_exchange(int sock, const struct sim_req *req, void *answer, size_t size, int *fds,
                  unsigned nfds);
bool sim_may_see(const struct sim_card_info *info);
/* The same for SIM_REQ_PROCS and SIM_REQ_UTIL, whose answers have at most size bytes. */
bool sim_exchange_list(int sock, const struct sim_req *req, void *answer, size_t size);
/* A request with a text. */
bool sim_exchange_text(int sock, uint32_t type, const uint64_t numbers[3], const char *text,
                       struct sim_rep *rep);

/* HELLO, and the process's page mapped; the old one, if any, stays mapped. */
bool sim_hello(int sock, struct sim_node *node, struct sim_page **page);

/* Acts out the faults that were asked for this function: waits, and returns the status that it has
 * to answer, 0: none. */
int sim_fault_act(struct sim_page *page, const char *function);

/* Whether the function has to fail in the midst of its work. */
bool sim_fault_midway(struct sim_page *page, const char *function);

static inline int sim_fault(struct sim_page *page, const char *function)
{
    return page && __atomic_load_n(&page->nfaults, __ATOMIC_RELAXED) ? sim_fault_act(page, function)
                                                                     : 0;
}

#endif
