/* SPDX-License-Identifier: Apache-2.0
 *
 * Each thread that waits has a record. No lock: a signal handler may leave the wait by siglongjmp,
 * and the thread may be cancelled in it. What such a thread left is taken back as in waiters.c.
 */
#include "track/wants.h"

#include "track/streams.h"

/* count: Threads whose wants are summed. Further ones wait, too: they take a record as soon as one
 * is free. Evidence: none. */
#define RECORDS 128
/* ns: A wait without a poll for this long is abandoned: 20 of its sleeps. Evidence: protocol
 * (gate/room.c). */
#define ABANDONED_NS 1000000000u

static struct {
    uint32_t taken;       /* atomic; by one thread until it ends */
    struct qg_card *card; /* atomic */
    uint64_t size;        /* atomic; 0: it does not wait */
    uint64_t polled_ns;   /* atomic */
} __attribute__((aligned(64))) records[RECORDS];
/* of this thread, and 1; 0: none */
static __thread int mine __attribute__((tls_model("initial-exec")));

static bool recorded(void)
{
    for (int i = 0; !mine && i < RECORDS; i++) {
        uint32_t taken = 0;
        if (__atomic_compare_exchange_n(&records[i].taken, &taken, 1, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
            mine = i + 1;
            qg_this_thread(); /* so that it is given back */
        }
    }
    return mine;
}

void qg_want(struct qg_card *card, uint64_t size)
{
    if (!recorded())
        return;
    __atomic_store_n(&records[mine - 1].polled_ns, qg_now_ns(), __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&records[mine - 1].card, __ATOMIC_SEQ_CST) != card)
        __atomic_store_n(&records[mine - 1].size, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&records[mine - 1].card, card, __ATOMIC_SEQ_CST);
    __atomic_store_n(&records[mine - 1].size, size, __ATOMIC_SEQ_CST);
}

/* The record is free again: more threads may wait than there are records. */
void qg_want_over(void)
{
    if (!mine)
        return;
    __atomic_store_n(&records[mine - 1].size, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&records[mine - 1].taken, 0, __ATOMIC_RELEASE);
    mine = 0;
}

void qg_want_release(void)
{
    qg_want_over();
}

uint64_t qg_wants_of(const struct qg_card *card)
{
    uint64_t sum = 0;
    for (int i = 0; i < RECORDS; i++) {
        uint64_t size = __atomic_load_n(&records[i].size, __ATOMIC_SEQ_CST);
        if (!size || __atomic_load_n(&records[i].card, __ATOMIC_SEQ_CST) != card)
            continue;
        if (__builtin_add_overflow(sum, size, &sum))
            sum = UINT64_MAX;
    }
    return sum;
}

void qg_wants_reap(void)
{
    uint64_t now = qg_now_ns();
    for (int i = 0; i < RECORDS; i++)
        if (__atomic_load_n(&records[i].size, __ATOMIC_SEQ_CST) &&
            __atomic_load_n(&records[i].polled_ns, __ATOMIC_SEQ_CST) + ABANDONED_NS < now)
            __atomic_store_n(&records[i].size, 0, __ATOMIC_SEQ_CST);
}

void qg_wants_after_fork(void)
{
    for (int i = 0; i < RECORDS; i++) {
        records[i].taken = 0;
        records[i].size = 0;
    }
    mine = 0;
}
