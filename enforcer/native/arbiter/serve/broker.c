/* SPDX-License-Identifier: Apache-2.0
 *
 * The main thread's part of the descriptor brokers (fds/broker_pool.c): hands connections to them,
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
#include "fds/broker.h"
#include "fds/broker_pool.h"
#include "hw/hw.h"
#include "model/model.h"
#include "peer/peer.h"
#include "policy/policy.h"
#include "serve/serve.h"
#include "qg_msg.h"
#include "qg_time.h"

#define IDLE_NS (10000 * QP_MS) /* nothing to do for so long: it ends */
enum { REVIEW_MS = 50, IDLE_REVIEW_MS = 1000 };

void broker_fetch(struct arbiter *a, struct conn *c, const void *peeked, size_t cap)
{
    struct broker_order ask = {.what = BROKER_FETCH, .id = c->id};
    ask.has_device = hw_control_of(a, peeked, cap, &ask.device);
    epoll_ctl(a->epfd, EPOLL_CTL_DEL, c->fd, NULL);
    c->with_broker = true;
    if (!broker_enqueue(a, broker_pool_of_user(a, c->uid), -1, &ask))
        conn_close(a, c);
}

static void end(const struct arbiter *a, struct broker *p)
{
    epoll_ctl(a->epfd, EPOLL_CTL_DEL, p->fd, NULL);
    close(p->fd); /* what lies in its queue was looked at */
    p->fd = -1;
    p->asked = 0;
}

static void hang_up_on_connections_of(struct arbiter *a, const struct broker *p)
{
    for (struct conn *c = a->conns; c; c = c->next) {
        if (!c->closed && c->broker == p)
            conn_close(a, c);
    }
}

static void return_connection(struct arbiter *a, const struct broker_answer *answer, int fd)
{
    struct conn *c = broker_conn(a, answer->id);
    if (!c || !c->with_broker) {
        if (fd >= 0)
            close_helper_close(fd);
        return;
    }
    c->with_broker = false;
    c->broker = NULL;
    if (ar_watch(a, c->fd, &c->key) != 0 || answer->got <= 0) {
        if (fd >= 0)
            close_helper_close(fd);
        conn_close(a, c);
        return;
    }
    conn_message(a, c, answer->bytes, (size_t)answer->got, fd);
}

void broker_ready(struct arbiter *a, struct key *key)
{
    struct broker *p = (struct broker *)key;
    struct broker_answer answer;
    uint64_t now = qg_now_ns();
    const size_t head = offsetof(struct broker_answer, bytes);
    int fd;
    while (p->fd >= 0) {
        ssize_t got = qg_msg_recv(p->fd, &answer, sizeof(answer), &fd);
        if (got == -EAGAIN)
            break;
        /* somebody ended it */
        if (got < (ssize_t)head || (answer.got > 0 && (size_t)got != head + (size_t)answer.got)) {
            if (fd >= 0)
                close_helper_close(fd);
            p->pool->retry_ns = p->ready ? 0 : now + RETRY_NS;
            end(a, p);
            hang_up_on_connections_of(a, p);
            break;
        }
        p->since_ns = now;
        p->ready = true;
        if (answer.what == BROKER_MESSAGE)
            return_connection(a, &answer, fd);
        else
            p->asked--;
    }
    broker_dispatch(a, p->pool, now);
}

/* The connections are kept by somebody who closes nothing, so that they do not fill our table. */
static void give_up(struct arbiter *a, struct pool *pool)
{
    if (!pool->said)
        ar_log(a, 1,
               pool->kind == POOL_USER
                   ? "what uid %u sent cannot be closed; he is hung up on until it is"
                   : "what users without a grant sent cannot be closed (the last: uid %u)",
               pool->uid);
    pool->said = true;
    struct request *r = pool->first;
    pool->first = NULL;
    pool->last = &pool->first;
    for (struct request *next; r; r = next) {
        struct conn *c = r->fd < 0 ? broker_conn(a, r->ask.id) : NULL;
        next = r->next;
        r->ask.what = BROKER_HOLD;
        if (c)
            conn_close(a, c); /* comes here by itself */
        if (r->fd >= 0 && !broker_enqueue(a, broker_pool(POOL_HOLD, 0), r->fd, &r->ask))
            ar_log(a, 0, "no memory: a connection stays open");
        free(r);
    }
}

/* Nothing to do, and for a while already: the porters end. Each keeps its place until it did, so
 * that no user ever has more processes than places. True: none is left. */
static bool retire(struct pool *pool, uint64_t now)
{
    bool any = false;
    if (pool->first || ar_since(pool->used_ns, now) < IDLE_NS)
        return false;
    for (uint32_t i = 0; i < pool->most; i++) {
        struct broker *p = &pool->broker[i];
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

int broker_review(struct arbiter *a, uint64_t now)
{
    int wait = broker_pools ? IDLE_REVIEW_MS : -1;
    for (struct pool **at = &broker_pools; *at;) {
        struct pool *pool = *at;
        for (uint32_t i = 0; i < pool->most; i++) {
            struct broker *p = &pool->broker[i];
            if (broker_stuck(p, now))
                hang_up_on_connections_of(a, p);
            if (p->asked)
                wait = REVIEW_MS;
        }
        if (!broker_dispatch(a, pool, now) && pool->kind != POOL_HOLD)
            give_up(a, pool);
        if (pool->first)
            wait = REVIEW_MS;
        if (!retire(pool, now)) {
            at = &(*at)->next;
            continue;
        }
        at = &broker_pools; /* a lane may have been put before this one meanwhile */
        while (*at != pool)
            at = &(*at)->next;
        *at = pool->next;
        free(pool);
    }
    return wait;
}
