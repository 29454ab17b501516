/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection to the arbiter, and one answer with its descriptors.
 */
#include "register/connection.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "qg_msg.h"
#include "qg_root.h"
#include "groups/rm.h"
#include "process/process.h"

/* Only an arbiter of root may give orders to this process. run_dir belongs to root, and the
 * listener must too. */
static int connected_to_root(int fd, const struct sockaddr_un *address)
{
    struct ucred peer;
    socklen_t length = sizeof(peer);
    if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
        return -errno;
    return qg_is_root(peer.uid) ? 0 : -EPERM;
}

int qg_arbiter_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int written = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s",
                           qg_info.grant.run_dir, QG_SOCK_REGISTER);
    if (written < 0 || (size_t)written >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    fd = qg_move_high(fd);
    int status = connected_to_root(fd, &address);
    if (status == 0)
        return fd;
    close(fd);
    return status;
}

bool qg_wait_readable(int fd, int timeout_ms)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    int ready;
    do {
        ready = poll(&wait, 1, timeout_ms);
    } while (ready < 0 && errno == EINTR);
    return ready > 0 && (wait.revents & POLLIN);
}

void qg_close_all(int *fds, int count)
{
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static bool of_another_version(const struct qg_msg_head *head, size_t got)
{
    return got >= sizeof(*head) && head->magic == QG_MAGIC && head->version != QG_ABI_VERSION;
}

int qg_arbiter_receive(int sock, struct qg_registered *answer, int fds[QG_PAGE_FDS])
{
    union {
        char space[CMSG_SPACE(sizeof(int) * 8)];
        struct cmsghdr align;
    } control;
    struct iovec data = {answer, sizeof(*answer)};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    message.msg_control = control.space;
    message.msg_controllen = sizeof(control.space);
    ssize_t got;
    do {
        got = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return -1;
    int count = 0, all[8];
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        int here = (int)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < here && count < 8; i++)
            memcpy(&all[count++], CMSG_DATA(part) + sizeof(int) * (size_t)i, sizeof(int));
    }
    if (!count && qg_msg_is(answer, (size_t)got, QG_MSG_ACT, sizeof(struct qg_act))) {
        qg_rm_received(answer, (size_t)got);
        return QG_UNREQUESTED;
    }
    if (of_another_version(&answer->head, (size_t)got)) {
        qg_close_all(all, count);
        answer->status = EPROTO;
        return 0;
    }
    if (!qg_msg_is(answer, (size_t)got, QG_MSG_REGISTERED, sizeof(*answer)) ||
        (message.msg_flags & MSG_CTRUNC) || (count && count != QG_PAGE_FDS)) {
        qg_close_all(all, count);
        return -1;
    }
    memcpy(fds, all, sizeof(int) * (size_t)count);
    return count;
}
