/* SPDX-License-Identifier: Apache-2.0
 *
 * The main thread's part of the descriptor brokers (fds/broker_pool.c): gives connections to them,
 * takes their answers, and ends the connections of brokers that hang.
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

/* Brokers of a pool end after 10 s without an order: a job's start is over by then. Chosen, not
 * measured. */
#define IDLE_NS (10000 * QP_MS)
enum {
    REVIEW_MS = 50,       /* between two checks while answers are awaited; chosen, not measured */
    IDLE_REVIEW_MS = 1000 /* the same while none are; only idle brokers are ended then */
};

void broker_fetch(struct arbiter *a, struct conn *c, const void *peeked, size_t cap)
{
    struct broker_order order = {.what = BROKER_FETCH, .id = c->id};
    order.has_device = hw_control_of(a, peeked, cap, &order.device);
    epoll_ctl(a->epfd, EPOLL_CTL_DEL, c->fd, NULL);
    c->with_broker = true;
    if (!broker_enqueue(a, broker_pool_of_user(a, c->uid), -1, &order))
        conn_close(a, c);
}

static void end_broker(const struct arbiter *a, struct broker *b)
{
    epoll_ctl(a->epfd, EPOLL_CTL_DEL, b->fd, NULL);
    close(b->fd); /* cannot block: a broker passes on harmless descriptors only */
    b->fd = -1;
    b->awaited = 0;
}

static void close_connections_of(struct arbiter *a, const struct broker *b)
{
    for (struct conn *c = a->conns; c; c = c->next) {
        if (!c->closed && c->broker == b)
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
    struct broker *b = (struct broker *)key;
    struct broker_answer answer;
    uint64_t now = qg_now_ns();
    const size_t head = offsetof(struct broker_answer, bytes);
    int fd;
    while (b->fd >= 0) {
        ssize_t got = qg_msg_recv(b->fd, &answer, sizeof(answer), &fd);
        if (got == -EAGAIN)
            break;
        /* the broker was killed */
        if (got < (ssize_t)head || (answer.got > 0 && (size_t)got != head + (size_t)answer.got)) {
            if (fd >= 0)
                close_helper_close(fd);
            b->pool->retry_ns = b->ready ? 0 : now + RETRY_NS;
            end_broker(a, b);
            close_connections_of(a, b);
            break;
        }
        b->since_ns = now;
        b->ready = true;
        if (answer.what == BROKER_MESSAGE)
            return_connection(a, &answer, fd);
        else
            b->awaited--;
    }
    broker_dispatch(a, b->pool, now);
}

/* All brokers of the pool hang. Brokers that close nothing take its connections. So they do not
 * fill the arbiter's table of descriptors. */
static void hold_connections(struct arbiter *a, struct pool *pool)
{
    if (!pool->logged)
        ar_log(
            a, 1,
            pool->kind == POOL_USER
                ? "descriptors that uid %u sent cannot be closed; its connections are ended until "
                  "they are"
                : "descriptors that users without a grant sent cannot be closed (the last: uid %u)",
            pool->uid);
    pool->logged = true;
    struct request *r = pool->first;
    pool->first = NULL;
    pool->last = &pool->first;
    for (struct request *next; r; r = next) {
        struct conn *c = r->fd < 0 ? broker_conn(a, r->order.id) : NULL;
        next = r->next;
        r->order.what = BROKER_HOLD;
        if (c)
            conn_close(a, c); /* orders a close of its own, which comes here as well */
        if (r->fd >= 0 && !broker_enqueue(a, broker_pool(POOL_HOLD, 0), r->fd, &r->order))
            ar_log(a, 0, "no memory: a connection stays open");
        free(r);
    }
}

/* Ends the brokers of an idle pool. Each keeps its entry until its process has ended. So no user
 * has more processes than entries. True: no broker is left. */
static bool retire_idle(struct pool *pool, uint64_t now)
{
    bool any = false;
    if (pool->first || ar_since(pool->used_ns, now) < IDLE_NS)
        return false;
    for (uint32_t i = 0; i < pool->max_brokers; i++) {
        struct broker *b = &pool->broker[i];
        any |= b->fd >= 0;
        if (b->fd < 0 || b->awaited)
            continue;
        shutdown(b->fd, SHUT_WR);
        b->ending = true;
        b->awaited = 1; /* the answer is its end */
        b->since_ns = now;
    }
    return !any;
}

int broker_review(struct arbiter *a, uint64_t now)
{
    int wait = broker_pools ? IDLE_REVIEW_MS : -1;
    for (struct pool **at = &broker_pools; *at;) {
        struct pool *pool = *at;
        for (uint32_t i = 0; i < pool->max_brokers; i++) {
            struct broker *b = &pool->broker[i];
            if (broker_stuck(b, now))
                close_connections_of(a, b);
            if (b->awaited)
                wait = REVIEW_MS;
        }
        if (!broker_dispatch(a, pool, now) && pool->kind != POOL_HOLD)
            hold_connections(a, pool);
        if (pool->first)
            wait = REVIEW_MS;
        if (!retire_idle(pool, now)) {
            at = &(*at)->next;
            continue;
        }
        at = &broker_pools; /* another pool may have been put before this one meanwhile */
        while (*at != pool)
            at = &(*at)->next;
        *at = pool->next;
        free(pool);
    }
    return wait;
}
