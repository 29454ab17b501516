/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting at the gate: wakes the arbiter, sleeps while the gate is closed, and goes on without it
 * when the arbiter that registered this process is gone for good.
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
#include "window/wait.h"

/* ns: A sleeping thread checks pages, heartbeat and connection this often. It is well below the
 * default lease. Evidence: none. */
#define LONGEST_SLEEP_NS 50000000
/* ns: A waiting thread polls this long for the end of earlier work. The arbiter's drain timeout is
 * as long. Evidence: protocol (policy.h). */
#define DRAIN_NS 100000000u
/* count: Most launches between two readings of the clock. Evidence: none. */
#define MAX_STRIDE 15u
/* 1/n: A reading of the clock sooner than this part of a millisecond after the last one came too
 * early. Evidence: none. */
#define SHORT_POLL_DIVISOR 20
/* times: A connected arbiter without a heartbeat for this many leases counts as hung. A busy node
 * delays a heartbeat by less. Evidence: none. */
#define HUNG_FACTOR 3u

/* The arbiter is gone, so nothing waits at this card's gate. */
static bool gate_ignored(const struct qg_card *card)
{
    return __atomic_load_n(&card->gate_ignored, __ATOMIC_RELAXED);
}

static bool same_doorbell(const struct qg_pages *pages)
{
    struct stat st;
    return pages->doorbell >= 0 && fstat(pages->doorbell, &st) == 0 &&
           st.st_dev == pages->doorbell_dev && st.st_ino == pages->doorbell_ino;
}

/* The program may have closed every descriptor and may own the number by now. So its identity is
 * compared before it is written to. */
void qg_gate_ring(struct qg_card *card, const struct qg_pages *pages)
{
    static const uint64_t one = 1;
    int saved = errno;
    /* A system call by number, since write() is a cancellation point and a cancelled thread must
     * not end in here. */
    if (!same_doorbell(pages) ||
        syscall(SYS_write, pages->doorbell, &one, sizeof(one)) != (long)sizeof(one))
        qg_ring_by_helper(card);
    errno = saved;
}

/* One ring for each value of the gate word. It rings again after the word changed, or after 1 ms,
 * as a ring may be lost. */
static void ring_once(struct qg_card *card, struct qg_pages *pages)
{
    uint64_t changed = __atomic_load_n(&pages->gate->changed_ns, __ATOMIC_ACQUIRE), now = qg_tick();
    uint64_t before = __atomic_load_n(&card->rung_at, __ATOMIC_RELAXED);
    if (before == changed &&
        now - __atomic_load_n(&card->rung_tick, __ATOMIC_RELAXED) < qg_ticks_per_ms)
        return;
    __atomic_store_n(&card->rung_at, changed, __ATOMIC_RELAXED);
    __atomic_store_n(&card->rung_tick, now, __ATOMIC_RELAXED);
    qg_gate_ring(card, pages);
}

/* A new arbiter samples a tenant that rings. Work launched under the former arbiter would otherwise
 * be observed only at the next launch. Until then offline work might run beside it. */
void qg_gate_adopted(struct qg_card *card)
{
    struct qg_pages *pages = qg_pages_of(card);
    if (__atomic_load_n(&pages->proc->unfenced, __ATOMIC_SEQ_CST))
        qg_gate_ring(card, pages);
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

bool qg_gate_unanswered(struct qg_card *card, const struct qg_pages *pages)
{
    return gate_ignored(card) || qg_link_refusal(card) || lease_ran_out(pages);
}

bool qg_gate_arbiter_back(struct qg_card *card)
{
    struct qg_pages *pages = gate_ignored(card) ? qg_pages_of(card) : NULL;
    return pages &&
           heartbeat_age_ns(pages) <
               (uint64_t)__atomic_load_n(&pages->gate->lease_ms, __ATOMIC_RELAXED) * 500000u;
}

/* Only this card's gate is ignored from now on: the arbiter thread of another card may still work.
 */
static void ignore_gate(struct qg_card *card)
{
    static bool said;
    __atomic_store_n(&card->gate_ignored, true, __ATOMIC_SEQ_CST);
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        qg_message(
            "the arbiter of this node does not answer; this program goes on without waiting for "
            "the card. Its memory limit stays. Please tell your administrator.");
}

/* True: the arbiter that registered this process is gone. An arbiter that refuses the process is
 * alive, so then the gate stays closed. */
static bool given_up(struct qg_card *card, const struct qg_pages *pages)
{
    if (qg_link_refusal(card)) {
        qg_link_report_refusal(card);
        return false;
    }
    if (!lease_ran_out(pages))
        return false;
    ignore_gate(card);
    return true;
}

/* A launch that must wait first inserts a fence behind earlier work, so that the arbiter can
 * observe its end. */
static void fence_earlier_work(struct qg_stream *stream, struct qg_pages *pages)
{
    if (QG_LIKELY(!__atomic_load_n(&pages->proc->unfenced, __ATOMIC_RELAXED)))
        return;
    qg_depth++;
    qg_observe_context(stream->context->handle);
    qg_depth--;
}

/* What a thread remembers of its wait at a closed gate. */
struct gate_wait {
    uint64_t start;        /* ns: when the wait began */
    struct qg_pages *rung; /* pages for which it rang, or need not ring; NULL: none yet */
    bool drains;           /* earlier work is on the card; this thread rings at its end */
};

/* The next tenant's quantum begins when the earlier work of this process has ended. The arbiter
 * polls for that end at intervals. A waiting thread knows better when to poll, and rings at the
 * end. Returns the longest sleep in ns. */
static uint64_t poll_drain(struct qg_card *card, struct qg_pages *pages, struct gate_wait *wait)
{
    bool late = qg_now_ns() - wait->start > DRAIN_NS;
    uint64_t sleep_ns = late ? 0 : qg_window_drain_ns(card);
    if (wait->drains && !sleep_ns)
        qg_gate_ring(card, pages);
    wait->drains = sleep_ns;
    return sleep_ns ? sleep_ns : LONGEST_SLEEP_NS;
}

/* When the process began to use its quantum, for the arbiter's accounts. The first waiting thread
 * writes it. */
static void report_quantum_start(struct qg_pages *pages)
{
    uint64_t opened = __atomic_load_n(&pages->gate->changed_ns, __ATOMIC_RELAXED);
    if (__atomic_load_n(&pages->proc->quantum_start_ns, __ATOMIC_RELAXED) < opened)
        __atomic_store_n(&pages->proc->quantum_start_ns, qg_now_ns(), __ATOMIC_RELAXED);
}

/* True: the arbiter need not be woken. It closed the gate while this process had work on the card,
 * and this thread reports the end of that work. Mostly the arbiter has also sampled that the thread
 * waited for room. Otherwise its next sample shows it. */
static bool expected(const struct qg_pages *pages, bool queued, uint64_t drain_ns)
{
    uint32_t flags = __atomic_load_n(&pages->gate->flags, __ATOMIC_RELAXED);
    return queued && drain_ns && (flags & QG_GATE_WHY_MASK) == QG_GATE_WHY_SHARE;
}

/* Waits until the gate of the newest pages is open. It holds no lock while it sleeps, since a
 * signal handler may jump out. */
static void wait_closed(struct qg_card *card, struct qg_pages *pages)
{
    struct gate_wait wait = {.start = qg_now_ns()};
    __atomic_fetch_add(&pages->proc->gate_waits, 1, __ATOMIC_RELAXED);
    for (;;) {
        pages = qg_pages_of(card); /* registered again: wait in the new slot */
        bool queued = qg_waiter_raise(pages->proc);
        if (pages != wait.rung) {
            /* before the ring, so that the arbiter's sample shows it */
            uint64_t drain_ns = qg_window_drain_ns(card);
            wait.drains = expected(pages, queued, drain_ns);
            if (!wait.drains)
                ring_once(card, pages);
        }
        wait.rung = pages;
        uint32_t flags = __atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST);
        if (!(flags & QG_GATE_CLOSED)) {
            report_quantum_start(pages);
            break;
        }
        if (gate_ignored(card) || given_up(card, pages))
            break;
        uint64_t limit = poll_drain(card, pages, &wait);
        qg_wait_sleep(limit, &pages->gate->flags, flags);
    }
    __atomic_fetch_add(&pages->proc->gate_wait_ns, qg_now_ns() - wait.start, __ATOMIC_RELAXED);
    qg_waiter_lower();
}

void qg_gate_wait(struct qg_card *card)
{
    struct qg_pages *pages = qg_pages_of(card);
    if (pages && !gate_ignored(card))
        wait_closed(card, pages);
}

bool qg_gate_waited(struct qg_stream *stream)
{
    struct qg_pages *pages = qg_pages_of(stream->card);
    if (!pages) {
        qg_link_wait(stream->card);
        return true;
    }
    if (gate_ignored(stream->card) ||
        !(__atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST) & QG_GATE_CLOSED))
        return false;
    fence_earlier_work(stream, pages);
    wait_closed(stream->card, pages);
    return true;
}

void qg_gate_attention(struct qg_stream *stream, const struct qg_work *work)
{
    struct qg_card *card = stream->card;
    for (;;) {
        struct qg_pages *pages = qg_pages_of(card);
        if (gate_ignored(card))
            break;
        if (!pages) {
            qg_link_wait(card);
            qg_count(qg_pages_of(card));
            continue;
        }
        uint32_t flags = __atomic_load_n(&pages->gate->flags, __ATOMIC_SEQ_CST);
        if ((flags & QG_GATE_NOTIFY) && (flags & QG_GATE_HOLD))
            qg_window_hold_begin(card, pages);
        if (flags & QG_GATE_NOTIFY)
            ring_once(card, pages);
        if (flags & QG_GATE_CLOSED) {
            fence_earlier_work(stream, pages);
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

void qg_leave_slow(struct qg_seen *seen, struct qg_stream *stream)
{
    uint64_t now = qg_tick();
    if (seen->stream == stream) {
        /* Launches that follow each other quickly need not read the clock each time. Slow ones
         * must. */
        bool quick =
            (uint32_t)(now >> 10) - seen->polled < qg_ticks_per_ms / SHORT_POLL_DIVISOR >> 10;
        seen->stride = !quick                      ? 0
                       : seen->stride < MAX_STRIDE ? (uint16_t)(seen->stride * 2 + 1)
                                                   : MAX_STRIDE;
        seen->skip = seen->skip_set = seen->stride;
        seen->polled = (uint32_t)(now >> 10);
    }
    if (now - __atomic_load_n(&stream->fenced_tick, __ATOMIC_RELAXED) < qg_ticks_per_ms)
        return;
    struct qg_pages *pages = qg_pages_of(stream->card);
    if (pages && (__atomic_load_n(&pages->gate->flags, __ATOMIC_RELAXED) & QG_GATE_TRACK))
        qg_fence_insert(stream);
}
