/* SPDX-License-Identifier: Apache-2.0
 *
 * Which files of this node a program could open as the driver or as NVML, under any of their names.
 */
#ifndef QGPU_DRIVERS_H
#define QGPU_DRIVERS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define QG_MAX_TARGETS 64
#define QG_CUDA        "libcuda.so"
#define QG_NVML        "libnvidia-ml.so"

struct qg_target {
    char path[PATH_MAX]; /* no symbolic link in it */
    dev_t dev;
    ino_t ino;
    bool nvml;
    /* a driver's library that is not the node's, which the shim goes on to use where it lies
     * first */
    bool own;
};

struct qg_targets {
    size_t count;
    bool too_many;
    struct qg_target at[QG_MAX_TARGETS];
};

/* Adds the files called libcuda.so* and libnvidia-ml.so* beside driver_path and in each directory
 * in which the cache of ld.so (what `ldconfig -p` prints) has such a library, each file once. */
void qg_drivers_find(const char *driver_path, const char *ld_cache, struct qg_targets *targets);

/* Adds root's files called libcuda.so* in the directories of NVIDIA's forward-compatible ones
 * (compat in /usr/local/cuda-12.4 and so on) and in the absolute directories of library_path
 * (LD_LIBRARY_PATH of the task), as `own`, while there is room. */
void qg_drivers_own(const char *library_path, struct qg_targets *targets);

#endif
