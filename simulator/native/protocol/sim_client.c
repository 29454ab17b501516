/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* One write per line: lines of processes and threads do not mix. */
void sim_debug(const char *format, ...)
{
    const char *wanted = getenv(SIM_ENV_DEBUG);
    char line[256];
    va_list values;
    if (!wanted || !*wanted || strcmp(wanted, "0") == 0)
        return;
    va_start(values, format);
    vsnprintf(line, sizeof line, format, values);
    va_end(values);
    dprintf(STDERR_FILENO, "qgpu-sim: %s\n", line);
}

int sim_connect(void)
{
    const char *dir = getenv(SIM_ENV_DIR);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = 10};
    if (!dir || !*dir)
        dir = SIM_DEFAULT_DIR;
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

static bool exchange(int sock, const void *message, size_t length, void *answer, size_t least,
                     size_t size, int *fds, unsigned nfds)
{
    char control[CMSG_SPACE(2 * sizeof(int))];
    struct iovec iov = {answer, size};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    const struct sim_rep *rep = answer;
    ssize_t len;
    if (send(sock, message, length, MSG_NOSIGNAL) != (ssize_t)length)
        return false;
    do
        len = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (len < 0 && errno == EINTR);
    if (len < (ssize_t)sizeof *rep || rep->magic != SIM_MAGIC || rep->version != SIM_VERSION)
        return false;
    if (nfds)
        take_fds(&msg, fds, nfds);
    /* a list is as long as it has entries */
    return rep->status || len == (ssize_t)(least < size ? rep->size : size);
}

bool sim_exchange(int sock, const struct sim_req *req, void *answer, size_t size, int *fds,
                  unsigned nfds)
{
    return exchange(sock, req, sizeof *req, answer, size, size, fds, nfds);
}

bool sim_exchange_list(int sock, const struct sim_req *req, void *answer, size_t size)
{
    return exchange(sock, req, sizeof *req, answer, sizeof(struct sim_rep), size, NULL, 0);
}

bool sim_exchange_text(int sock, uint32_t type, const uint64_t numbers[3], const char *text,
                       struct sim_rep *rep)
{
    struct sim_text_req message = {.req = {SIM_MAGIC, SIM_VERSION, type, sizeof message, numbers[0],
                                           numbers[1], numbers[2], 0}};
    if (snprintf(message.text, sizeof message.text, "%s", text) >= (int)sizeof message.text)
        return false;
    return exchange(sock, &message, sizeof message, rep, sizeof *rep, sizeof *rep, NULL, 0);
}

bool sim_hello(int sock, struct sim_node *node, struct sim_page **page)
{
    struct sim_req req = {SIM_MAGIC, SIM_VERSION, SIM_REQ_HELLO, sizeof req, 0, 0, 0, 0};
    int fd = -1;
    if (!sim_exchange(sock, &req, node, sizeof *node, &fd, 1) || node->rep.status)
        return false;
    void *map =
        fd < 0 ? MAP_FAILED : mmap(NULL, sizeof **page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (map != MAP_FAILED)
        *page = map;
    return map != MAP_FAILED;
}

/* ---- faults ---- */

/* The name without what marks its version: _v2, _ptsz, _ptds. */
static bool names(const char *call, const char *function)
{
    size_t len = strlen(call);
    if (strcmp(call, "*") == 0)
        return strncmp(function, "cu", 2) == 0;
    if (strcmp(call, "nvml*") == 0)
        return strncmp(function, "nvml", 4) == 0;
    return strncmp(call, function, len) == 0 &&
           (!function[len] || strncmp(function + len, "_v", 2) == 0 ||
            strncmp(function + len, "_pt", 3) == 0);
}

static bool take_one(struct sim_fault *fault)
{
    int32_t left = __atomic_load_n(&fault->left, __ATOMIC_SEQ_CST);
    while (left > 0 && !__atomic_compare_exchange_n(&fault->left, &left, left - 1, false,
                                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return left != 0;
}

static void pause_us(uint64_t us)
{
    struct timespec left = {.tv_sec = (time_t)(us / 1000000),
                            .tv_nsec = (long)(us % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

int sim_fault_act(struct sim_page *page, const char *function)
{
    unsigned n = __atomic_load_n(&page->nfaults, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < n && i < SIM_FAULTS; i++) {
        struct sim_fault *fault = &page->faults[i];
        uint32_t kind = __atomic_load_n(&fault->kind, __ATOMIC_SEQ_CST);
        if (!kind || kind == SIM_FAULT_MIDWAY || !names(fault->call, function) || !take_one(fault))
            continue;
        if (kind == SIM_FAULT_ERROR)
            return (int)fault->value;
        if (kind == SIM_FAULT_DELAY)
            pause_us(fault->value);
        while (kind == SIM_FAULT_HANG &&
               __atomic_load_n(&fault->kind, __ATOMIC_SEQ_CST) == SIM_FAULT_HANG)
            pause_us(1000);
    }
    return 0;
}

bool sim_fault_midway(struct sim_page *page, const char *function)
{
    unsigned n = __atomic_load_n(&page->nfaults, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < n && i < SIM_FAULTS; i++) {
        struct sim_fault *fault = &page->faults[i];
        if (__atomic_load_n(&fault->kind, __ATOMIC_SEQ_CST) == SIM_FAULT_MIDWAY &&
            names(fault->call, function) && take_one(fault))
            return true;
    }
    return false;
}

/* The device file's permission decides, also the device cgroup's. No driver is behind it: ENXIO or
 * ENODEV mean yes. */
bool sim_may_see(const struct sim_card_info *info)
{
    int fd = open(info->path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        close(fd);
        return true;
    }
    return errno != EPERM && errno != EACCES && errno != ENOENT;
}
