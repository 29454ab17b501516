/* SPDX-License-Identifier: Apache-2.0
 *
 * What every part of the device side needs: the clock, the loop's epoll, and who a process is.
 */
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <time.h>

#include "gpu.h"

uint64_t gpu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool gpu_watch_fd(struct gpu *gpu, int fd, uint32_t events, struct gpu_watch *watch)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    return epoll_ctl(gpu->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* It is still the process that connected: not another user's by exec(2). */
bool gpu_same_user(pid_t pid, uid_t uid)
{
    char name[64];
    struct stat st;
    snprintf(name, sizeof name, "/proc/%d", (int)pid);
    return stat(name, &st) == 0 && st.st_uid == uid;
}
