/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the node's files that a program could open as the driver or as NVML, under any name.
 */
#ifndef QGPU_DRIVERS_H
#define QGPU_DRIVERS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define QG_MAX_TARGETS 64 /* files that are covered; with more, the task fails; chosen */
#define QG_CUDA        "libcuda.so"
#define QG_NVML        "libnvidia-ml.so"

struct qg_target {
    char path[PATH_MAX]; /* no symbolic link in it */
    dev_t dev;
    ino_t ino;
    bool nvml;
    /* A driver library of the program's own, not the node's. The shim uses it instead of the node's
     * if the program would find it first. */
    bool own;
};

struct qg_targets {
    size_t count;
    bool too_many;
    struct qg_target at[QG_MAX_TARGETS];
};

/* Adds the files called libcuda.so* and libnvidia-ml.so*, each once. It searches beside driver_path
 * and in each directory with such a library in the cache of ld.so (what `ldconfig -p` prints). */
void qg_drivers_find(const char *driver_path, const char *ld_cache, struct qg_targets *targets);

/* Adds root's files called libcuda.so* as `own`, while there is room. It searches the directories
 * of NVIDIA's forward-compatible drivers (compat in /usr/local/cuda-12.4 and so on). It also
 * searches the absolute directories of library_path (LD_LIBRARY_PATH of the task). */
void qg_drivers_own(const char *library_path, struct qg_targets *targets);

#endif
