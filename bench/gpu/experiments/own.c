/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's control calls on channel groups of this very process, seen (rm_own.c) and asked.
 * Questions are put with own handles only. Reads, with two exceptions: `slice` sets the time slice
 * of its own groups and puts it back, `pause` takes its own groups off the card for some
 * milliseconds and puts them back. Never a card, a runlist, an engine, or a handle that is not in
 * its own table.
 * usage: own sniff|record|ask|outsider|slice US|pause MS; QGPU_OWN_RECORD=FILE keeps every call
 * (docs/specs/rm-recording.md)
 */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rm_own.h"

static uint32_t control(int fd, const struct handle *h, uint32_t cmd, void *params, uint32_t size,
                        uint64_t *took)
{
    return own_control(fd, h->client, h->object, cmd, params, size, took);
}

static void die(const char *what, int code)
{
    printf("{\"failed\": \"%s\", \"code\": %d}\n", what, code);
    exit(3);
}

static void *library;

/* A context of our own with a stream and one finished piece of work, so that its groups exist. */
static void open_context(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        die("libcuda.so.1 cannot be loaded", 0);
#define F(name) __typeof__(&name) p_##name = (__typeof__(&name))dlsym(library, #name)
    F(cuInit);
    __typeof__(&cuDevicePrimaryCtxRetain) retain =
        (__typeof__(retain))dlsym(library, "cuDevicePrimaryCtxRetain");
    F(cuCtxSetCurrent);
    __typeof__(&cuMemAlloc) alloc = (__typeof__(alloc))dlsym(library, "cuMemAlloc_v2");
    F(cuMemsetD8_v2);
    F(cuCtxSynchronize);
#undef F
    CUcontext context;
    CUdeviceptr p;
    int status = (int)p_cuInit(0);
    if (status || (status = (int)retain(&context, 0)) ||
        (status = (int)p_cuCtxSetCurrent(context)) || (status = (int)alloc(&p, 1 << 20)) ||
        (status = (int)p_cuMemsetD8_v2(p, 1, 1 << 20)) || (status = (int)p_cuCtxSynchronize()))
        die("a context", status);
}

/* The context's end is part of a recording. */
static void leave_context(void)
{
    __typeof__(&cuDevicePrimaryCtxRelease) release =
        (__typeof__(release))dlsym(library, "cuDevicePrimaryCtxRelease_v2");
    int status = release ? (int)release(0) : -1;
    if (status)
        die("leaving the context", status);
}

static void tell_classes(void)
{
    for (unsigned i = 0; i < own_count; i++) {
        unsigned same = 0, live = 0;
        bool first = true;
        for (unsigned k = 0; k < own_count; k++)
            if (own_seen[k].class_id == own_seen[i].class_id) {
                first = first && k >= i;
                same++;
                live += !own_seen[k].freed;
            }
        if (first)
            printf("{\"class\": \"0x%x\", \"allocated\": %u, \"live\": %u}\n", own_seen[i].class_id,
                   same, live);
    }
    printf("{\"calls\": {\"alloc\": %u, \"control\": %u, \"free\": %u, \"dup\": %u}, "
           "\"other_sizes\": %u}\n",
           own_calls[RM_ESC_ALLOC], own_calls[RM_ESC_CONTROL], own_calls[RM_ESC_FREE],
           own_calls[RM_ESC_DUP], own_other_sizes);
}

static void ask(void)
{
    struct handle *group[64];
    int n = own_groups(group, 64);
    for (int i = 0; i < n; i++) {
        uint64_t slice_us = 0, took;
        uint32_t id = 0;
        uint32_t a = control(group[i]->fd, group[i], RM_GROUP_GET_TIMESLICE, &slice_us,
                             sizeof slice_us, &took);
        uint32_t b = control(group[i]->fd, group[i], RM_GROUP_GET_INFO, &id, sizeof id, NULL);
        printf("{\"group\": \"0x%x\", \"engine\": %u, \"get_timeslice\": \"0x%x\", \"us\": %llu, "
               "\"took_ns\": %llu, "
               "\"get_info\": \"0x%x\", \"tsg\": %u}\n",
               group[i]->object, group[i]->engine, a, (unsigned long long)slice_us,
               (unsigned long long)took, b, id);
    }
}

static void slice(uint64_t us)
{
    struct handle *group[64];
    int n = own_groups(group, 64);
    for (int i = 0; i < n; i++) {
        uint64_t before = 0, wanted = us, after = 0, took;
        if (control(group[i]->fd, group[i], RM_GROUP_GET_TIMESLICE, &before, sizeof before, NULL))
            continue; /* never set what cannot be read, and so not be put back */
        uint32_t set =
            control(group[i]->fd, group[i], RM_GROUP_SET_TIMESLICE, &wanted, sizeof wanted, &took);
        control(group[i]->fd, group[i], RM_GROUP_GET_TIMESLICE, &after, sizeof after, NULL);
        uint32_t back =
            control(group[i]->fd, group[i], RM_GROUP_SET_TIMESLICE, &before, sizeof before, NULL);
        printf("{\"group\": \"0x%x\", \"engine\": %u, \"before_us\": %llu, \"set\": \"0x%x\", "
               "\"took_ns\": %llu, "
               "\"after_us\": %llu, \"put_back\": \"0x%x\"}\n",
               group[i]->object, group[i]->engine, (unsigned long long)before, set,
               (unsigned long long)took, (unsigned long long)after, back);
    }
}

static void pause_groups(unsigned ms)
{
    struct handle *group[64];
    int n = own_groups(group, 64);
    uint32_t off[64];
    uint8_t stop[3] = {0, 0, 0}, go[3] = {1, 0, 0}; /* bEnable, bSkipSubmit, bSkipEnable */
    uint64_t took;
    for (int i = 0; i < n; i++) {
        off[i] = control(group[i]->fd, group[i], RM_GROUP_SCHEDULE, stop, sizeof stop, &took);
        printf("{\"group\": \"0x%x\", \"stop\": \"0x%x\", \"took_ns\": %llu}\n", group[i]->object,
               off[i], (unsigned long long)took);
    }
    usleep(ms * 1000);
    for (int i = 0; i < n; i++)
        if (off[i] == 0)
            printf("{\"group\": \"0x%x\", \"continue\": \"0x%x\"}\n", group[i]->object,
                   control(group[i]->fd, group[i], RM_GROUP_SCHEDULE, go, sizeof go, NULL));
}

struct letter {
    struct handle group;
    int fd;
    pid_t pid;
};

static int receive(int socket, struct letter *letter)
{
    char room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {letter, sizeof *letter};
    struct msghdr head = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int fd = -1;
    if (recvmsg(socket, &head, 0) == (ssize_t)sizeof *letter && CMSG_FIRSTHDR(&head))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&head)), sizeof fd);
    return fd;
}

/* Another process: what works with a fresh descriptor, with ours by message, with ours by pidfd.
 * Only reads. */
static void outside(int socket)
{
    struct letter letter;
    int given = receive(socket, &letter);
    if (given < 0)
        _exit(3); /* the first process said why */
    int fresh = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    int pidfd = (int)syscall(SYS_pidfd_open, letter.pid, 0);
    int taken = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, letter.fd, 0);
    int taken_errno = errno;
    const struct {
        const char *how;
        int fd;
    } ways[] = {{"fresh", fresh}, {"scm_rights", given}, {"pidfd_getfd", taken}};
    for (int i = 0; i < 3; i++) {
        uint32_t id = 0;
        uint64_t took = 0;
        uint32_t status = ways[i].fd < 0 ? 0xffff0000u + (uint32_t)taken_errno
                                         : control(ways[i].fd, &letter.group, RM_GROUP_GET_INFO,
                                                   &id, sizeof id, &took);
        printf("{\"from_outside\": \"%s\", \"status\": \"0x%x\", \"tsg\": %u, \"took_ns\": %llu}\n",
               ways[i].how, status, id, (unsigned long long)took);
    }
    fflush(stdout);
    _exit(0);
}

static void outsider(int socket, pid_t child)
{
    struct handle *group[1];
    if (own_groups(group, 1) != 1)
        die("no channel group of this process was seen", 0);
    struct letter letter = {*group[0], group[0]->fd, getpid()};
    char room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&letter, sizeof letter};
    struct msghdr head = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *c = CMSG_FIRSTHDR(&head);
    *c = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), &group[0]->fd, sizeof(int));
    fflush(stdout);
    if (sendmsg(socket, &head, 0) < 0)
        die("sending the descriptor", errno);
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    double value = argc > 2 ? atof(argv[2]) : 0;
    int pair[2] = {-1, -1};
    pid_t child = 0;
    /* before the card is opened: the child must inherit nothing of it */
    if (!strcmp(what, "outsider")) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) || (child = fork()) < 0)
            die("a second process", errno);
        close(pair[child == 0 ? 0 : 1]);
        if (child == 0)
            outside(pair[1]);
    }
    own_record_open();
    open_context();
    struct handle *any[1];
    bool some = own_groups(any, 1) == 1;
    if (!strcmp(what, "record"))
        leave_context();
    own_quiet = true;
    if (!strcmp(what, "sniff") || !strcmp(what, "record"))
        tell_classes();
    else if (!strcmp(what, "ask"))
        ask();
    else if (!strcmp(what, "outsider"))
        outsider(pair[0], child);
    else if (!strcmp(what, "slice") && value >= 1)
        slice((uint64_t)value);
    else if (!strcmp(what, "pause") && value >= 1 && value <= 1000)
        pause_groups((unsigned)value);
    else {
        fprintf(stderr, "usage: own sniff|record|ask|outsider|slice US|pause MS\n");
        return 2;
    }
    return some ? 0 : 4;
}
