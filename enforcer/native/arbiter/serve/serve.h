/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets and messages: registration, orders of qgpud, reports. Main thread only.
 */
#ifndef QGPU_SERVE_H
#define QGPU_SERVE_H

#include "model/model.h"

/* identify.c: NULL, or a sentence why the process may not act for the job */
const char *identify(const struct arbiter *a, pid_t pid, uid_t uid, uint64_t job_id,
                     uid_t grant_uid, int grant_fd, char *text, size_t cap);

/* conn.c, register.c, control.c */
int listen_open(struct arbiter *a, const char *name, mode_t mode);
void conn_accept(struct arbiter *a, int listener, enum conn_kind kind);
void conn_ready(struct arbiter *a, struct conn *c, uint32_t events);
/* takes fd for its own */
void conn_message(struct arbiter *a, struct conn *c, const void *buf, size_t len, int fd);
/* returns how long to wait at most, ms, -1 = for ever */
int conn_sweep(struct arbiter *a, uint64_t now);
void register_message(struct arbiter *a, struct conn *c, const void *buf, size_t len, int fd);
bool control_message(struct arbiter *a, struct conn *c, const void *buf, size_t len);

/* report.c: false when the asker does not read */
bool report_list(struct arbiter *a, struct conn *c, uint32_t of);
bool report_put(struct conn *c, void *message, uint32_t type, size_t size); /* one item of a list */

/* broker.c */
/* conn_message() follows, or its end */
void broker_fetch(struct arbiter *a, struct conn *c, const void *peeked, size_t cap);
void broker_ready(struct arbiter *a, struct key *key);
/* how long to wait at most, ms, -1 = for ever */
int broker_review(struct arbiter *a, uint64_t now);

#endif
