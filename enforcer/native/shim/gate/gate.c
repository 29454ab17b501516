/* SPDX-License-Identifier: Apache-2.0
 *
 * Standing at the gate: ring the arbiter, wait while it is closed, go on when the arbiter that
 * registered us is gone for good.
 */
#include "gate/gate.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/message.h"
#include "track/waiters.h"
#include "window/window.h"
#include "link/link.h"
#include "window/wait_strategy.h"

/* longest sleep before pages, heartbeat and connection are looked at again */
#define WAIT_NS 50000000
/* so long a waiting thread looks for the end of what was launched before */
#define DRAIN_NS           100000000u
#define MAX_STRIDE         15u /* launches at most between two looks at the clock */
#define SHORT_LOOK_DIVISOR 20  /* a look less than 1/20 ms after the last one was too early */
/* an arbiter that keeps its connection but not its heartbeat gets so many leases */
#define HUNG_FACTOR 3u

static bool is_open(const struct qg_card *card)
{
    return __atomic_load_n(&card->compute_open, __ATOMIC_RELAXED);
}

static bool same_doorbell(const struct qg_pages *pages)
{
    struct stat st;
    return pages->doorbell >= 0 && fstat(pages->doorbell, &st) == 0 &&
           st.st_dev == pages->doorbell_dev && st.st_ino == pages->doorbell_ino;
}

/* The program may have closed every descriptor, and may own our number by now: look before writing.
 */
static void ring(struct qg_card *card, struct qg_pages *pages)
{
    static const uint64_t one = 1;
    int saved = errno;
    /* By number, because write() is a cancellation point and a cancelled thread must not die in
     * here. */
    if (!same_doorbell(pages) ||
        syscall(SYS_write, pages->doorbell, &one, sizeof(one)) != (long)sizeof(one))
        qg_ring_by_helper(card);
    errno = saved;
}

/* Once per sight: again only after the word changed, or after a millisecond (a ring may have been
 * lost). */
static void ring_once(struct qg_card *card, struct qg_pages *pages)
{
    uint64_t changed = __atomic_load_n(&pages->gate->changed_ns, __ATOMIC_ACQUIRE), now = qg_tick();
    uint64_t before = __atomic_load_n(&card->rung_at, __ATOMIC_RELAXED);
    if (before == changed &&
        now - __atomic_load_n(&card->rung_tick, __ATOMIC_RELAXED) < qg_ticks_per_ms)
        return;
    __atomic_store_n(&card->rung_at, changed, __ATOMIC_RELAXED);
    __atomic_store_n(&card->rung_tick, now, __ATOMIC_RELAXED);
    ring(card, pages);
}

/* A new arbiter looks at who rings. Work that was launched under its predecessor would else be seen
 * with the next launch, and offline might run beside it until then. */
void qg_gate_adopted(struct qg_card *card)
{
    struct qg_pages *pages = qg_pages_of(card);
    if (__atomic_load_n(&pages->proc->unmarked, __ATOMIC_SEQ_CST))
        ring(card, pages);
}

static uint64_t heartbeat_age_ns(const struct qg_pages *pages)
{
    uint64_t beat = __atomic_load_n(&pages->gate->heartbeat_ns, __ATOMIC_ACQUIRE),
             now = qg_now_ns();
    return now > beat ? now - beat : 0;
}

static bool lease_ran_out(const struct qg_pages *pages)
{
    uint64_t lease = (uint64_t)__atomic_load_n(&pages->gate->lease_ms, __ATOMIC_RELAXED) * 1000000u;
    uint64_t age = heartbeat_age_ns(pages);
    return age > lease && (!qg_link_connected() || age > HUNG_FACTOR * lease);
}

bool qg_gate_arbiter_back(struct qg_card *card)
{
    struct qg_pages *pages = is_open(card) ? qg_pages_of(card) : NULL;
    return pages &&
           heartbeat_age_ns(pages) <
               (uint64_t)__atomic_load_n(&pages->gate->lease_ms, __ATOMIC_RELAXED) * 500000u;
}

/* The process's other cards keep their gates: their arbiter may be as alive as ever. */
static void open_for_good(struct qg_card *card)
{
    static bool said;
    __atomic_store_n(&card->compute_open, true, __ATOMIC_SEQ_CST);
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        qg_say("the arbiter of this node does not answer; this program goes on without waiting for "
               "its turn on the "
               "card. Its memory limit stays. Please tell your administrator.");
}

/* True: the arbiter that registered this process is gone. One that refuses it lives, or lived after
 * it. */
static bool given_up(struct qg_card *card, const struct qg_pages *pages)
{
    if (qg_link_refusal(card)) {
        qg_link_say_shut(card);
        return false;
    }
    if (!lease_ran_out(pages))
        return false;
    open_for_good(card);
    return true;
}

static void futex_wait(const uint32_t *word, uint32_t seen, uint64_t limit_ns)
{
    struct timespec limit = {0, (long)limit_ns};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

/* Whoever has to wait marks what it launched before, so that its end can be seen. */
static void show_the_end(struct qg_stream *stream, struct qg_pages *pages)
{
    if (QG_LIKELY(!__atomic_load_n(&pages->proc->unmarked, __ATOMIC_RELAXED)))
        return;
    qg_depth++;
    qg_observe_context(stream->context->handle);
    qg_depth--;
}

/* The next one's turn begins when what this process launched before has ended. The arbiter looks
 * for it at intervals; a thread that waits anyway knows better when to look, and tells it. Returns
 * how long to sleep at most. */
static uint64_t watch_the_end(struct qg_card *card, struct qg_pages *pages, uint64_t start,
                              bool *drains, bool *told)
{
    uint64_t nap = *told || qg_now_ns() - start > DRAIN_NS ? 0 : qg_window_drain_ns(card, pages);
    if (*drains && !nap && !*told) {
        *told = true;
        ring(card, pages);
    }
    *drains = nap;
    return nap ? nap : WAIT_NS;
}

/* When the turn began to be used, for the arbiter's books: the first of those who waited says it.
 */
static void tell_turn(struct qg_pages *pages)
{
    uint64_t opened = __atomic_load_n(&pages->gate->changed_ns, __ATOMIC_RELAXED);
    if (__atomic_load_n(&pages->proc->turn_ns, __ATOMIC_RELAXED) < opened)
        __atomic_store_n(&pages->proc->turn_ns, qg_now_ns(), __ATOMIC_RELAXED);
}

/* Nothing that the arbiter must hear of at once: it closed the gate of a process with work on the
 * card, and awaits the end of that, which this thread tells. Mostly it saw as well that a thread
 * waits for room; else its next look finds one here. */
static bool expected(const struct qg_pages *pages, bool queued, uint64_t drain_ns)
{
    uint32_t flags = __atomic_load_n(&pages->gate->flags, __ATOMIC_RELAXED);
    return queued && drain_ns && (flags & QG_GATE_WHY_MASK) == QG_GATE_WHY_SHARE;
}

/* Waits until the gate of the newest pages is open. Holds nothing while it sleeps: a signal handler
 * may jump out. */
static void wait_closed(struct qg_card *card, struct qg_pages *pages)
{
    uint64_t start = qg_now_ns();
    bool drains = false, told = false;
    struct qg_pages *entered = pages, *rung = NULL;
    struct qg_proc *first = pages->proc;
    uint64_t changes = __atomic_load_n(&pages->gate->changes, __ATOMIC_RELAXED);
    bool turn = true;
    __atomic_fetch_add(&first->gate_waits, 1, __ATOMIC_RELAXED);
    for (;;) {
        pages = qg_pages_of(card); /* registered again: stand in the new queue */
        bool queued = qg_waiter_raise(pages->proc);
        if (pages != rung) {
            /* first, so that the arbiter finds it when it looks */
            uint64_t drain_ns = qg_window_drain_ns(card, pages);
            drains = expected(pages, queued, drain_ns);
            if (!drains)
                ring_once(card, pages);
        }
        rung = pages;
        uint32_t flags = __atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST);
        if (!(flags & QG_GATE_CLOSED)) {
            tell_turn(pages);
            break;
        }
        if (is_open(card) || given_up(card, pages))
            break;
        turn = turn && (flags & QG_GATE_WHY_MASK) == QG_GATE_WHY_SHARE;
        uint64_t limit = watch_the_end(card, pages, start, &drains, &told);
        int slack = drains ? qg_no_slack() : 0;
        futex_wait(&pages->gate->flags, flags, limit);
        qg_slack_again(slack);
    }
    __atomic_fetch_add(&pages->proc->gate_wait_ns, qg_now_ns() - start, __ATOMIC_RELAXED);
    qg_waiter_lower();
    if (turn && pages == entered &&
        __atomic_load_n(&pages->gate->changes, __ATOMIC_RELAXED) == changes + 1)
        qg_window_after_turn(pages, changes - 1, changes + 1);
}

void qg_gate_wait(struct qg_card *card)
{
    struct qg_pages *pages = qg_pages_of(card);
    if (pages && !is_open(card))
        wait_closed(card, pages);
}

bool qg_gate_waited(struct qg_stream *stream)
{
    struct qg_pages *pages = qg_pages_of(stream->card);
    if (!pages) {
        qg_link_wait(stream->card);
        return true;
    }
    if (is_open(stream->card) ||
        !(__atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST) & QG_GATE_CLOSED))
        return false;
    show_the_end(stream, pages);
    wait_closed(stream->card, pages);
    return true;
}

void qg_gate_attention(struct qg_stream *stream, const struct qg_work *work)
{
    struct qg_card *card = stream->card;
    for (;;) {
        struct qg_pages *pages = qg_pages_of(card);
        if (is_open(card))
            break;
        if (!pages) {
            qg_link_wait(card);
            qg_count(qg_pages_of(card));
            continue;
        }
        uint32_t flags = __atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST);
        if ((flags & QG_GATE_NOTIFY) && (flags & QG_GATE_HOLD))
            qg_window_pause_ends(card, pages);
        if (flags & QG_GATE_NOTIFY)
            ring_once(card, pages);
        if (flags & QG_GATE_CLOSED) {
            show_the_end(stream, pages);
            wait_closed(card, pages);
            continue;
        }
        if (!(flags & QG_GATE_WINDOW) || qg_window_enter(stream, pages, work))
            break;
    }
    if (qg_window_queued)
        qg_waiter_lower();
    qg_window_queued = false;
}

void qg_leave_look(struct qg_seen *seen, struct qg_stream *stream)
{
    uint64_t now = qg_tick();
    if (seen->stream == stream) {
        /* Launches that follow each other quickly need not look at the clock each time; slow ones
         * must. */
        bool quick =
            (uint32_t)(now >> 10) - seen->looked < qg_ticks_per_ms / SHORT_LOOK_DIVISOR >> 10;
        seen->stride = !quick                      ? 0
                       : seen->stride < MAX_STRIDE ? (uint16_t)(seen->stride * 2 + 1)
                                                   : MAX_STRIDE;
        seen->skip = seen->granted = seen->stride;
        seen->looked = (uint32_t)(now >> 10);
    }
    if (now - __atomic_load_n(&stream->marked_tick, __ATOMIC_RELAXED) < qg_ticks_per_ms)
        return;
    struct qg_pages *pages = qg_pages_of(stream->card);
    if (pages && (__atomic_load_n(&pages->gate->flags, __ATOMIC_RELAXED) & QG_GATE_TRACK))
        qg_mark(stream);
}
