/* SPDX-License-Identifier: Apache-2.0
 *
 * What users send along is touched by porters alone. close() of a descriptor that a user made may
 * never return: a FUSE file asks a server that never answers, and no signal ends that. So no such
 * descriptor is ever in our table: whether a message carries any is seen without taking it, and
 * then a process of its user's own (porter_child.c) takes it, passes on what is harmless, and
 * closes the rest. The same process ends connections whose queue is not empty. A user whose porters
 * all hang is hung up on; nobody else notices, and the arbiter can end, for it holds nothing that
 * hangs. Main thread only. serve/porter.c takes the
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
#include "fds/porter.h"
#include "fds/porter_pool.h"
#include "model/model.h"
#include "policy/policy.h"
#include "qg_msg.h"
#include "qg_time.h"

#define SLOW_NS  (20 * QP_MS)   /* busy for so long: another one is begun */
#define STUCK_NS (1000 * QP_MS) /* no answer for so long: it hangs */
enum { PORTERS = 2, FINISH_MS = 500 };

struct lane *porter_lanes;
static int nursery = -1;
static pid_t nursery_pid;

bool porter_stuck(const struct porter *p, uint64_t now)
{
    return p->asked && ar_since(p->since_ns, now) >= STUCK_NS;
}

struct lane *porter_lane(enum lane_kind kind, uid_t uid)
{
    struct lane *lane = porter_lanes;
    while (lane && (lane->kind != kind || (kind == LANE_USER && lane->uid != uid)))
        lane = lane->next;
    if (lane || !(lane = calloc(1, sizeof(*lane))))
        return lane;
    lane->kind = kind;
    lane->uid = uid;
    lane->most = kind == LANE_HOLD ? HOLDERS : PORTERS;
    lane->last = &lane->first;
    for (uint32_t i = 0; i < HOLDERS; i++)
        lane->porter[i] = (struct porter){.key = {KEY_PORTER}, .lane = lane, .fd = -1};
    lane->next = porter_lanes;
    porter_lanes = lane;
    return lane;
}

struct lane *porter_lane_of_user(const struct arbiter *a, uid_t uid)
{
    struct user *u = user_get(a, uid);
    struct lane *lane = u ? porter_lane(u->stranger ? LANE_STRANGERS : LANE_USER, uid) : NULL;
    user_forget(uid);
    return lane;
}

/* At the start, before there is anything to inherit; once more if somebody ended it. */
bool porter_start(void)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    pid_t pid = fork();
    if (pid == 0)
        porter_nursery(ends[1]);
    close(ends[1]);
    if (nursery >= 0)
        close(nursery);
    nursery = pid > 0 ? ends[0] : -1;
    nursery_pid = pid;
    if (pid < 0)
        close(ends[0]);
    return pid > 0;
}

/* At the end. The nursery ends with its socket and holds nothing that hangs; a service manager that
 * finds it alive after the arbiter waits for it, and with control groups of version 1 it may not
 * learn that it is gone. */
void porter_finish(void)
{
    int pidfd = nursery_pid > 0 ? (int)syscall(SYS_pidfd_open, nursery_pid, 0) : -1;
    struct pollfd gone = {.fd = pidfd, .events = POLLIN};
    if (nursery >= 0)
        close(nursery);
    nursery = -1;
    if (pidfd < 0)
        return; /* before Linux 5.3 it ends unwatched */
    poll(&gone, 1, FINISH_MS);
    close(pidfd);
}

static bool begin(const struct arbiter *a, struct porter *p, uint64_t now)
{
    int ends[2];
    if (now < p->lane->retry_ns)
        return false;
    p->lane->retry_ns = now + RETRY_NS;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    int err = qg_msg_send(nursery, "p", 1, &ends[1], 1);
    if (err && err != -EAGAIN && porter_start())
        err = qg_msg_send(nursery, "p", 1, &ends[1], 1);
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
    p->lane->retry_ns = 0;
    return true;
}

/* The least busy that does not hang. All hang, and no more may be made: *blocked. */
static struct porter *choose(const struct arbiter *a, struct lane *lane, uint64_t now,
                             bool *blocked)
{
    struct porter *best = NULL, *none = NULL;
    bool coming = false;
    for (uint32_t i = 0; i < lane->most; i++) {
        struct porter *p = &lane->porter[i];
        if (p->fd < 0) {
            none = p;
        } else if (!porter_stuck(p, now)) {
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

struct conn *porter_conn(const struct arbiter *a, uint64_t id)
{
    struct conn *c = a->conns;
    while (c && (c->dead || c->id != id))
        c = c->next;
    return c;
}

static void drop(struct lane *lane)
{
    struct request *r = lane->first;
    if (r->fd >= 0)
        close(r->fd);
    lane->first = r->next;
    if (!lane->first)
        lane->last = &lane->first;
    free(r);
}

/* Gives out what waits. False: all of this user's porters hang. */
bool porter_pump(const struct arbiter *a, struct lane *lane, uint64_t now)
{
    bool blocked = false;
    while (lane->first) {
        struct request *r = lane->first;
        struct conn *c = r->fd < 0 ? porter_conn(a, r->ask.id) : NULL;
        if (r->fd < 0 && !c) {
            drop(lane); /* it was closed meanwhile, and that is asked for apart */
            continue;
        }
        struct porter *p = choose(a, lane, now, &blocked);
        if (!p || qg_msg_send(p->fd, &r->ask, sizeof(r->ask), r->fd >= 0 ? &r->fd : &c->fd, 1) != 0)
            break;
        if (!p->asked++)
            p->since_ns = now;
        if (c)
            c->porter = p;
        drop(lane);
    }
    return !blocked;
}

bool porter_push(const struct arbiter *a, struct lane *lane, int fd, const struct porter_ask *ask)
{
    struct request *r = lane ? calloc(1, sizeof(*r)) : NULL;
    if (!r)
        return false;
    r->fd = fd;
    r->ask = *ask;
    *lane->last = r;
    lane->last = &r->next;
    lane->used_ns = qg_now_ns();
    porter_pump(a, lane, lane->used_ns);
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
    struct porter_ask ask = {.what = PORTER_CLOSE};
    if (!loaded(sock))
        close(sock);
    else if (!porter_push(a, porter_lane_of_user(a, uid), sock, &ask))
        ar_log(a, 0, "no memory: a connection of uid %u stays open", uid);
}

void porter_hang_up(const struct arbiter *a, uid_t uid, int sock)
{
    shutdown(sock, SHUT_RDWR); /* the peer sees the end now, however long the queue takes */
    put(a, uid, sock);
}

void porter_close(const struct arbiter *a, uid_t uid, int sock)
{
    struct pollfd pfd = {.fd = sock};
    /* nobody hung up, so we have it open otherwise, and this close is not the last */
    if (poll(&pfd, 1, 0) == 0)
        close(sock);
    else
        put(a, uid, sock);
}
