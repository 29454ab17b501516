/* SPDX-License-Identifier: Apache-2.0
 *
 * The control device of the simulated driver: one file, served by this process through the kernel's
 * FUSE protocol on a mount that is attached nowhere, so that a killed simulator leaves nothing
 * behind. ioctl(2) on it is a real system call and a file of it a real open file: fork, dup and
 * SCM_RIGHTS keep it, its last close is reported.
 *
 * All requests are served by the one loop of this process and none is waited for there. Only the
 * opener, a thread with a descriptor table of its own, ever opens the file: it lacks the descriptor
 * that serves the mount, so that the end of this process ends the mount even while the opener
 * waits in an open(2) that will not be answered.
 */
#ifndef QGPU_SIM_GPU_FUSE_H
#define QGPU_SIM_GPU_FUSE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define FUSE_FILE_INODE 1u   /* the mount's root is the file itself */
#define GPU_IOCTL_DATA  512u /* more than any structure of the interface */

struct gpu_ioctl { /* one call of a program that waits for its answer */
    uint64_t unique, fh;
    uint32_t cmd, size; /* size: of what the caller sent */
    pid_t tid;          /* of the thread that called */
    _Alignas(8) uint8_t data[GPU_IOCTL_DATA];
};

struct gpu_fuse_ops {
    /* a new file: its number, from 1; 0 refuses */
    uint64_t (*opened)(void *arg, bool by_opener);
    /* answered by gpu_fuse_answer, now or later */
    void (*called)(void *arg, const struct gpu_ioctl *call);
    /* a signal came for the caller of an unanswered call */
    void (*interrupted)(void *arg, uint64_t unique);
    /* the last descriptor of it is gone */
    void (*closed)(void *arg, uint64_t fh);
    /* a file that gpu_fuse_ask asked for; -1: there is none */
    void (*handed)(void *arg, int fd);
};

struct gpu_fuse {
    int device, opener; /* -1: there is no control device */
    pid_t opener_tid;
    uint64_t st_dev, st_ino;
    const struct gpu_fuse_ops *ops;
    void *arg;
};

/* False: there is none, why is a sentence. priority: of SCHED_FIFO for the opener, 0: none. */
bool gpu_fuse_open(struct gpu_fuse *fuse, const struct gpu_fuse_ops *ops, void *arg,
                   unsigned priority, char why[160]);
void gpu_fuse_drain(struct gpu_fuse *fuse); /* serves what waits; never blocks */
/* a new file, please; ops->handed tells. One at a time */
bool gpu_fuse_ask(struct gpu_fuse *fuse);
void gpu_fuse_handed(struct gpu_fuse *fuse); /* the opener's answer is there */
/* error: an errno, or 0 and the structure that goes back to the caller. */
void gpu_fuse_answer(struct gpu_fuse *fuse, uint64_t unique, int error, const void *data,
                     uint32_t size);

#endif
