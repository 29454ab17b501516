/* SPDX-License-Identifier: Apache-2.0
 *
 * The pools of descriptor brokers, and the orders that wait in them.
 */
#ifndef QGPU_BROKER_POOL_H
#define QGPU_BROKER_POOL_H

#include "fds/fds.h"
#include "fds/broker.h"

/* After a broker could not be made or was killed: no other is tried for 1 s. So a lack of processes
 * does not keep the main thread busy. Chosen, not measured. */
#define RETRY_NS (1000 * QP_MS)
/* Brokers of the pool POOL_HOLD; also the array size of every pool. They only hold descriptors, of
 * which each takes up to its limit. Chosen, not measured. */
enum { HOLD_BROKERS = 16 };

/* An order that waits for a broker. */
struct request {
    struct request *next;
    /* Descriptor that goes with it and is closed here once a broker has it. -1: that of a live
     * connection, which order.id names. */
    int fd;
    struct broker_order order;
};

struct broker {
    struct key key; /* must be the first member */
    struct pool *pool;
    int fd;            /* the arbiter's end of its socketpair, -1 = no process */
    bool ready;        /* it has sent its first message */
    bool ending;       /* it was asked to end; closing what it holds may delay that */
    uint32_t awaited;  /* answers that it still owes */
    uint64_t since_ns; /* its last answer, or when the first of these was asked for */
};

/* Brokers of one grantee (POOL_USER), or of all unknown uids (POOL_UNKNOWN). Those of POOL_HOLD
 * keep connections that no other broker can close. */
struct pool {
    struct pool *next;
    enum pool_kind { POOL_USER, POOL_UNKNOWN, POOL_HOLD } kind;
    uid_t uid;            /* for POOL_UNKNOWN: the one that caused the pool */
    uint32_t max_brokers; /* entries of broker[] in use */
    bool logged;          /* that all its brokers hang */
    struct request *first, **last;
    uint64_t used_ns, retry_ns;
    struct broker broker[HOLD_BROKERS];
};

extern struct pool *broker_pools;
/* Has it owed an answer for so long that it must hang? */
bool broker_stuck(const struct broker *b, uint64_t now);
/* The pool of that kind, and of that user where there is one per user; made if need be. */
struct pool *broker_pool(enum pool_kind kind, uid_t uid);
struct pool *broker_pool_of_user(const struct arbiter *a, uid_t uid);
/* The open connection of this id, or NULL. */
struct conn *broker_conn(const struct arbiter *a, uint64_t id);
/* Gives waiting orders to brokers. False: all brokers of the pool hang. */
bool broker_dispatch(const struct arbiter *a, struct pool *pool, uint64_t now);
/* Adds an order and dispatches. False: no memory. */
bool broker_enqueue(const struct arbiter *a, struct pool *pool, int fd,
                    const struct broker_order *order);

#endif
