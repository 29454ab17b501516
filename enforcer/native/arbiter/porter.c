/* SPDX-License-Identifier: Apache-2.0
 *
 * What users send along is touched by porters alone. close() of a descriptor that a user made may
 * never return: a FUSE file asks a server that never answers, and no signal ends that. So no such
 * descriptor is ever in our table: whether a message carries any is seen without taking it, and
 * then a process of its user's own (porter_child.c) takes it, passes on what is harmless, and
 * closes the rest. The same process ends connections whose queue is not empty. A user whose porters
 * all hang is hung up on; nobody else notices, and the arbiter can end, for it holds nothing that
 * hangs. Main thread only.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arbiter.h"
#include "porter.h"
#include "qg_msg.h"
#include "qg_time.h"

#define SLOW_NS  (20 * QP_MS)    /* busy for so long: another one is begun */
#define STUCK_NS (1000 * QP_MS)  /* no answer for so long: it hangs */
#define RETRY_NS (1000 * QP_MS)  /* after one could not be made */
#define IDLE_NS  (10000 * QP_MS) /* nothing to do for so long: it ends */
enum { PORTERS = 2, HOLDERS = 16, REVIEW_MS = 50, IDLE_REVIEW_MS = 1000, FINISH_MS = 500 };

struct request {
    struct request *next;
    /* ours to close once a porter has it too; -1: a connection that still lives, found by ask.id */
    int fd;
    struct porter_ask ask;
};

struct porter {
    struct key key; /* first */
    struct lane *lane;
    int fd;             /* -1 = there is none */
    bool ready, ending; /* ending: told to; what it holds it may have to wait for */
    uint32_t asked;     /* so many answers are awaited */
    uint64_t since_ns;  /* the last answer, or the first of these questions */
};

/* Of one user; of all strangers; of connections that nobody is left to close. */
struct lane {
    struct lane *next;
    enum lane_kind { LANE_USER, LANE_STRANGERS, LANE_HOLD } kind;
    uid_t uid;
    uint32_t most;
    bool said;
    struct request *first, **last;
    uint64_t used_ns, retry_ns;
    struct porter porter[HOLDERS];
};

static struct lane *lanes;
static int nursery = -1;
static pid_t nursery_pid;

static bool stuck(const struct porter *p, uint64_t now)
{
    return p->asked && ar_since(p->since_ns, now) >= STUCK_NS;
}

static struct lane *lane_of(enum lane_kind kind, uid_t uid)
{
    struct lane *lane = lanes;
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
    lane->next = lanes;
    lanes = lane;
    return lane;
}

static struct lane *lane_of_user(const struct arbiter *a, uid_t uid)
{
    struct user *u = user_get(a, uid);
    struct lane *lane = u ? lane_of(u->stranger ? LANE_STRANGERS : LANE_USER, uid) : NULL;
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
        } else if (!stuck(p, now)) {
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

static struct conn *find(const struct arbiter *a, uint64_t id)
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
static bool pump(const struct arbiter *a, struct lane *lane, uint64_t now)
{
    bool blocked = false;
    while (lane->first) {
        struct request *r = lane->first;
        struct conn *c = r->fd < 0 ? find(a, r->ask.id) : NULL;
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

static bool push(const struct arbiter *a, struct lane *lane, int fd, const struct porter_ask *ask)
{
    struct request *r = lane ? calloc(1, sizeof(*r)) : NULL;
    if (!r)
        return false;
    r->fd = fd;
    r->ask = *ask;
    *lane->last = r;
    lane->last = &r->next;
    lane->used_ns = qg_now_ns();
    pump(a, lane, lane->used_ns);
    return true;
}

void porter_fetch(struct arbiter *a, struct conn *c, const void *peeked, size_t cap)
{
    struct porter_ask ask = {.what = PORTER_FETCH, .id = c->id};
    ask.has_device = hw_control_of(a, peeked, cap, &ask.device);
    epoll_ctl(a->epfd, EPOLL_CTL_DEL, c->fd, NULL);
    c->lent = true;
    if (!push(a, lane_of_user(a, c->uid), -1, &ask))
        conn_close(a, c);
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
    else if (!push(a, lane_of_user(a, uid), sock, &ask))
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

static void end(const struct arbiter *a, struct porter *p)
{
    epoll_ctl(a->epfd, EPOLL_CTL_DEL, p->fd, NULL);
    close(p->fd); /* what lies in its queue was looked at */
    p->fd = -1;
    p->asked = 0;
}

static void hang_up_on_lent(struct arbiter *a, const struct porter *p)
{
    for (struct conn *c = a->conns; c; c = c->next) {
        if (!c->dead && c->porter == p)
            conn_close(a, c);
    }
}

static void take_back(struct arbiter *a, const struct porter_answer *answer, int fd)
{
    struct conn *c = find(a, answer->id);
    if (!c || !c->lent) {
        if (fd >= 0)
            closer_close(fd);
        return;
    }
    c->lent = false;
    c->porter = NULL;
    if (ar_watch(a, c->fd, &c->key) != 0 || answer->got <= 0) {
        if (fd >= 0)
            closer_close(fd);
        conn_close(a, c);
        return;
    }
    conn_message(a, c, answer->bytes, (size_t)answer->got, fd);
}

void porter_ready(struct arbiter *a, struct key *key)
{
    struct porter *p = (struct porter *)key;
    struct porter_answer answer;
    uint64_t now = qg_now_ns();
    const size_t head = offsetof(struct porter_answer, bytes);
    int fd;
    while (p->fd >= 0) {
        ssize_t got = qg_msg_recv(p->fd, &answer, sizeof(answer), &fd);
        if (got == -EAGAIN)
            break;
        /* somebody ended it */
        if (got < (ssize_t)head || (answer.got > 0 && (size_t)got != head + (size_t)answer.got)) {
            if (fd >= 0)
                closer_close(fd);
            p->lane->retry_ns = p->ready ? 0 : now + RETRY_NS;
            end(a, p);
            hang_up_on_lent(a, p);
            break;
        }
        p->since_ns = now;
        p->ready = true;
        if (answer.what == PORTER_MESSAGE)
            take_back(a, &answer, fd);
        else
            p->asked--;
    }
    pump(a, p->lane, now);
}

/* The connections are kept by somebody who closes nothing, so that they do not fill our table. */
static void give_up(struct arbiter *a, struct lane *lane)
{
    if (!lane->said)
        ar_log(a, 1,
               lane->kind == LANE_USER
                   ? "what uid %u sent cannot be closed; he is hung up on until it is"
                   : "what users without a grant sent cannot be closed (the last: uid %u)",
               lane->uid);
    lane->said = true;
    struct request *r = lane->first;
    lane->first = NULL;
    lane->last = &lane->first;
    for (struct request *next; r; r = next) {
        struct conn *c = r->fd < 0 ? find(a, r->ask.id) : NULL;
        next = r->next;
        r->ask.what = PORTER_HOLD;
        if (c)
            conn_close(a, c); /* comes here by itself */
        if (r->fd >= 0 && !push(a, lane_of(LANE_HOLD, 0), r->fd, &r->ask))
            ar_log(a, 0, "no memory: a connection stays open");
        free(r);
    }
}

/* Nothing to do, and for a while already: the porters end. Each keeps its place until it did, so
 * that no user ever has more processes than places. True: none is left. */
static bool retire(struct lane *lane, uint64_t now)
{
    bool any = false;
    if (lane->first || ar_since(lane->used_ns, now) < IDLE_NS)
        return false;
    for (uint32_t i = 0; i < lane->most; i++) {
        struct porter *p = &lane->porter[i];
        any |= p->fd >= 0;
        if (p->fd < 0 || p->asked)
            continue;
        shutdown(p->fd, SHUT_WR);
        p->ending = true;
        p->asked = 1; /* its end is the answer */
        p->since_ns = now;
    }
    return !any;
}

int porter_review(struct arbiter *a, uint64_t now)
{
    int wait = lanes ? IDLE_REVIEW_MS : -1;
    for (struct lane **at = &lanes; *at;) {
        struct lane *lane = *at;
        for (uint32_t i = 0; i < lane->most; i++) {
            struct porter *p = &lane->porter[i];
            if (stuck(p, now))
                hang_up_on_lent(a, p);
            if (p->asked)
                wait = REVIEW_MS;
        }
        if (!pump(a, lane, now) && lane->kind != LANE_HOLD)
            give_up(a, lane);
        if (lane->first)
            wait = REVIEW_MS;
        if (!retire(lane, now)) {
            at = &(*at)->next;
            continue;
        }
        at = &lanes; /* a lane may have been put before this one meanwhile */
        while (*at != lane)
            at = &(*at)->next;
        *at = lane->next;
        free(lane);
    }
    return wait;
}
