/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of qgpu_messages.h over sockets; qg_msg.h describes each function.
 */
#include "qg_msg.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    MAX_FDS = 4, /* sent with one message: gate page, job page and doorbell, and one to spare */
    /* The kernel's own limit per message, SCM_MAX_FD. With room for fewer, recvmsg() would close
     * the others. Closing a user's descriptor may block. */
    KERNEL_MAX_FDS = 253
};

/* Keeps the first descriptor in *fd and closes all others. Returns how many there were. */
static size_t take_fds(struct msghdr *msg, int *fd)
{
    size_t seen = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++, seen++) {
            int one;
            memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (seen == 0)
                *fd = one;
            else
                close(one);
        }
    }
    return seen;
}

ssize_t qg_msg_recv(int sock, void *buf, size_t cap, int *fd)
{
    union {
        char bytes[CMSG_SPACE(KERNEL_MAX_FDS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = buf, .iov_len = cap};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof(control)};
    ssize_t got;
    *fd = -1;
    do
        got = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return -errno;
    size_t fds = take_fds(&msg, fd);
    if (fds <= 1 && !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return got;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return -EPROTO;
}

/* MSG_PEEK gives the kernel references of its own to the descriptors, and drops them. They are
 * never the last ones, so nothing is closed. No other thread reads this socket, so both calls see
 * the same message. */
ssize_t qg_msg_recv_bare(int sock, void *buf, size_t cap)
{
    struct iovec iov = {.iov_base = buf, .iov_len = cap};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t got;
    do
        got = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_PEEK);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return -errno;
    if (msg.msg_flags & MSG_CTRUNC)
        return -EXFULL;
    if (got == 0 || msg.msg_flags & MSG_TRUNC)
        return got ? -EPROTO : 0;
    do
        got = recvmsg(sock, &msg, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

int qg_msg_send(int sock, const void *buf, size_t len, const int *fds, size_t nfds)
{
    union {
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (nfds > MAX_FDS)
        return -EINVAL;
    if (nfds) {
        memset(&control, 0, sizeof(control));
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
    }
    ssize_t sent;
    do
        sent = sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : 0;
}

bool qg_msg_is(const void *buf, size_t len, uint32_t type, size_t want)
{
    struct qg_msg_head head;
    if (len < sizeof(head))
        return false;
    memcpy(&head, buf, sizeof(head));
    return head.magic == QG_MAGIC && head.version == QG_ABI_VERSION && head.type == type &&
           head.size == len && len == want;
}

void qg_msg_head_init(struct qg_msg_head *head, uint32_t type, size_t size)
{
    head->magic = QG_MAGIC;
    head->version = QG_ABI_VERSION;
    head->type = type;
    head->size = (uint32_t)size;
}

bool qg_terminated(const char *field, size_t capacity)
{
    return memchr(field, 0, capacity) != NULL;
}
