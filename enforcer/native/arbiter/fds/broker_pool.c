/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools of descriptor brokers, which alone take the descriptors that users send. close() of a
 * user's descriptor may never return: a FUSE file asks its server, which may not answer, and no
 * signal ends that. So no such descriptor is ever in the arbiter's own table. The arbiter sees
 * without taking a message whether it carries any. Then a process for its user (broker_child.c)
 * takes the message. It passes on what is harmless and closes the rest. It also closes connections
 * with a queue that is not empty. If all brokers of a user hang, his connections are ended; no
 * other user is affected. The arbiter itself holds no descriptor that hangs, so it can always end.
 * Main thread only. serve/broker.c takes the answers.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"
#include "fds/fds.h"
#include "fds/broker.h"
#include "fds/broker_pool.h"
#include "model/model.h"
#include "policy/policy.h"
#include "qg_msg.h"
#include "qg_time.h"

/* A broker that owes an answer for 20 ms is slow: another is started. A harmless message takes far
 * less than 1 ms. Chosen, not measured. */
#define SLOW_NS (20 * QP_MS)
/* One that owes an answer for 1 s hangs. Long enough for a broker on a loaded node; chosen, not
 * measured. */
#define STUCK_NS (1000 * QP_MS)
enum {
    BROKERS_PER_USER = 2, /* one may be slow while another serves; a user can hang no more */
    FINISH_MS = 500       /* the arbiter's end waits this long for the spawner; chosen */
};

struct pool *broker_pools;
static int spawner = -1;
static pid_t spawner_pid;

bool broker_stuck(const struct broker *b, uint64_t now)
{
    return b->awaited && ar_since(b->since_ns, now) >= STUCK_NS;
}

struct pool *broker_pool(enum pool_kind kind, uid_t uid)
{
    struct pool *pool = broker_pools;
    while (pool && (pool->kind != kind || (kind == POOL_USER && pool->uid != uid)))
        pool = pool->next;
    if (pool || !(pool = calloc(1, sizeof(*pool))))
        return pool;
    pool->kind = kind;
    pool->uid = uid;
    pool->max_brokers = kind == POOL_HOLD ? HOLD_BROKERS : BROKERS_PER_USER;
    pool->last = &pool->first;
    for (uint32_t i = 0; i < HOLD_BROKERS; i++)
        pool->broker[i] = (struct broker){.key = {KEY_BROKER}, .pool = pool, .fd = -1};
    pool->next = broker_pools;
    broker_pools = pool;
    return pool;
}

struct pool *broker_pool_of_user(const struct arbiter *a, uid_t uid)
{
    struct user *u = user_get(a, uid);
    struct pool *pool = u ? broker_pool(u->unknown ? POOL_UNKNOWN : POOL_USER, uid) : NULL;
    user_forget(uid);
    return pool;
}

/* Forks the spawner when the arbiter starts, before there are descriptors that it would inherit.
 * Forks it again if it was killed. */
bool broker_start(void)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    pid_t pid = fork();
    if (pid == 0)
        broker_spawner(ends[1]);
    close(ends[1]);
    if (spawner >= 0)
        close(spawner);
    spawner = pid > 0 ? ends[0] : -1;
    spawner_pid = pid;
    if (pid < 0)
        close(ends[0]);
    return pid > 0;
}

/* Waits for the spawner's end, which comes when its socket is closed. A service manager that finds
 * it alive after the arbiter would wait for it; with control groups of version 1 it may never learn
 * of its end. */
void broker_finish(void)
{
    int pidfd = spawner_pid > 0 ? (int)syscall(SYS_pidfd_open, spawner_pid, 0) : -1;
    struct pollfd gone = {.fd = pidfd, .events = POLLIN};
    if (spawner >= 0)
        close(spawner);
    spawner = -1;
    if (pidfd < 0)
        return; /* before Linux 5.3 there is no pidfd to wait with */
    poll(&gone, 1, FINISH_MS);
    close(pidfd);
}

static bool start_broker(const struct arbiter *a, struct broker *b, uint64_t now)
{
    int ends[2];
    if (now < b->pool->retry_ns)
        return false;
    b->pool->retry_ns = now + RETRY_NS;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    int err = qg_msg_send(spawner, "p", 1, &ends[1], 1);
    if (err && err != -EAGAIN && broker_start())
        err = qg_msg_send(spawner, "p", 1, &ends[1], 1);
    close(ends[1]);
    b->fd = ends[0];
    b->ready = b->ending = false;
    b->awaited = 1; /* its first message */
    b->since_ns = now;
    if (!err)
        err = ar_watch(a, b->fd, &b->key);
    if (err) {
        close(b->fd);
        b->fd = -1;
        b->awaited = 0;
        return false;
    }
    b->pool->retry_ns = 0;
    return true;
}

/* The least busy broker that does not hang, NULL = none. *blocked: all hang, and the pool may have
 * no more. */
static struct broker *choose(const struct arbiter *a, struct pool *pool, uint64_t now,
                             bool *blocked)
{
    struct broker *best = NULL, *none = NULL;
    bool coming = false;
    for (uint32_t i = 0; i < pool->max_brokers; i++) {
        struct broker *b = &pool->broker[i];
        if (b->fd < 0) {
            none = b;
        } else if (!broker_stuck(b, now)) {
            coming |= !b->ready || b->ending;
            if (b->ready && !b->ending && (!best || b->awaited < best->awaited))
                best = b;
        }
    }
    *blocked = !best && !none && !coming;
    bool slow = !best || (best->awaited && ar_since(best->since_ns, now) >= SLOW_NS);
    if (slow && none && !coming)
        start_broker(a, none, now);
    return best;
}

struct conn *broker_conn(const struct arbiter *a, uint64_t id)
{
    struct conn *c = a->conns;
    while (c && (c->closed || c->id != id))
        c = c->next;
    return c;
}

static void drop(struct pool *pool)
{
    struct request *r = pool->first;
    if (r->fd >= 0)
        close(r->fd);
    pool->first = r->next;
    if (!pool->first)
        pool->last = &pool->first;
    free(r);
}

bool broker_dispatch(const struct arbiter *a, struct pool *pool, uint64_t now)
{
    bool blocked = false;
    while (pool->first) {
        struct request *r = pool->first;
        struct conn *c = r->fd < 0 ? broker_conn(a, r->order.id) : NULL;
        if (r->fd < 0 && !c) {
            drop(pool); /* the connection was closed meanwhile, which has an order of its own */
            continue;
        }
        struct broker *b = choose(a, pool, now, &blocked);
        if (!b ||
            qg_msg_send(b->fd, &r->order, sizeof(r->order), r->fd >= 0 ? &r->fd : &c->fd, 1) != 0)
            break;
        if (!b->awaited++)
            b->since_ns = now;
        if (c)
            c->broker = b;
        drop(pool);
    }
    return !blocked;
}

bool broker_enqueue(const struct arbiter *a, struct pool *pool, int fd,
                    const struct broker_order *order)
{
    struct request *r = pool ? calloc(1, sizeof(*r)) : NULL;
    if (!r)
        return false;
    r->fd = fd;
    r->order = *order;
    *pool->last = r;
    pool->last = &r->next;
    pool->used_ns = qg_now_ns();
    broker_dispatch(a, pool, pool->used_ns);
    return true;
}

/* May its queue hold a user's descriptor? After shutdown() none can be added any more. */
static bool may_hold_descriptors(int sock)
{
    int bytes = 0;
    return ioctl(sock, SIOCINQ, &bytes) != 0 || bytes;
}

static void close_or_order(const struct arbiter *a, uid_t uid, int sock)
{
    struct broker_order order = {.what = BROKER_CLOSE};
    if (!may_hold_descriptors(sock))
        close(sock);
    else if (!broker_enqueue(a, broker_pool_of_user(a, uid), sock, &order))
        ar_log(a, 0, "no memory: a connection of uid %u stays open", uid);
}

void broker_hang_up(const struct arbiter *a, uid_t uid, int sock)
{
    shutdown(sock, SHUT_RDWR); /* the peer sees the end now, however long the closing takes */
    close_or_order(a, uid, sock);
}

void broker_close(const struct arbiter *a, uid_t uid, int sock)
{
    struct pollfd pfd = {.fd = sock};
    /* Neither end was closed, so the arbiter has the connection itself open. Only the last close
     * may block, and this is not the last. */
    if (poll(&pfd, 1, 0) == 0)
        close(sock);
    else
        close_or_order(a, uid, sock);
}
