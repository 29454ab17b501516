/* SPDX-License-Identifier: Apache-2.0
 *
 * The descriptor brokers of all users, and what each still has to do.
 */
#ifndef QGPU_PORTER_POOL_H
#define QGPU_PORTER_POOL_H

#include "fds/fds.h"
#include "fds/porter.h"

#define RETRY_NS (1000 * QP_MS) /* after one could not be made */
enum { HOLDERS = 16 };

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

extern struct lane *porter_lanes;
bool porter_stuck(const struct porter *p, uint64_t now);
struct lane *porter_lane(enum lane_kind kind, uid_t uid);
struct lane *porter_lane_of_user(const struct arbiter *a, uid_t uid);
struct conn *porter_conn(const struct arbiter *a, uint64_t id);
bool porter_pump(const struct arbiter *a, struct lane *lane, uint64_t now);
bool porter_push(const struct arbiter *a, struct lane *lane, int fd, const struct porter_ask *ask);

#endif
