/* SPDX-License-Identifier: Apache-2.0
 *
 * The start of the shim, opening the driver, and fork. Only boot/ itself may include this.
 */
#ifndef QG_BOOT_H
#define QG_BOOT_H

#include "process/process.h"

/* Reads the grant, once: in our constructor, or before it if another constructor calls CUDA. */
void qg_load(void);

/* Everything that one successful cuInit sets in motion; at most once per process. */
void qg_started(void);
void qg_start_after_fork(void);

/* In the child of a fork. */
void qg_after_fork(void);

/* Remembers where the driver is; NULL or "" = search. */
void qg_driver_path(const char *path);

/* True: the program brings a libcuda.so.1 of its own, in `out`, where it would be found before the
 * node's. */
bool qg_program_driver(const char *granted, char *out, size_t size);

#endif
