/* SPDX-License-Identifier: Apache-2.0
 *
 * What users send along is touched by porters alone. close() of a descriptor that a user made may
 * never return: a FUSE file asks a server that never answers, and no signal ends that. So no such
 * descriptor is ever in our table: whether a message carries any is seen without taking it, and
 * then a process of its user's own (broker_child.c) takes it, passes on what is harmless, and
 * closes the rest. The same process ends connections whose queue is not empty. A user whose porters
 * all hang is hung up on; nobody else notices, and the arbiter can end, for it holds nothing that
 * hangs. Main thread only. serve/broker.c takes the
 * answers.
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

#define SLOW_NS  (20 * QP_MS)   /* busy for so long: another one is begun */
#define STUCK_NS (1000 * QP_MS) /* no answer for so long: it hangs */
enum { BROKERS_PER_USER = 2, FINISH_MS = 500 };

struct pool *broker_pools;
static int spawner = -1;
static pid_t spawner_pid;

bool broker_stuck(const struct broker *p, uint64_t now)
{
    return p->asked && ar_since(p->since_ns, now) >= STUCK_NS;
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
    pool->most = kind == POOL_HOLD ? HOLD_BROKERS : BROKERS_PER_USER;
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

/* At the start, before there is anything to inherit; once more if somebody ended it. */
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

/* At the end. The nursery ends with its socket and holds nothing that hangs; a service manager that
 * finds it alive after the arbiter waits for it, and with control groups of version 1 it may not
 * learn that it is gone. */
void broker_finish(void)
{
    int pidfd = spawner_pid > 0 ? (int)syscall(SYS_pidfd_open, spawner_pid, 0) : -1;
    struct pollfd gone = {.fd = pidfd, .events = POLLIN};
    if (spawner >= 0)
        close(spawner);
    spawner = -1;
    if (pidfd < 0)
        return; /* before Linux 5.3 it ends unwatched */
    poll(&gone, 1, FINISH_MS);
    close(pidfd);
}

static bool begin(const struct arbiter *a, struct broker *p, uint64_t now)
{
    int ends[2];
    if (now < p->pool->retry_ns)
        return false;
    p->pool->retry_ns = now + RETRY_NS;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    int err = qg_msg_send(spawner, "p", 1, &ends[1], 1);
    if (err && err != -EAGAIN && broker_start())
        err = qg_msg_send(spawner, "p", 1, &ends[1], 1);
    close(ends[1]);
    p->fd = ends[0];
    p->ready = p->ending = false;
    p->asked = 1; /* its first word */
    p->since_ns = now;
    if (!err)
        err = ar_watch(a, p->fd, &p->key);
    if (err) {
        close(p->fd);
        p->fd = -1;
        p->asked = 0;
        return false;
    }
    p->pool->retry_ns = 0;
    return true;
}

/* The least busy that does not hang. All hang, and no more may be made: *blocked. */
static struct broker *choose(const struct arbiter *a, struct pool *pool, uint64_t now,
                             bool *blocked)
{
    struct broker *best = NULL, *none = NULL;
    bool coming = false;
    for (uint32_t i = 0; i < pool->most; i++) {
        struct broker *p = &pool->broker[i];
        if (p->fd < 0) {
            none = p;
        } else if (!broker_stuck(p, now)) {
            coming |= !p->ready || p->ending;
            if (p->ready && !p->ending && (!best || p->asked < best->asked))
                best = p;
        }
    }
    *blocked = !best && !none && !coming;
    bool slow = !best || (best->asked && ar_since(best->since_ns, now) >= SLOW_NS);
    if (slow && none && !coming)
        begin(a, none, now);
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

/* Gives out what waits. False: all of this user's porters hang. */
bool broker_dispatch(const struct arbiter *a, struct pool *pool, uint64_t now)
{
    bool blocked = false;
    while (pool->first) {
        struct request *r = pool->first;
        struct conn *c = r->fd < 0 ? broker_conn(a, r->ask.id) : NULL;
        if (r->fd < 0 && !c) {
            drop(pool); /* it was closed meanwhile, and that is asked for apart */
            continue;
        }
        struct broker *p = choose(a, pool, now, &blocked);
        if (!p || qg_msg_send(p->fd, &r->ask, sizeof(r->ask), r->fd >= 0 ? &r->fd : &c->fd, 1) != 0)
            break;
        if (!p->asked++)
            p->since_ns = now;
        if (c)
            c->broker = p;
        drop(pool);
    }
    return !blocked;
}

bool broker_enqueue(const struct arbiter *a, struct pool *pool, int fd,
                    const struct broker_order *ask)
{
    struct request *r = pool ? calloc(1, sizeof(*r)) : NULL;
    if (!r)
        return false;
    r->fd = fd;
    r->ask = *ask;
    *pool->last = r;
    pool->last = &r->next;
    pool->used_ns = qg_now_ns();
    broker_dispatch(a, pool, pool->used_ns);
    return true;
}

/* Whether its queue may hold what a user made. Nothing can be added any more after shutdown(). */
static bool loaded(int sock)
{
    int bytes = 0;
    return ioctl(sock, SIOCINQ, &bytes) != 0 || bytes;
}

static void put(const struct arbiter *a, uid_t uid, int sock)
{
    struct broker_order ask = {.what = BROKER_CLOSE};
    if (!loaded(sock))
        close(sock);
    else if (!broker_enqueue(a, broker_pool_of_user(a, uid), sock, &ask))
        ar_log(a, 0, "no memory: a connection of uid %u stays open", uid);
}

void broker_hang_up(const struct arbiter *a, uid_t uid, int sock)
{
    shutdown(sock, SHUT_RDWR); /* the peer sees the end now, however long the queue takes */
    put(a, uid, sock);
}

void broker_close(const struct arbiter *a, uid_t uid, int sock)
{
    struct pollfd pfd = {.fd = sock};
    /* nobody hung up, so we have it open otherwise, and this close is not the last */
    if (poll(&pfd, 1, 0) == 0)
        close(sock);
    else
        put(a, uid, sock);
}
