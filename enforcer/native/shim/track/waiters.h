/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts of threads that wait at the gate or for room in the window.
 */
#ifndef QG_WAITERS_H
#define QG_WAITERS_H

#include "process/process.h"

/* This thread waits at the gate of that slot. qg_proc.waiting counts it once, however often this is
 * called. To be called at least every 50 ms while it waits. True: until now `queued` of the same
 * slot counted it. */
bool qg_waiter_raise(struct qg_proc *proc);

/* It waits for room in the window: qg_proc.queued counts it instead. */
void qg_waiter_queue(struct qg_proc *proc);

/* It does not any more. */
void qg_waiter_lower(void);

/* Lowers the count for threads that left their wait by siglongjmp. The helper thread calls it. */
void qg_waiters_reap(void);

/* The thread ends. */
void qg_waiter_release(void);

void qg_waiters_after_fork(void);

#endif
