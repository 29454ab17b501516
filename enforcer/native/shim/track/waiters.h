/* SPDX-License-Identifier: Apache-2.0 */
#ifndef QG_WAITERS_H
#define QG_WAITERS_H

#include "process/process.h"

/* This thread stands at the gate of that slot: qg_proc.waiting counts it, once however often this
 * is called. To be called at least each 50 ms while it waits. True: until now it was counted in
 * `queued` of the same slot. */
bool qg_waiter_raise(struct qg_proc *proc);

/* It waits for room in the window: qg_proc.queued counts it instead. */
void qg_waiter_queue(struct qg_proc *proc);

/* It does not any more. */
void qg_waiter_lower(void);

/* Takes back what a thread left behind that jumped out of its wait (siglongjmp); the helper
 * thread's duty. */
void qg_waiters_reap(void);

/* The thread ends. */
void qg_waiter_release(void);

void qg_waiters_after_fork(void);

#endif
