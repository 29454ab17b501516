/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

int sim_connect(void)
{
    const char *dir = getenv(SIM_ENV_DIR);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = 10};
    if (!dir || !*dir)
        return -1;
    int dirfd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", dirfd, SIM_SOCK);
    if (dirfd < 0 || sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address) != 0) {
        if (sock >= 0)
            close(sock);
        sock = -1;
    } else {
        setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    }
    if (dirfd >= 0)
        close(dirfd);
    return sock;
}

static void take_fds(struct msghdr *msg, int *fds, unsigned nfds)
{
    for (struct cmsghdr *head = CMSG_FIRSTHDR(msg); head; head = CMSG_NXTHDR(msg, head))
        if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
            head->cmsg_len == CMSG_LEN(nfds * sizeof(int)))
            memcpy(fds, CMSG_DATA(head), nfds * sizeof(int));
}

bool sim_exchange(int sock, const struct sim_req *req, void *answer, size_t size, int *fds, unsigned nfds)
{
    char control[CMSG_SPACE(2 * sizeof(int))];
    struct iovec iov = {answer, size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    const struct sim_rep *rep = answer;
    ssize_t len;
    if (send(sock, req, sizeof *req, MSG_NOSIGNAL) != (ssize_t)sizeof *req)
        return false;
    do
        len = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (len < 0 && errno == EINTR);
    if (len < (ssize_t)sizeof *rep || rep->magic != SIM_MAGIC || rep->version != SIM_VERSION)
        return false;
    if (nfds)
        take_fds(&msg, fds, nfds);
    return rep->status || len == (ssize_t)size;
}

/* The device file's permission decides, also the device cgroup's. No driver is behind it: ENXIO or ENODEV mean yes. */
bool sim_may_see(const struct sim_card_info *info)
{
    int fd = open(info->path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        close(fd);
        return true;
    }
    return errno != EPERM && errno != EACCES && errno != ENOENT;
}
