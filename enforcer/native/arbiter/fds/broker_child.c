/* SPDX-License-Identifier: Apache-2.0
 *
 * A descriptor broker is a small process. It takes what a user sent out of his connection, checks
 * it, and closes it. It holds nothing that the arbiter needs. So it may hang in close() for as long
 * as the user likes. The arbiter can go on without it.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fds/fds.h"
#include "fds/broker.h"
#include "fds/broker_pool.h"
#include "model/model.h"
#include "qg_msg.h"

enum {
    MAX_BYTES = 65536, /* of a memory file that is passed on: room for a sealed grant */
    MAX_FD = 65536,    /* descriptors; main.c sets this limit for the process */
    /* Time that one system call may wait for the user, in us, before a signal interrupts it. 5 ms;
     * chosen, not measured. */
    WAKE_US = 5000
};

/* Passed on in place of a harmful descriptor. It is neither a memory file nor a device, so the
 * arbiter refuses it. */
static int placeholder = -1;

static void nothing(int sig)
{
    (void)sig;
}

/* Closing a socket with SO_LINGER waits for its peer, until a signal comes. Then the call returns
 * and the kernel finishes by itself. */
static void interrupt_often(bool on)
{
    struct itimerval every = {{0, on ? WAKE_US : 0}, {0, on ? WAKE_US : 0}};
    setitimer(ITIMER_REAL, &every, NULL);
}

/* Can the arbiter hold and close this descriptor without waiting for its maker? It can for the
 * control device, and for small memory files of a fixed size. F_GET_SEALS answers for memory files
 * only. */
static bool harmless(const struct broker_order *order, int fd)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals >= 0)
        return seals & F_SEAL_GROW && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
               st.st_size <= MAX_BYTES;
    return order->has_device && hw_is_control(&order->device, fd);
}

static bool wait_for(int pair, short events)
{
    struct pollfd pfd = {.fd = pair, .events = events};
    int n;
    do
        n = poll(&pfd, 1, -1);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

static void answer(int pair, const struct broker_answer *answer, int fd)
{
    size_t bytes = answer->got > 0 ? (size_t)answer->got : 0;
    int err;
    while ((err = qg_msg_send(pair, answer, offsetof(struct broker_answer, bytes) + bytes, &fd,
                              fd >= 0)) == -EAGAIN)
        if (!wait_for(pair, POLLOUT))
            break;
    if (err)
        _exit(0); /* the arbiter is gone */
}

/* Answers before it closes the descriptor, as the close may hang. */
static void fetch(int pair, const struct broker_order *order, int conn)
{
    struct broker_answer a = {.what = BROKER_MESSAGE, .id = order->id};
    int fd = -1;
    a.got = (int32_t)qg_msg_recv(conn, a.bytes, sizeof(a.bytes), &fd);
    answer(pair, &a, fd < 0 || harmless(order, fd) ? fd : placeholder);
    if (fd >= 0)
        close(fd);
}

static void serve(int pair) __attribute__((noreturn));
static void serve(int pair)
{
    struct broker_answer done = {.what = BROKER_DONE};
    struct broker_order order;
    int conn;
    answer(pair, &done, -1);
    while (wait_for(pair, POLLIN)) {
        ssize_t got = qg_msg_recv(pair, &order, sizeof(order), &conn);
        if (got == -EAGAIN)
            continue;
        if (got != sizeof(order))
            break;
        interrupt_often(true);
        if (order.what == BROKER_FETCH && conn >= 0)
            fetch(pair, &order, conn);
        if (order.what != BROKER_HOLD && conn >= 0)
            close(conn);
        interrupt_often(false);
        done.id = order.id;
        answer(pair, &done, -1);
    }
    _exit(0);
}

static void close_all_but(int fd)
{
#ifdef SYS_close_range
    if ((fd == 0 || syscall(SYS_close_range, 0, fd - 1, 0) == 0) &&
        syscall(SYS_close_range, fd + 1, ~0u, 0) == 0)
        return;
#endif
    for (int i = 0; i < MAX_FD; i++)
        if (i != fd)
            close(i);
}

/* This process holds no descriptor of a user: a socketpair that it gives to a new broker is empty
 * then. So it never hangs. */
void broker_spawner(int sock)
{
    /* without SA_RESTART, so that the signal interrupts a waiting call */
    struct sigaction wake = {.sa_handler = nothing};
    uint32_t alive = 0;
    sigset_t none;
    int pair = -1;
    close_all_but(sock);
    /* opens 0, 1 and 2 again, since a library may write to standard error */
    for (int i = 0; i < 3; i++)
        placeholder = open("/dev/null", O_RDWR);
    placeholder = open("/dev/null", O_PATH | O_CLOEXEC);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_IGN);
    sigaction(SIGALRM, &wake, NULL);
    prctl(PR_SET_NAME, "qgpu-broker");
    while (wait_for(sock, POLLIN)) {
        char byte;
        ssize_t got = qg_msg_recv(sock, &byte, sizeof(byte), &pair);
        if (got == -EAGAIN)
            continue;
        if (got <= 0)
            break;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            alive--;
        pid_t pid = pair >= 0 && alive < MAX_BROKERS ? fork() : -1;
        if (pid == 0) {
            close(sock);
            serve(pair);
        }
        alive += pid > 0;
        /* Ours is not the last copy. The arbiter sends nothing over it before the broker's first
         * message. So this close cannot hang. */
        if (pair >= 0)
            close(pair);
    }
    _exit(0);
}
