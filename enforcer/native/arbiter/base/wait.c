/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits for events or a time, in one system call. epoll_wait() counts milliseconds; a more precise
 * time needs a timerfd, which costs a second call per sleep. epoll_pwait2() (Linux 5.11) takes
 * nanoseconds. Where the kernel lacks it, a card's thread sets its timerfd.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "policy/policy.h"
#include "qg_time.h"

#ifdef SYS_epoll_pwait2
static int sleep_for(int epfd, struct epoll_event *events, int room, uint64_t ns)
{
    struct timespec at = {.tv_sec = (time_t)(ns / 1000000000ull),
                          .tv_nsec = (long)(ns % 1000000000ull)};
    return (int)syscall(SYS_epoll_pwait2, epfd, events, room, &at, NULL, 0);
}
#else
static int sleep_for(int epfd, struct epoll_event *events, int room, uint64_t ns)
{
    (void)epfd, (void)events, (void)room, (void)ns;
    errno = ENOSYS;
    return -1;
}
#endif

bool wait_has_deadline(void)
{
    /* 0: not probed yet; threads that probe at the same time get the same answer */
    static int known;
    int has = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!has) {
        struct epoll_event event;
        /* A kernel that has the call complains about descriptor -1: EBADF. Others say ENOSYS, and
         * some containers EPERM. */
        has = sleep_for(-1, &event, 1, 0) < 0 && errno == EBADF ? 1 : -1;
        __atomic_store_n(&known, has, __ATOMIC_RELAXED);
    }
    return has > 0;
}

int wait_until(int epfd, struct epoll_event *events, int room, uint64_t until_ns)
{
    if (until_ns == QP_NEVER)
        return epoll_wait(epfd, events, room, -1);
    uint64_t now = qg_now_ns();
    return sleep_for(epfd, events, room, until_ns > now ? until_ns - now : 0);
}
