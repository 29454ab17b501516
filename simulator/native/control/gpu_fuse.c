/* SPDX-License-Identifier: Apache-2.0
 *
 * The FUSE protocol of the control device, as far as one file needs it, and the thread that opens
 * it. See gpu_fuse.h.
 */
#include "gpu_fuse.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REQUEST_SIZE (64u << 10) /* the kernel wants at least 8 KiB; an ioctl carries at most 16 */
#define MAX_WRITE    4096u
#define MAX_SERVED   1024u /* at a time; more than are ever waiting */
#define FOREVER      86400u
#define START_MS     5000

#ifndef FOPEN_NOFLUSH
#define FOPEN_NOFLUSH (1u << 5)
#endif

struct opener_note { /* what the opener says; the file itself comes as a descriptor */
    int32_t error, tid;
    uint64_t st_dev, st_ino;
};

/* ---- the opener ---- */

struct opener {
    int mount, sock, device;
    unsigned priority;
};

static void tell(int sock, const struct opener_note *note, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {(void *)note, sizeof *note};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        msg.msg_control = control;
        msg.msg_controllen = sizeof control;
        struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    if (sendmsg(sock, &msg, MSG_NOSIGNAL) < 0)
        return; /* the loop is gone, and this thread with it */
}

static int open_file(int mount)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/thread-self/fd/%d", mount);
    return open(name, O_RDWR | O_CLOEXEC);
}

/* Opens and closes the file once before the loop starts. The close makes the kernel send FLUSH and
 * learn that it is not implemented. From then on close() does not wait for the loop, so the loop
 * itself may close a file. */
static struct opener_note try_out(int mount)
{
    struct opener_note note = {.tid = (int32_t)syscall(SYS_gettid)};
    struct stat st = {0};
    int fd = open_file(mount);
    if (fd < 0 || fstat(fd, &st) != 0)
        note.error = errno ? errno : EIO;
    note.st_dev = st.st_dev;
    note.st_ino = st.st_ino;
    if (fd >= 0)
        close(fd);
    return note;
}

/* Descriptors of its own, and of those only two: the mount and the socket. */
static bool own_table(const struct opener *opener)
{
    unsigned low = (unsigned)(opener->mount < opener->sock ? opener->mount : opener->sock);
    unsigned high = (unsigned)(opener->mount < opener->sock ? opener->sock : opener->mount);
    return unshare(CLONE_FILES) == 0 && (low == 0 || close_range(0, low - 1, 0) == 0) &&
           (high == low + 1 || close_range(low + 1, high - 1, 0) == 0) &&
           close_range(high + 1, ~0u, 0) == 0;
}

static void *opener_thread(void *arg)
{
    struct opener opener = *(struct opener *)arg;
    struct sched_param param = {.sched_priority = (int)opener.priority};
    struct opener_note note = {.error = EMFILE};
    char asked;
    if (opener.priority)
        sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &param);
    if (own_table(&opener))
        note = try_out(opener.mount);
    tell(opener.sock, &note, -1);
    while (!note.error && recv(opener.sock, &asked, 1, 0) == 1) {
        struct opener_note done = {.tid = note.tid, .st_dev = note.st_dev, .st_ino = note.st_ino};
        int fd = open_file(opener.mount);
        done.error = fd < 0 ? errno : 0;
        tell(opener.sock, &done, fd);
        if (fd >= 0)
            close(fd);
    }
    close(opener.mount);
    close(opener.sock);
    return NULL;
}

static bool hear(int sock, struct opener_note *note, int *fd)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {note, sizeof *note};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    *fd = -1;
    if (recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *note)
        return false;
    struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(fd, CMSG_DATA(head), sizeof *fd);
    return true;
}

bool gpu_fuse_ask(struct gpu_fuse *fuse)
{
    return fuse->opener >= 0 && send(fuse->opener, "o", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

void gpu_fuse_handed(struct gpu_fuse *fuse)
{
    struct opener_note note;
    int fd;
    if (hear(fuse->opener, &note, &fd))
        fuse->ops->handed(fuse->arg, fd);
}

/* ---- the protocol ---- */

static void reply(struct gpu_fuse *fuse, uint64_t unique, int error, const void *body, size_t size)
{
    struct fuse_out_header head = {
        .len = (uint32_t)(sizeof head + size), .error = -error, .unique = unique};
    struct iovec iov[2] = {{&head, sizeof head}, {(void *)body, size}};
    if (writev(fuse->device, iov, size ? 2 : 1) < 0)
        return; /* ENOENT: the caller was killed before its answer */
}

void gpu_fuse_answer(struct gpu_fuse *fuse, uint64_t unique, int error, const void *data,
                     uint32_t size)
{
    struct {
        struct fuse_ioctl_out out;
        uint8_t data[GPU_IOCTL_DATA];
    } body = {.out = {.result = 0}};
    if (error || size > GPU_IOCTL_DATA) {
        reply(fuse, unique, error ? error : EIO, NULL, 0);
        return;
    }
    memcpy(body.data, data, size);
    reply(fuse, unique, 0, &body, sizeof body.out + size);
}

static void answer_init(struct gpu_fuse *fuse, const struct fuse_in_header *head,
                        const struct fuse_init_in *in)
{
    struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION,
                                .minor = FUSE_KERNEL_MINOR_VERSION,
                                .max_write = MAX_WRITE,
                                .max_background = 64,
                                .congestion_threshold = 48};
    if (in->major < FUSE_KERNEL_VERSION || (in->major == FUSE_KERNEL_VERSION && in->minor < 23)) {
        reply(fuse, head->unique, EPROTO, NULL, 0);
        return;
    }
    if (in->major == FUSE_KERNEL_VERSION && in->minor < out.minor)
        out.minor = in->minor;
    reply(fuse, head->unique, 0, &out, sizeof out);
}

static void answer_attributes(struct gpu_fuse *fuse, const struct fuse_in_header *head)
{
    struct fuse_attr_out out = {
        .attr_valid = FOREVER,
        .attr = {.ino = FUSE_FILE_INODE, .mode = S_IFREG | 0666, .nlink = 1}};
    reply(fuse, head->unique, 0, &out, sizeof out);
}

static void answer_open(struct gpu_fuse *fuse, const struct fuse_in_header *head)
{
    bool by_opener = (pid_t)head->pid == fuse->opener_tid;
    struct fuse_open_out out = {.open_flags = FOPEN_DIRECT_IO | FOPEN_NONSEEKABLE | FOPEN_NOFLUSH};
    if (!fuse->ops) /* the trial at the start */
        out.fh = UINT64_MAX;
    else
        out.fh = fuse->ops->opened(fuse->arg, by_opener);
    reply(fuse, head->unique, out.fh ? 0 : ENOMEM, &out, out.fh ? sizeof out : 0);
}

static void serve_ioctl(struct gpu_fuse *fuse, const struct fuse_in_header *head,
                        const struct fuse_ioctl_in *in)
{
    struct gpu_ioctl call = {.unique = head->unique,
                             .fh = in->fh,
                             .cmd = in->cmd,
                             .size = in->in_size,
                             .tid = (pid_t)head->pid};
    if (in->flags & FUSE_IOCTL_DIR || !fuse->ops || in->in_size > GPU_IOCTL_DATA ||
        head->len < sizeof *head + sizeof *in + in->in_size) {
        reply(fuse, head->unique, EINVAL, NULL, 0);
        return;
    }
    memcpy(call.data, in + 1, in->in_size);
    fuse->ops->called(fuse->arg, &call);
}

static void serve(struct gpu_fuse *fuse, const struct fuse_in_header *head)
{
    const void *body = head + 1;
    switch (head->opcode) {
    case FUSE_INIT:
        answer_init(fuse, head, body);
        break;
    case FUSE_GETATTR:
        answer_attributes(fuse, head);
        break;
    case FUSE_OPEN:
        answer_open(fuse, head);
        break;
    case FUSE_IOCTL:
        serve_ioctl(fuse, head, body);
        break;
    case FUSE_RELEASE:
        if (fuse->ops)
            fuse->ops->closed(fuse->arg, ((const struct fuse_release_in *)body)->fh);
        reply(fuse, head->unique, 0, NULL, 0);
        break;
    case FUSE_INTERRUPT:
        if (fuse->ops)
            fuse->ops->interrupted(fuse->arg, ((const struct fuse_interrupt_in *)body)->unique);
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET: /* these have no answer */
        break;
    case FUSE_LOOKUP:
        reply(fuse, head->unique, ENOTDIR, NULL, 0);
        break;
    default: /* FLUSH too: whatever the device does not have, the kernel never asks for again */
        reply(fuse, head->unique, ENOSYS, NULL, 0);
    }
}

void gpu_fuse_drain(struct gpu_fuse *fuse)
{
    static _Alignas(8) uint8_t buffer[REQUEST_SIZE]; /* one thread */
    /* Bounded: callers that never stop must not starve the rest of the loop. */
    for (unsigned served = 0; fuse->device >= 0 && served < MAX_SERVED; served++) {
        ssize_t size = read(fuse->device, buffer, sizeof buffer);
        const struct fuse_in_header *head = (const void *)buffer;
        /* ENOENT: taken back while it was read */
        if (size < 0 && (errno == EINTR || errno == ENOENT))
            continue;
        if (size < (ssize_t)sizeof *head)
            return;
        serve(fuse, head);
    }
}

/* ---- start ---- */

static int make_mount(int device)
{
    char number[16];
    snprintf(number, sizeof number, "%d", device);
    int context = fsopen("fuse", FSOPEN_CLOEXEC), mount = -1;
    if (context >= 0 && fsconfig(context, FSCONFIG_SET_STRING, "fd", number, 0) == 0 &&
        /* S_IFREG: the root is the file */
        fsconfig(context, FSCONFIG_SET_STRING, "rootmode", "100000", 0) == 0 &&
        fsconfig(context, FSCONFIG_SET_STRING, "user_id", "0", 0) == 0 &&
        fsconfig(context, FSCONFIG_SET_STRING, "group_id", "0", 0) == 0 &&
        fsconfig(context, FSCONFIG_SET_FLAG, "allow_other", NULL, 0) == 0 &&
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        mount = fsmount(context, FSMOUNT_CLOEXEC,
                        MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    int error = errno;
    if (context >= 0)
        close(context);
    errno = error;
    return mount;
}

/* Serves the opener's trial until it says how it went. */
static bool await_opener(struct gpu_fuse *fuse, struct opener_note *note)
{
    int unused;
    for (int waited = 0; waited < START_MS; waited += 100) {
        struct pollfd fds[2] = {{.fd = fuse->device, .events = POLLIN},
                                {.fd = fuse->opener, .events = POLLIN}};
        if (poll(fds, 2, 100) > 0)
            waited -= 100;
        gpu_fuse_drain(fuse);
        if (hear(fuse->opener, note, &unused))
            return true;
    }
    return false;
}

static bool start_opener(struct gpu_fuse *fuse, int mount, unsigned priority)
{
    static struct opener opener; /* the thread copies it before it says anything */
    struct opener_note note = {.error = ETIMEDOUT};
    pthread_t thread;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return false;
    fuse->opener = pair[0];
    opener = (struct opener){.mount = mount, .sock = pair[1], .priority = priority};
    errno = pthread_create(&thread, NULL, opener_thread, &opener);
    bool started = errno == 0;
    if (started) {
        pthread_detach(thread);
        if (!await_opener(fuse, &note))
            note.error = ETIMEDOUT;
        errno = note.error;
    }
    int error = errno;
    close(pair[1]); /* the opener has its own */
    errno = error;
    fuse->opener_tid = note.tid;
    fuse->st_dev = note.st_dev;
    fuse->st_ino = note.st_ino;
    return started && !note.error;
}

bool gpu_fuse_open(struct gpu_fuse *fuse, const struct gpu_fuse_ops *ops, void *arg,
                   unsigned priority, char why[160])
{
    *fuse = (struct gpu_fuse){.opener = -1};
    fuse->device = open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    int mount = fuse->device < 0 ? -1 : make_mount(fuse->device);
    const char *what = fuse->device < 0 ? "/dev/fuse cannot be opened" : "FUSE cannot be mounted";
    bool ok = mount >= 0;
    if (ok) {
        what = "the file cannot be opened";
        ok = start_opener(fuse, mount, priority);
    }
    if (!ok)
        snprintf(why, 160, "%s: %s", what, strerror(errno));
    if (mount >= 0)
        close(mount); /* the opener keeps it */
    if (ok) {
        fuse->ops = ops;
        fuse->arg = arg;
        return true;
    }
    if (fuse->opener >= 0)
        close(fuse->opener);
    if (fuse->device >= 0)
        close(fuse->device);
    fuse->device = fuse->opener = -1;
    return false;
}
