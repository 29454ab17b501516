/* SPDX-License-Identifier: Apache-2.0
 *
 * The descriptor brokers of all users, and what each still has to do.
 */
#ifndef QGPU_BROKER_POOL_H
#define QGPU_BROKER_POOL_H

#include "fds/fds.h"
#include "fds/broker.h"

#define RETRY_NS (1000 * QP_MS) /* after one could not be made */
enum { HOLD_BROKERS = 16 };

struct request {
    struct request *next;
    /* ours to close once a porter has it too; -1: a connection that still lives, found by ask.id */
    int fd;
    struct broker_order ask;
};

struct broker {
    struct key key; /* first */
    struct pool *pool;
    int fd;             /* -1 = there is none */
    bool ready, ending; /* ending: told to; what it holds it may have to wait for */
    uint32_t asked;     /* so many answers are awaited */
    uint64_t since_ns;  /* the last answer, or the first of these questions */
};

/* Of one user; of all strangers; of connections that nobody is left to close. */
struct pool {
    struct pool *next;
    enum pool_kind { POOL_USER, POOL_UNKNOWN, POOL_HOLD } kind;
    uid_t uid;
    uint32_t most;
    bool said;
    struct request *first, **last;
    uint64_t used_ns, retry_ns;
    struct broker broker[HOLD_BROKERS];
};

extern struct pool *broker_pools;
bool broker_stuck(const struct broker *p, uint64_t now);
struct pool *broker_pool(enum pool_kind kind, uid_t uid);
struct pool *broker_pool_of_user(const struct arbiter *a, uid_t uid);
struct conn *broker_conn(const struct arbiter *a, uint64_t id);
bool broker_dispatch(const struct arbiter *a, struct pool *pool, uint64_t now);
bool broker_enqueue(const struct arbiter *a, struct pool *pool, int fd,
                    const struct broker_order *ask);

#endif
