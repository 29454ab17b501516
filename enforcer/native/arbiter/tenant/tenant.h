/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of tenants and processes. Main thread only; takes the card's lock itself.
 */
#ifndef QGPU_TENANT_H
#define QGPU_TENANT_H

#include "model/model.h"

/* tenant.c; the two that return int return 0 or a negative errno */
int tenant_grant(struct arbiter *a, const struct qg_ctl_grant *g);
/* The job ended. Where it has another tenant of the same name it was moved: tenant_vacate(). */
void tenant_revoke(struct arbiter *a, struct tenant *t);
/* The job left this card alone. Its processes lose their connections and their slots at once. Their
 * pages keep a closed gate that no lease opens, so they wait until they registered again. */
void tenant_vacate(struct arbiter *a, struct tenant *t);
/* After a restart: ends recovery once all expected online tenants are back. */
void recovery_review(struct card *card, bool list_complete);
/* Gives the process a slot of the tenant; with one already, its new connection takes it over. */
int tenant_join(struct arbiter *a, struct tenant *t, struct proc *p, struct conn *c,
                uint64_t mem_used, uint32_t *slot);
void tenant_leave(struct arbiter *a, struct tenant *t, uint32_t slot);

/* reaped.c: reaped memory. Main thread only. */
/* A process ended that held `bytes`. */
void reaped_add(struct arbiter *a, struct tenant *t, pid_t pid, uid_t uid, uint64_t bytes);
/* NVML no longer lists the process: its memory is free. */
void reaped_gone(struct arbiter *a, struct tenant *t, pid_t pid);
/* NVML still lists the process. */
void reaped_listed(struct tenant *t, pid_t pid);
void reaped_forget(struct arbiter *a, struct tenant *t); /* the tenant ends */
/* The connection wants deaths reported, the ones on the list first. */
void reaped_watch(struct arbiter *a, struct conn *c);
/* Reports the deaths that this watcher does not know yet, as far as its socket has room. */
void reaped_report(struct arbiter *a, struct conn *c);
/* Charges what contexts and modules take beside what was reserved for them, as qgpud reads it from
 * NVML. The next context reserves `context` bytes. */
void reaped_overhead(struct tenant *t, uint64_t bytes, uint64_t context);
/* Releases what had no report for too long. Returns the ms until the next call is due, -1 = no
 * call is needed. */
int reaped_sweep(struct arbiter *a, uint64_t now);

/* wants.c: what allocations wait for that the driver refused. Main thread only. */
int wants_start(struct arbiter *a); /* 0 or a negative errno */
/* Tells those that watch what changed. Returns the ms until the next call is due, -1 = no call is
 * needed. */
int wants_review(struct arbiter *a, uint64_t now);
void wants_watch(struct arbiter *a); /* a connection begins to watch: it hears all of them */
void wants_left(struct arbiter *a, struct tenant *t, uint32_t slot); /* a process ends */
/* What such allocations do from now on: QG_CTL_MEMORY. 0 or a negative errno. */
int wants_order(struct arbiter *a, const struct qg_ctl_memory *m);
/* The tenant is new, or was revoked and has a grant again; or it is revoked. */
void wants_reset(struct tenant *t, bool wait);

/* process.c: `err` is a negative errno where proc_get returns NULL */
struct proc *proc_get(struct arbiter *a, pid_t pid, uid_t uid, int pidfd, int *err);
void proc_died(struct arbiter *a, struct proc *p);
void proc_sweep(struct arbiter *a);
bool proc_lives(int pidfd);

#endif
