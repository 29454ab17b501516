/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits per user, and whatever may block in close(). Main thread only.
 */
#ifndef QGPU_FDS_H
#define QGPU_FDS_H

#include "model/model.h"

/* How many registrations may be looked at. */
struct budget {
    uint32_t left;
    uint64_t at_ns;
};

/* Who has connections, or a grant. */
struct user {
    struct user *next;
    uid_t uid;
    uint32_t conns, waiting; /* to enforcer.sock, and those of them that are not registered */
    bool unknown;            /* no grant of his is known on this node */
    bool proven; /* no list of grants came yet, but he showed one that only root can have made */
    struct budget budget;
};

/* users.c */
struct user *user_get(const struct arbiter *a, uid_t uid);
void user_forget(uid_t uid); /* unless something of him is still needed */
/* so many more connections of his are not registered */
void user_wait(struct user *u, int change);
void user_prove(struct user *u);
bool user_may_ask(struct user *u, uint64_t now); /* looking a process up costs some file reads */
void users_changed(void);                        /* grants came or went */
void users_review(const struct arbiter *a);      /* so who is a stranger? */
uint32_t users_unknown_waiting(void);            /* connections of all of them */
/* of those who are known and have some that are not registered */
struct user *users_most_connections(void);

/* broker_pool.c: descriptors that users sent, and connections that may carry some, belong to
 * processes of their own, since close() may wait for those users */
bool broker_start(void);
void broker_finish(void);
/* a connection: its peer sees the end at once */
void broker_hang_up(const struct arbiter *a, uid_t uid, int sock);
/* a copy of one, which may live on */
void broker_close(const struct arbiter *a, uid_t uid, int sock);

/* close_helper.c: helper threads close what porters passed on, since the driver may take its time */
bool close_helper_start(void);
void close_helper_close(int fd);
/* one more helper where all are stuck; how long to wait at most, ms, -1 = for ever */
int close_helper_review(uint64_t now);

/* control_device.c: asks no file system, which may be the sender's own */
bool hw_is_control(const struct qg_ctl_hardware *settings, int fd);

#endif
