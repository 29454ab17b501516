/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections to both sockets. They are accepted in small batches, limited per user, and read one
 * message at a time. So a user who floods the socket is refused. No other user waits for him.
 * Unknown uids share a small limit of their own, where a new connection replaces the oldest. Of the
 * grantees none may have more connections than are still free.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "fds/fds.h"
#include "fds/broker.h"
#include "fds/broker_pool.h"
#include "hw/hw.h"
#include "model/model.h"
#include "peer/peer.h"
#include "policy/policy.h"
#include "serve/serve.h"
#include "tenant/tenant.h"
#include "qg_msg.h"
#include "qg_time.h"

#ifndef SO_PEERPIDFD /* the kernel's value, which older headers lack */
#define SO_PEERPIDFD 77
#endif

enum {
    /* Connections to enforcer.sock; each takes two descriptors of the arbiter. Chosen, not
     * measured. */
    MAX_CONNS = 4096,           /* of all grantees */
    MAX_CONNS_PER_USER = 1024,  /* of one grantee */
    MAX_WAITING_PER_USER = 256, /* of one grantee, not registered */
    MAX_UNKNOWN = 256,          /* of all unknown uids */
    MAX_UNKNOWN_PER_USER = 32,  /* of one unknown uid */
    /* The last two, before the first list of grants. Most of these uids then have a grant that the
     * arbiter does not know yet. */
    MAX_EARLY = 1024,
    MAX_EARLY_PER_USER = 256,
    MAX_CONTROL = 8, /* of qgpud and root's commands; chosen, not measured */
    /* Connections that wait to be accepted; the system may allow fewer. Where the queue is full, a
     * shim tries again 100 ms later. As MAX_CONNS. */
    BACKLOG = 4096,
    ACCEPT_BATCH = 64,         /* accepted in one pass of the main loop; chosen, not measured */
    MESSAGE_BURST = 64,        /* messages of one connection at once; chosen, not measured */
    MESSAGES_PER_SECOND = 200, /* of one connection, in the long run; chosen, not measured */
    /* Seconds after which an unregistered connection is closed, so that idle ones do not fill the
     * limits. Chosen, not measured. */
    WAITING_SECONDS = 5
};

/* A descriptor that is kept free for accepting one more connection when all others are in use. */
static int spare_fd = -1;

/* Accepts a connection with the spare descriptor and ends it. Without that it would stay in the
 * queue and wake the main thread again and again. */
static void refuse_one(const struct arbiter *a, int listener)
{
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t len = sizeof(peer);
    close(spare_fd);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    spare_fd = -1;
    if (fd < 0)
        return;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len);
    broker_hang_up(a, peer.uid, fd);
}

/* Opens the spare descriptor again if it is in use. That fails until a connection was closed,
 * perhaps by a broker; none is accepted before. */
static bool have_spare(void)
{
    if (spare_fd < 0)
        spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    /* The listener stays readable meanwhile: 1 ms of sleep keeps the loop from spinning. */
    if (spare_fd < 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return spare_fd >= 0;
}

int listen_open(struct arbiter *a, const char *name, mode_t mode)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (strlen(a->run_dir) + strlen(name) + 2 > sizeof(addr.sun_path))
        return -ENAMETOOLONG;
    strcpy(addr.sun_path, a->run_dir);
    strcat(addr.sun_path, "/");
    strcat(addr.sun_path, name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    have_spare();
    unlink(addr.sun_path); /* left by an earlier arbiter: the lock proves that none is alive */
    mode_t old = umask(0777 & ~mode);
    int bad = bind(fd, (struct sockaddr *)&addr, sizeof(addr));
    umask(old);
    if (!bad && listen(fd, BACKLOG) == 0)
        return fd;
    int err = -errno;
    close(fd);
    return err;
}

static bool may_control(const struct arbiter *a, uid_t uid)
{
    uint32_t control = 0;
    for (const struct conn *c = a->conns; c; c = c->next)
        control += !c->closed && c->kind == CONN_CONTROL;
    return (uid == 0 || uid == a->owner) && control < MAX_CONTROL;
}

/* Where the limit is reached, the oldest connection is closed: it had time to send its message. So
 * each connection gets a chance, even in a flood. A process that shows a grant is then no longer of
 * an unknown uid. */
static bool room_for_unknown(struct arbiter *a, const struct user *u)
{
    uint32_t most = a->ever_synced ? MAX_UNKNOWN : MAX_EARLY;
    if (u->waiting >= (a->ever_synced ? MAX_UNKNOWN_PER_USER : MAX_EARLY_PER_USER))
        return false;
    while (users_unknown_waiting() >= most) {
        struct conn *oldest = NULL;
        for (struct conn *c = a->conns; c; c = c->next) {
            if (!c->closed && c->user && c->user->unknown && !c->registered)
                oldest = c;
        }
        if (!oldest)
            break;
        conn_close(a, oldest);
    }
    return true;
}

/* No grantee may have more connections than are free, so that others always find room. Where this
 * leaves one too few, the grantee with most connections loses his newest unregistered one. */
static bool room_for_grantee(struct arbiter *a, const struct user *u)
{
    uint32_t known = a->nconns - users_unknown_waiting();
    if (u->conns >= MAX_CONNS_PER_USER || u->waiting >= MAX_WAITING_PER_USER)
        return false;
    if (ar_may_hold(u->conns, known, MAX_CONNS))
        return true;
    const struct user *biggest = users_most_connections();
    if (!biggest || biggest->conns <= u->conns + 1)
        return false;
    struct conn *newest = a->conns;
    while (newest && (newest->closed || newest->user != biggest || newest->registered))
        newest = newest->next;
    if (newest)
        conn_close(a, newest);
    return newest;
}

static bool allowed(struct arbiter *a, uid_t uid, enum conn_kind kind)
{
    if (kind == CONN_CONTROL)
        return may_control(a, uid);
    users_review(a);
    struct user *u = user_get(a, uid);
    if (!u)
        return false;
    return u->unknown ? room_for_unknown(a, u) : room_for_grantee(a, u);
}

/* The process at the other end, as a pidfd: its pid alone may soon belong to another process. */
static int peer_pidfd(int fd, pid_t pid)
{
    int pidfd = -1;
    socklen_t len = sizeof(pidfd);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0)
        return pidfd;
    if (errno != ENOPROTOOPT)
        return -1; /* it has ended already, and its pid may belong to another process */
    return (int)syscall(SYS_pidfd_open, pid, 0); /* before Linux 6.5 */
}

static struct conn *conn_create(struct arbiter *a, int fd, enum conn_kind kind,
                                const struct ucred *peer)
{
    static uint64_t made;
    struct conn *c = calloc(1, sizeof(*c));
    struct user *u = kind == CONN_TENANT ? user_get(a, peer->uid) : NULL;
    if (!c || (kind == CONN_TENANT && !u)) {
        free(c);
        return NULL;
    }
    c->key.kind = KEY_CONN;
    c->id = ++made;
    c->kind = kind;
    c->fd = fd;
    c->pid = peer->pid;
    c->uid = peer->uid;
    c->pidfd = kind == CONN_TENANT && peer->pid > 0 ? peer_pidfd(fd, peer->pid) : -1;
    c->opened_ns = c->since_ns = c->bucket_ns = qg_now_ns();
    c->bucket = MESSAGE_BURST;
    if ((kind == CONN_TENANT && c->pidfd < 0) || ar_watch(a, fd, &c->key) != 0) {
        if (c->pidfd >= 0)
            close(c->pidfd);
        free(c);
        return NULL;
    }
    c->next = a->conns;
    a->conns = c;
    if (!u)
        return c;
    c->user = u;
    u->conns++;
    user_wait(u, 1);
    a->nconns++;
    return c;
}

/* The main thread does not wait until qgpud reads. So a whole list of tenants must fit into the
 * send buffer. 16 MiB are more than the tenants of 64 cards take. With CAP_NET_ADMIN,
 * SO_SNDBUFFORCE exceeds the system's limit. */
static void enlarge_send_buffer(int fd)
{
    int room = 16 << 20;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) == 0)
        return;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
}

void conn_accept(struct arbiter *a, int listener, enum conn_kind kind)
{
    for (int i = 0; i < ACCEPT_BATCH && have_spare(); i++) {
        struct ucred peer = {.uid = (uid_t)-1};
        socklen_t len = sizeof(peer);
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                refuse_one(a, listener);
            return;
        }
        bool named = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0;
        if (!named || !allowed(a, peer.uid, kind) || !conn_create(a, fd, kind, &peer)) {
            broker_hang_up(a, peer.uid, fd);
            if (named)
                user_forget(peer.uid);
            continue;
        }
        if (kind == CONN_CONTROL)
            enlarge_send_buffer(fd);
    }
}

/* May it send a message now? qgpud always may. */
static bool take_message_token(struct conn *c)
{
    uint64_t now = qg_now_ns(),
             earned = (now - c->bucket_ns) / (1000000000ull / MESSAGES_PER_SECOND);
    if (c->kind == CONN_CONTROL)
        return true;
    if (earned) {
        c->bucket =
            c->bucket + earned > MESSAGE_BURST ? MESSAGE_BURST : c->bucket + (uint32_t)earned;
        c->bucket_ns = now;
    }
    if (!c->bucket)
        return false;
    c->bucket--;
    return true;
}

void conn_message(struct arbiter *a, struct conn *c, const void *buf, size_t len, int fd)
{
    struct qg_msg_head head = {0};
    if (len >= sizeof(head))
        memcpy(&head, buf, sizeof(head));
    if (c->kind == CONN_CONTROL) {
        if (!control_message(a, c, buf, len))
            conn_close(a, c);
    } else {
        switch (head.type) {
        case QG_MSG_GROUPS:
            hw_groups(a, c, buf, len, &fd);
            break;
        case QG_MSG_ACTED:
            hw_acted(a, c, buf, len);
            break;
        default:
            register_message(a, c, buf, len, fd);
            break;
        }
    }
    if (fd >= 0)
        close_helper_close(fd);
}

void conn_ready(struct arbiter *a, struct conn *c, uint32_t events)
{
    char bytes[BROKER_MESSAGE_BYTES] = {0};
    int fd = -1;
    if (c->closed || c->with_broker)
        return;
    if (events & EPOLLOUT)
        reaped_report(a, c);
    if (c->closed || events == EPOLLOUT)
        return;
    ssize_t got = c->kind == CONN_CONTROL ? qg_msg_recv(c->fd, bytes, sizeof(bytes), &fd)
                                          : qg_msg_recv_bare(c->fd, bytes, sizeof(bytes));
    if (got == -EAGAIN && !(events & (EPOLLHUP | EPOLLERR)))
        return;
    bool with_descriptors = got == -EXFULL;
    if ((got <= 0 && !with_descriptors) || !take_message_token(c))
        conn_close(a, c);
    else if (with_descriptors)
        broker_fetch(a, c, bytes, sizeof(bytes));
    else
        conn_message(a, c, bytes, (size_t)got, fd);
}

int conn_sweep(struct arbiter *a, uint64_t now)
{
    int wait = -1;
    for (struct conn *c = a->conns; c; c = c->next) {
        if (c->closed || c->registered || c->kind == CONN_CONTROL)
            continue;
        if (now - c->since_ns > WAITING_SECONDS * 1000 * QP_MS)
            conn_close(a, c);
        else
            wait = 1000; /* ms: checks each second, precise enough for WAITING_SECONDS */
    }
    for (struct conn **at = &a->conns; *at;) {
        struct conn *c = *at;
        if (!c->closed) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        free(c);
    }
    return wait;
}
