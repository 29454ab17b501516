/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets and messages: registration, orders of qgpud, reports. Main thread only.
 */
#ifndef QGPU_SERVE_H
#define QGPU_SERVE_H

#include "model/model.h"

/* identify.c: may the process act for the job? NULL: yes, else a sentence that says why not */
const char *identify(const struct arbiter *a, pid_t pid, uid_t uid, uint64_t job_id,
                     uid_t grant_uid, int grant_fd, char *text, size_t cap);

/* conn.c, register.c, control.c */
/* A listening socket in run_dir, or a negative errno. */
int listen_open(struct arbiter *a, const char *name, mode_t mode);
void conn_accept(struct arbiter *a, int listener, enum conn_kind kind);
void conn_ready(struct arbiter *a, struct conn *c, uint32_t events);
/* Acts on one message. Takes ownership of fd, -1 = none. */
void conn_message(struct arbiter *a, struct conn *c, const void *buf, size_t len, int fd);
/* Closes connections that stay unregistered, and frees closed ones. Returns the ms until the next
 * call is due, -1 = no call is needed. */
int conn_sweep(struct arbiter *a, uint64_t now);
void register_message(struct arbiter *a, struct conn *c, const void *buf, size_t len, int fd);
/* False: the connection has to be closed. */
bool control_message(struct arbiter *a, struct conn *c, const void *buf, size_t len);

/* report.c: false when the asker does not read */
bool report_list(struct arbiter *a, struct conn *c, uint32_t of);
bool report_put(struct conn *c, void *message, uint32_t type, size_t size); /* one item of a list */

/* broker.c */
/* Gives the connection to a broker, which takes the next message with its descriptors. Then
 * conn_message() is called, or the connection is closed. `peeked` is the begin of that message. */
void broker_fetch(struct arbiter *a, struct conn *c, const void *peeked, size_t cap);
void broker_ready(struct arbiter *a, struct key *key);
/* Starts, abandons and ends brokers. Returns the ms until the next call is due, -1 = no call is
 * needed. */
int broker_review(struct arbiter *a, uint64_t now);

#endif
