/* SPDX-License-Identifier: Apache-2.0
 *
 * What threads of the program do about the channel groups of their contexts. After a context was
 * made, they wait a moment until the arbiter knows its groups. Before one is destroyed, they make
 * sure that none of its groups is stopped.
 */
#include <stdlib.h>

#include "gate/gate.h"
#include "groups/rm_report.h"

/* ns that making a context waits at most until the arbiter knows its groups. Chosen, not measured:
 * making a context takes longer. */
#define REPORTED_NS 5000000u
/* ns that destroying a context waits at most until the arbiter has continued its groups. Chosen,
 * not measured; then the shim continues them. */
#define LEFT_NS 50000000u
/* ns that the end of the process waits at most for the same, per card. Chosen, not measured. */
#define EXIT_NS 20000000u

static bool running(void)
{
    return QG_UNLIKELY(__atomic_load_n(&qg_reporter.running, __ATOMIC_ACQUIRE));
}

bool qg_rm_reports(void)
{
    return running();
}

/* Waits until a round that began after `asked` is over, and the arbiter has left all groups of the
 * card alone. */
static bool wait_round(uint32_t asked, int card, uint64_t limit_ns)
{
    uint64_t end = qg_now_ns() + limit_ns;
    for (;;) {
        uint32_t done = __atomic_load_n(&qg_reporter.done, __ATOMIC_SEQ_CST);
        bool over =
            (int32_t)(__atomic_load_n(&qg_reporter.answered, __ATOMIC_SEQ_CST) - asked) >= 0;
        if (over && !__atomic_load_n(&qg_reporter.not_left[card], __ATOMIC_SEQ_CST))
            return true;
        uint64_t now = qg_now_ns();
        if (now >= end)
            return false;
        qg_rm_sleep(&qg_reporter.done, done, end - now);
    }
}

static void leave(int card, uint64_t limit_ns)
{
    if (!wait_round(qg_rm_ask(), card, limit_ns))
        qg_rm_continue(card); /* the arbiter did not */
}

/* exit(3), before the driver's own handlers, which were registered earlier. */
static void at_exit(void)
{
    if (!running() || __atomic_exchange_n(&qg_reporter.exiting, true, __ATOMIC_SEQ_CST))
        return;
    for (int card = 0; card < (int)QG_MAX_CARDS; card++)
        if (__atomic_load_n(&qg_reporter.reported[card], __ATOMIC_SEQ_CST))
            leave(card, EXIT_NS);
}

__attribute__((destructor)) static void unloaded(void)
{
    at_exit();
}

bool qg_rm_making(void)
{
    bool on = running();
    if (on)
        __atomic_add_fetch(&qg_reporter.making, 1, __ATOMIC_SEQ_CST);
    return on;
}

void qg_rm_context_made(bool counted, bool made)
{
    static bool registered;
    if (counted)
        __atomic_sub_fetch(&qg_reporter.making, 1, __ATOMIC_SEQ_CST);
    if (!made || !running())
        return;
    if (!__atomic_exchange_n(&registered, true, __ATOMIC_SEQ_CST))
        atexit(at_exit);
    uint32_t changes = qg_rm_changes();
    if (__atomic_load_n(&qg_reporter.seen, __ATOMIC_SEQ_CST) == changes)
        return; /* one more reference to a context that is known */
    uint64_t end = qg_now_ns() + REPORTED_NS;
    qg_rm_ask();
    for (;;) {
        uint32_t done = __atomic_load_n(&qg_reporter.done, __ATOMIC_SEQ_CST);
        uint64_t now = qg_now_ns();
        if ((int32_t)(__atomic_load_n(&qg_reporter.seen, __ATOMIC_SEQ_CST) - changes) >= 0 ||
            now >= end)
            return;
        qg_rm_sleep(&qg_reporter.done, done, end - now);
    }
}

bool qg_rm_leave(struct qg_card *card)
{
    if (!running() || !card)
        return false;
    int at = (int)(card - qg_cards);
    if (!__atomic_load_n(&qg_reporter.reported[at], __ATOMIC_SEQ_CST) &&
        __atomic_load_n(&qg_reporter.seen, __ATOMIC_SEQ_CST) == qg_rm_changes())
        return false;
    /* Stopped work ends only in the tenant's next quantum. Destroying it now would block in the
     * driver until then. */
    if (!__atomic_load_n(&qg_reporter.exiting, __ATOMIC_SEQ_CST))
        qg_gate_wait(card);
    __atomic_add_fetch(&qg_reporter.leaving[at], 1, __ATOMIC_SEQ_CST);
    leave(at, LEFT_NS);
    return true;
}

void qg_rm_left(struct qg_card *card)
{
    __atomic_sub_fetch(&qg_reporter.leaving[card - qg_cards], 1, __ATOMIC_SEQ_CST);
    qg_rm_wake(&qg_reporter.work);
}
