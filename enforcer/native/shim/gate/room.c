/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting for room on a card, and while the job is held. Nothing is reserved meanwhile: bytes that
 * stay pending would keep the other processes of the job from theirs for as long. The try after the
 * wait is admitted anew. A signal handler may leave the wait, and no lock is held in it.
 */
#include "gate/room.h"

#include "gate/gate.h"
#include "track/wants.h"
#include "window/wait.h"

/* ns: A sleeping thread checks pages, heartbeat and connection this often, as at the gate.
 * Evidence: none. */
#define LONGEST_SLEEP_NS 50000000
/* bytes: What a call waits for that takes an unknown amount: the driver's smallest piece. Evidence:
 * none. */
#define UNKNOWN_SIZE ((uint64_t)2 << 20)
/* count: Other threads may change the sum while it is written; the last one of them writes it
 * right. A job that writes the word itself must not keep a thread here. Evidence: bound. */
#define MAX_WRITES 8

/* The word is of all threads of the process. The arbiter reads it after a ring. */
static void publish(struct qg_card *card)
{
    struct qg_pages *pages = qg_pages_of(card);
    bool changed = false;
    for (int i = 0; pages && i < MAX_WRITES; i++) {
        uint64_t sum = qg_wants_of(card);
        if (__atomic_load_n(&pages->proc->mem_wanted, __ATOMIC_SEQ_CST) == sum)
            break;
        __atomic_store_n(&pages->proc->mem_wanted, sum, __ATOMIC_SEQ_CST);
        changed = true;
    }
    if (changed)
        qg_gate_ring(card, pages);
}

void qg_room_held(struct qg_card *card)
{
    for (;;) {
        const struct qg_pages *pages = qg_pages_of(card);
        uint32_t flags = pages ? __atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST) : 0;
        if (!(flags & QG_GATE_WHY_MEMORY) || qg_gate_unanswered(card, pages))
            return;
        qg_wait_sleep(LONGEST_SLEEP_NS, &pages->gate->flags, flags);
    }
}

/* Has qgpud answered since the last try? With new pages the counters are others: the call is made
 * again under them. */
static bool answered(struct qg_room *room, const struct qg_pages *pages)
{
    const struct qg_gate_page *gate = pages->gate;
    if (pages != room->pages)
        return true;
    room->last = __atomic_load_n(&gate->mem_final, __ATOMIC_SEQ_CST) != room->final;
    return room->last || __atomic_load_n(&gate->mem_retry, __ATOMIC_SEQ_CST) != room->retry;
}

bool qg_room_awaited(struct qg_room *room)
{
    struct qg_card *card = room->card;
    if (!room->pages || room->last)
        return false;
    for (;;) {
        const struct qg_pages *pages = qg_pages_of(card);
        uint32_t seen = __atomic_load_n(&pages->gate->mem_changes, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&pages->gate->mem_wait, __ATOMIC_SEQ_CST))
            return false;
        if (answered(room, pages))
            return true;
        if (qg_gate_unanswered(card, pages))
            return false;
        room->waited = true;
        qg_want(card, room->size ? room->size : UNKNOWN_SIZE);
        publish(card);
        qg_wait_sleep(LONGEST_SLEEP_NS, &pages->gate->mem_changes, seen);
    }
}

void qg_room_over(const struct qg_room *room)
{
    qg_want_over();
    publish(room->card);
}

void qg_room_poll(void)
{
    qg_wants_reap();
    for (unsigned i = 0; i < QG_MAX_CARDS; i++)
        publish(&qg_cards[i]);
}
