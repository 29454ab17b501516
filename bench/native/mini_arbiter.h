/* SPDX-License-Identifier: Apache-2.0 */
#ifndef QG_MINI_ARBITER_H
#define QG_MINI_ARBITER_H

#include "qgpu_messages.h"

/* Writes a grant of one card (the stub's first) into a sealed memfd; needs root. Descriptor or -1.
 */
int mini_grant(const char *run_dir, const char *driver, uint64_t mem_cap);

/* Forks a process that answers registrations in run_dir with an always open, tracked gate;
 * window_us > 0: in window mode. Its pid, or -1. */
int mini_arbiter(const char *run_dir, uint64_t mem_cap, uint32_t window_us);

#endif
