/* SPDX-License-Identifier: Apache-2.0
 *
 * qgpu's libnvidia-ml.so.1: NVML with the job in the place of the card. Everything that is not
 * about memory, processes or utilisation goes to the real library as it is.
 */
#ifndef QG_NVML_SHIM_H
#define QG_NVML_SHIM_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(default) /* NVML's functions, and only they, are exported */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#pragma GCC visibility pop

#include "symbols.h"
#include "boot/job_view.h"

/* nvml_driver.c: the real library. */
extern void *qg_real[QG_NSYMBOLS];
bool qg_nvml_has(unsigned symbol);
#define QG_REAL(symbol)                                                                            \
    ((__typeof__(&symbol))__atomic_load_n(&qg_real[QG_SYM_##symbol], __ATOMIC_RELAXED))

/* nvml_job.c: the job's view of a device; false if the device is none of the job's, or there is no
 * job. */
bool qg_nvml_view(nvmlDevice_t device, struct qgpu_view *out);

/* Whether a process is one of the job's. */
bool qg_nvml_ours(const struct qgpu_view *view, unsigned int pid);

/* nvml_hooks.c */
/* Entries for processes on one card, or for their samples. More than NVML ever reports. */
#define QG_NVML_ROOM 1024u

/* Keeps the job's entries, in place, and returns their number. size: bytes of an entry; offset: of
 * its pid. */
unsigned int qg_nvml_keep(const struct qgpu_view *view, void *list, unsigned int count, size_t size,
                          size_t offset);

/* NVML's convention: count is the room on the way in, the number on the way out. */
nvmlReturn_t qg_nvml_hand_out(const void *list, unsigned int n, size_t size, unsigned int *count,
                              void *out);

/* Samples of the job's processes, at most QG_NVML_ROOM. */
nvmlReturn_t qg_nvml_samples(const struct qgpu_view *view, nvmlDevice_t device,
                             unsigned long long since, nvmlProcessUtilizationSample_t *all,
                             unsigned int *n);

#endif
