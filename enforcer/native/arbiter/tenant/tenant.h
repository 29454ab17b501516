/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of tenants and processes. Main thread only; takes the card's lock itself.
 */
#ifndef QGPU_TENANT_H
#define QGPU_TENANT_H

#include "model/model.h"

int tenant_grant(struct arbiter *a, const struct qg_ctl_grant *g);
void tenant_revoke(struct arbiter *a, struct tenant *t);
void recovery_review(struct card *card, bool list_complete);
int tenant_join(struct arbiter *a, struct tenant *t, struct proc *p, struct conn *c,
                uint64_t mem_used, uint32_t *slot);
void tenant_leave(struct arbiter *a, struct tenant *t, uint32_t slot);

/* reaped.c: main thread only */
void reaped_add(struct arbiter *a, struct tenant *t, pid_t pid, uid_t uid, uint64_t bytes);
void reaped_gone(struct arbiter *a, struct tenant *t, pid_t pid);
void reaped_listed(struct tenant *t, pid_t pid);
void reaped_forget(struct arbiter *a, struct tenant *t); /* the tenant ends */
void reaped_watch(struct arbiter *a, struct conn *c);    /* a new watcher: tell it what it missed */
/* what it has not been told of yet, as far as its socket has room */
void reaped_report(struct arbiter *a, struct conn *c);
void reaped_overhead(struct tenant *t, uint64_t bytes);
int reaped_sweep(struct arbiter *a, uint64_t now); /* how long to wait at most, ms, -1 = for ever */

/* process.c */
struct proc *proc_get(struct arbiter *a, pid_t pid, uid_t uid, int pidfd, int *err);
void proc_died(struct arbiter *a, struct proc *p);
void proc_sweep(struct arbiter *a);
bool proc_lives(int pidfd);

#endif
