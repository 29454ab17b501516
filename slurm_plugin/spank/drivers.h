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
    char path[PATH_MAX]; /* no symbolic link in it; root alone can change what lies there */
    int fd;              /* the file, O_PATH; it is mounted by this and not by its path */
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
    char skipped[PATH_MAX + 256]; /* a file of the node that others can change, or empty */
    char why[PATH_MAX + 256];     /* of the last path that could not be opened */
    struct qg_target at[QG_MAX_TARGETS];
};

/* Adds the files called libcuda.so* and libnvidia-ml.so*, each once. It searches beside driver_path
 * and in each directory with such a library in the cache of ld.so (what `ldconfig -p` prints).
 * Files that others than root can change are left out. False with errno and targets->why. Call it
 * in the mount namespace in which the files are mounted: the kernel takes no other descriptors. */
bool qg_drivers_find(const char *driver_path, const char *ld_cache, struct qg_targets *targets);

/* Adds root's files called libcuda.so* as `own`, while there is room. It searches the directories
 * of NVIDIA's forward-compatible drivers (compat in /usr/local/cuda-12.4 and so on). It also
 * searches the absolute directories of library_path (LD_LIBRARY_PATH of the task). What others can
 * change, or not all users can read, is left out. False as above. */
bool qg_drivers_own(const char *library_path, struct qg_targets *targets);

void qg_drivers_close(struct qg_targets *targets);

#endif
