/* SPDX-License-Identifier: Apache-2.0
 *
 * The descriptors that the main thread's loop waits for. Each has a key that says what it belongs
 * to.
 */
#include <errno.h>
#include <sys/epoll.h>

#include "base/base.h"

int ar_watch(const struct arbiter *a, int fd, struct key *key)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = key};
    return epoll_ctl(a->epfd, EPOLL_CTL_ADD, fd, &ev) == 0 ? 0 : -errno;
}

int ar_watch_room(const struct arbiter *a, int fd, struct key *key, bool on)
{
    struct epoll_event ev = {.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = key};
    return epoll_ctl(a->epfd, EPOLL_CTL_MOD, fd, &ev) == 0 ? 0 : -errno;
}
