/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores the decided gate words into the gate pages: closings first, since another tenant waits
 * until the card is free.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"
#include "gate/gate.h"
#include "model/model.h"
#include "observe/observe.h"
#include "qg_time.h"

/* threads that one store of a gate wakes. Further threads of a job wake by their own timeout, so
 * that they cannot delay the thread of the card */
enum { MAX_WAKE = 128 };

static void wake_waiters(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, MAX_WAKE, NULL, NULL, 0);
}

/* Notes that the gate now asks for rings. A thread behind a closed gate reads the word again when
 * it opens, so only an open gate needs a barrier. */
static void note_ring(struct card *card, struct tenant *t, uint32_t old, uint32_t flags)
{
    if (!(flags & ~old & QG_GATE_NOTIFY))
        return;
    t->bell.notified = true;
    if (!(old & QG_GATE_CLOSED))
        card->barrier = true;
}

void gate_store(struct card *card, struct tenant *t, uint32_t flags)
{
    uint32_t old = t->gate->flags; /* only the arbiter writes this page */
    if (old == flags)
        return;
    bool moved = (old ^ flags) & QG_GATE_CLOSED, opens = moved && (old & QG_GATE_CLOSED);
    /* read before an opening, so that no thread leaves the gate earlier, and after a closing */
    uint64_t before = opens ? qg_now_ns() : 0;
    __atomic_store_n(&t->gate->flags, flags, __ATOMIC_SEQ_CST);
    uint64_t now = opens ? before : qg_now_ns();
    __atomic_store_n(&t->gate->changed_ns, now, __ATOMIC_RELAXED);
    if (moved)
        __atomic_store_n(&t->gate->changes, t->gate->changes + 1, __ATOMIC_RELAXED);
    note_ring(card, t, old, flags);
    if (moved)
        sample_gate_moved(t, opens, now);
    if (opens || (old & ~flags & (QG_GATE_HOLD | QG_GATE_WHY_MEMORY)))
        wake_waiters(&t->gate->flags);
    struct qg_gate_event event = {
        .t_ns = now, .job_id = t->id.job_id, .card = card->number, .flags = flags};
    trace_put(card->trace, &event);
}

/* Accounts the time from the doorbell that caused this step to the stored gate, to the tenant that
 * was closed. */
static void note_closing(struct tenant *t, uint32_t why, uint64_t bell_ns)
{
    if ((why & QG_GATE_WHY_PREEMPTED) && t->sample.busy)
        t->usage.preemptions++;
    if (!bell_ns || !(why & QG_GATE_WHY_PREEMPTED))
        return;
    uint64_t took = t->gate->changed_ns - bell_ns;
    if (took > t->usage.close_max_ns)
        t->usage.close_max_ns = took;
    uint32_t bucket = 0;
    while (bucket < QG_CLOSE_BUCKETS - 1 && took >= 1000ull << bucket)
        bucket++;
    t->usage.close_hist[bucket]++;
}

static uint32_t decided_gate(const struct card *card, const struct tenant *t)
{
    if (!t->id.revoked)
        return card->policy.tenant[t->index].gate;
    /* a job that goes on elsewhere: its allocations wait, too, until it registered there */
    return QG_GATE_CLOSED | QG_GATE_TRACK | (t->id.left ? QG_GATE_WHY_MEMORY : 0);
}

static uint64_t oldest_bell(const struct card *card)
{
    uint64_t bell = 0;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        const struct tenant *t = card->tenants[i];
        if (t && t->bell.bell_ns && t->id.job_class == QG_CLASS_ONLINE &&
            (!bell || t->bell.bell_ns < bell))
            bell = t->bell.bell_ns;
    }
    return bell;
}

/* Stored before the word that opens the gate. */
static void set_until(struct tenant *t, uint64_t until)
{
    if (t->gate->until_ns != until)
        __atomic_store_n(&t->gate->until_ns, until, __ATOMIC_RELAXED);
}

void gates_apply(struct card *card)
{
    uint64_t bell_ns = oldest_bell(card);
    for (int opening = 0; opening < 2; opening++) {
        for (uint32_t i = 0; i < card->policy.ntenants; i++) {
            struct tenant *t = card->tenants[i];
            if (!t || (!t->nprocs && !t->id.revoked))
                continue;
            uint32_t flags = decided_gate(card, t);
            bool opens = !(flags & QG_GATE_CLOSED), was_open = !(t->gate->flags & QG_GATE_CLOSED);
            if (opens != opening)
                continue;
            set_until(t, card->policy.tenant[t->index].until_ns);
            gate_store(card, t, flags);
            if (!opens && was_open)
                note_closing(t, flags & QG_GATE_WHY_MASK, bell_ns);
        }
    }
}

void gates_heartbeat(struct card *card, uint64_t now)
{
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        if (card->tenants[i])
            __atomic_store_n(&card->tenants[i]->gate->heartbeat_ns, now, __ATOMIC_RELEASE);
    }
    card->beat_ns = now;
}

/* A shorter lease must not make the last heartbeat too old, so a new heartbeat is stored first. */
void gates_settings(struct tenant *t, uint64_t now)
{
    __atomic_store_n(&t->gate->heartbeat_ns, now, __ATOMIC_RELEASE);
    __atomic_store_n(&t->gate->mem_cap, t->id.mem_cap, __ATOMIC_RELAXED);
    __atomic_store_n(&t->gate->window_us, sample_window(t), __ATOMIC_RELAXED);
    __atomic_store_n(&t->gate->lease_ms, t->card->lease_ms, __ATOMIC_RELEASE);
}
