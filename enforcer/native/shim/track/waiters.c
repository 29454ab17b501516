/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that wait at the gate or for room in the window. A signal handler may leave a wait by
 * siglongjmp. Then no code lowers qg_proc.waiting, and the tenant would look runnable for ever. So
 * each waiting thread has a record with the time of its last poll. The helper thread lowers the
 * count for a record without a poll for 1 s. A thread that was only not scheduled for that time
 * raises the count again at its next poll.
 */
#include "track/waiters.h"

#include "track/streams.h"

/* count: Waiting threads with a record. Further ones are counted without one. Evidence: bound. */
#define RECORDS 128
/* ns: A wait without a poll for this long is abandoned: 20 of the longest sleeps at the gate.
 * Evidence: protocol (gate.c). */
#define ABANDONED_NS 1000000000u

static struct {
    uint32_t taken;     /* atomic; by one thread until it ends */
    uint32_t *word;     /* atomic; counted in this word of a slot. NULL: does not wait */
    uint64_t polled_ns; /* atomic */
} __attribute__((aligned(64))) records[RECORDS];
/* more threads than records */
static __thread uint32_t *unrecorded __attribute__((tls_model("initial-exec")));

static void lower(uint32_t *word)
{
    uint32_t now = word ? __atomic_load_n(word, __ATOMIC_RELAXED) : 0;
    while (now && !__atomic_compare_exchange_n(word, &now, now - 1, false, __ATOMIC_SEQ_CST,
                                               __ATOMIC_RELAXED))
        ; /* never below zero: the slot may have been cleared and given to another process */
}

static uint32_t **mine(void)
{
    for (int i = 0; !qg_thread.waiter && i < RECORDS; i++) {
        uint32_t taken = 0;
        if (__atomic_compare_exchange_n(&records[i].taken, &taken, 1, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
            qg_thread.waiter = i + 1;
            qg_this_thread(); /* so that it is given back */
        }
    }
    return qg_thread.waiter ? &records[qg_thread.waiter - 1].word : &unrecorded;
}

/* Counts the thread in that word instead of the former one. It enters the new one first, so that a
 * thread that goes from the window to the gate is never missed. Returns the former word. */
static uint32_t *count_in(uint32_t *word)
{
    uint32_t **at = mine();
    if (qg_thread.waiter)
        __atomic_store_n(&records[qg_thread.waiter - 1].polled_ns, qg_now_ns(), __ATOMIC_SEQ_CST);
    if (__atomic_load_n(at, __ATOMIC_SEQ_CST) == word)
        return word;
    __atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
    uint32_t *before = __atomic_exchange_n(at, word, __ATOMIC_SEQ_CST);
    lower(before);
    return before;
}

bool qg_waiter_raise(struct qg_proc *proc)
{
    return count_in(&proc->waiting) == &proc->queued;
}

void qg_waiter_queue(struct qg_proc *proc)
{
    count_in(&proc->queued);
}

void qg_waiter_lower(void)
{
    lower(__atomic_exchange_n(mine(), NULL, __ATOMIC_SEQ_CST));
}

void qg_waiters_reap(void)
{
    for (int i = 0; i < RECORDS; i++)
        if (__atomic_load_n(&records[i].word, __ATOMIC_SEQ_CST) &&
            __atomic_load_n(&records[i].polled_ns, __ATOMIC_SEQ_CST) + ABANDONED_NS < qg_now_ns())
            lower(__atomic_exchange_n(&records[i].word, NULL, __ATOMIC_SEQ_CST));
}

void qg_waiter_release(void)
{
    if (!qg_thread.waiter && !unrecorded)
        return;
    qg_waiter_lower();
    if (qg_thread.waiter)
        __atomic_store_n(&records[qg_thread.waiter - 1].taken, 0, __ATOMIC_RELEASE);
    qg_thread.waiter = 0;
}

void qg_waiters_after_fork(void)
{
    for (int i = 0; i < RECORDS; i++) {
        records[i].taken = 0;
        records[i].word = NULL;
    }
    qg_thread.waiter = 0;
    unrecorded = NULL;
}
