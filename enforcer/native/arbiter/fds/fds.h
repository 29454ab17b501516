/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits per user, and the closing of descriptors that may block. Main thread only.
 */
#ifndef QGPU_FDS_H
#define QGPU_FDS_H

#include "model/model.h"

/* Token bucket. */
struct budget {
    uint32_t left;
    uint64_t at_ns; /* when tokens were last added */
};

/* Lines of the log about refusals, and how many were left out since the last one. */
struct lines {
    struct budget budget;
    uint32_t left_out;
};

/* A user with connections to enforcer.sock, or with a grant. */
struct user {
    struct user *next;
    uid_t uid;
    uint32_t conns;   /* his connections */
    uint32_t waiting; /* those of them that are not registered */
    bool unknown;     /* an unknown uid: the arbiter knows of no grant for it on this node */
    /* Not an unknown uid, although no list of grants came yet: a process of his showed a grant that
     * only root can have made. */
    bool proven;
    struct budget budget; /* of registrations that are checked */
    struct lines lines;
};

/* users.c */
struct user *user_get(const struct arbiter *a, uid_t uid);
/* Frees an unknown uid without connections; keeps any other. */
void user_forget(uid_t uid);
/* Adds `change` to the user's connections that are not registered. */
void user_wait(struct user *u, int change);
void user_prove(struct user *u);
/* Takes a token of the user's budget, since checking a process costs several reads of files. */
bool user_may_ask(struct user *u, uint64_t now);
/* Takes a token for a line of the log. True: write it; *left_out were not written before it. */
bool user_may_log(struct user *u, uint64_t now, uint32_t *left_out);
void users_changed(void);                   /* a grant came or ended */
void users_review(const struct arbiter *a); /* after such a change: which uids are unknown? */
/* Connections of all unknown uids that are not registered. */
uint32_t users_unknown_waiting(void);
/* Of the grantees with connections that are not registered: the one with most connections. */
struct user *users_most_connections(void);

/* broker_pool.c: closing a descriptor that a user sent may wait for that user. So may closing a
 * connection that carries one. Processes of their own close them: descriptor brokers. */
bool broker_start(void);
void broker_finish(void);
/* Ends a connection. Its peer sees the end at once, also where the closing takes long. */
void broker_hang_up(const struct arbiter *a, uid_t uid, int sock);
/* Closes a duplicate of a connection's descriptor; the connection itself may live on. */
void broker_close(const struct arbiter *a, uid_t uid, int sock);

/* close_helper.c: threads that close what brokers passed on, as the driver may take long over it */
bool close_helper_start(void);
void close_helper_close(int fd);
/* Starts one more helper where all are stuck. Returns the ms until the next call is due, -1 = no
 * call is needed. */
int close_helper_review(uint64_t now);

/* control_device.c: asks no file system, which may be the sender's own */
bool hw_is_control(const struct qg_ctl_hardware *settings, int fd);

#endif
