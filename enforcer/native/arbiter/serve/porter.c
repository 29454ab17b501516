/* SPDX-License-Identifier: Apache-2.0
 *
 * The main thread's part of the descriptor brokers (fds/porter_pool.c): hands connections to them,
 * takes their answers, and gives up those that hang.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base.h"
#include "fds/fds.h"
#include "fds/porter.h"
#include "fds/porter_pool.h"
#include "hw/hw.h"
#include "model/model.h"
#include "peer/peer.h"
#include "policy/policy.h"
#include "serve/serve.h"
#include "qg_msg.h"
#include "qg_time.h"

#define IDLE_NS (10000 * QP_MS) /* nothing to do for so long: it ends */
enum { REVIEW_MS = 50, IDLE_REVIEW_MS = 1000 };

void porter_fetch(struct arbiter *a, struct conn *c, const void *peeked, size_t cap)
{
    struct porter_ask ask = {.what = PORTER_FETCH, .id = c->id};
    ask.has_device = hw_control_of(a, peeked, cap, &ask.device);
    epoll_ctl(a->epfd, EPOLL_CTL_DEL, c->fd, NULL);
    c->lent = true;
    if (!porter_push(a, porter_lane_of_user(a, c->uid), -1, &ask))
        conn_close(a, c);
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
    struct conn *c = porter_conn(a, answer->id);
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
    porter_pump(a, p->lane, now);
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
        struct conn *c = r->fd < 0 ? porter_conn(a, r->ask.id) : NULL;
        next = r->next;
        r->ask.what = PORTER_HOLD;
        if (c)
            conn_close(a, c); /* comes here by itself */
        if (r->fd >= 0 && !porter_push(a, porter_lane(LANE_HOLD, 0), r->fd, &r->ask))
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
    int wait = porter_lanes ? IDLE_REVIEW_MS : -1;
    for (struct lane **at = &porter_lanes; *at;) {
        struct lane *lane = *at;
        for (uint32_t i = 0; i < lane->most; i++) {
            struct porter *p = &lane->porter[i];
            if (porter_stuck(p, now))
                hang_up_on_lent(a, p);
            if (p->asked)
                wait = REVIEW_MS;
        }
        if (!porter_pump(a, lane, now) && lane->kind != LANE_HOLD)
            give_up(a, lane);
        if (lane->first)
            wait = REVIEW_MS;
        if (!retire(lane, now)) {
            at = &(*at)->next;
            continue;
        }
        at = &porter_lanes; /* a lane may have been put before this one meanwhile */
        while (*at != lane)
            at = &(*at)->next;
        *at = lane->next;
        free(lane);
    }
    return wait;
}
