/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads what the shims of a job report in its job page. The job can write anything there: each word
 * is read once and checked against its range. A job that lies is taken for busy, and then waits for
 * quanta and is charged for them; or for idle, and then loses its quanta.
 */
#include <string.h>

#include "base/base.h"
#include "hw/hw.h"
#include "model/model.h"
#include "observe/observe_parts.h"
#include "policy/policy.h"
#include "qg_msg.h"

/* ns: A thread at an open gate counts as work this long. One that runs launches sooner, so this one
 * is stopped, or its process lies. Evidence: attack (test_arbiter_robust.py). */
#define GATE_WAIT_NS (5 * QP_MS)
/* ns: The same from the second time on: its word was wrong once already. Offline must not wait for
 * these tries. Evidence: attack (test_arbiter_gates.py). */
#define GATE_WAIT_AGAIN_NS (1 * QP_MS)
/* ns: Such a word is ignored this long the first time, and twice as long each time. Evidence:
 * simulator (docs/measurements/2026-11-28-constants-simulated.md). */
#define DOUBT_MIN_NS (10 * QP_MS)
/* ns: It is ignored no longer than this, so that an honest program is believed again. Evidence:
 * simulator (docs/measurements/2026-11-28-constants-simulated.md). */
#define DOUBT_MAX_NS (1000 * QP_MS)
/* ns: Words that were on their way when channel groups were stopped arrive within it. Evidence:
 * none. */
#define HELD_LATE_NS (1 * QP_MS)
/* ns: A process without a connection for this long runs another program, and its words are old. A
 * shim tries to connect each 0.1 s. Evidence: protocol (register.c). */
#define RECONNECT_NS (2000 * QP_MS)
/* ns: A process divides the window of its tenant for this long after its last work. Evidence: none.
 */
#define WORKING_NS (10 * QP_MS)
/* count: A larger counter of a job, or a larger rise, is not believed, and totals stop here. So no
 * sum wraps. Evidence: attack (test_arbiter_tricks.py). */
#define MAX_COUNT (1ull << 48)

/* ns: A thread that waits for room counts this long behind a closed gate. It reads its gate each
 * millisecond; this is twice that. Evidence: protocol (docs/specs/shim/estimator.md). */
#define QUEUED_POLL_NS  (2 * QP_MS)
#define READ_ONCE(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)

static uint64_t bytes(uint64_t v)
{
    return v < AR_MAX_BYTES ? v : AR_MAX_BYTES;
}

static uint64_t launches(uint64_t v)
{
    return v < MAX_COUNT ? v : 0;
}

/* All launch counters of a process, each read once. A lane without launches costs no cache miss, as
 * no thread writes it. */
static uint64_t total_launches(const struct qg_proc *page)
{
    uint64_t sum = launches(__atomic_load_n(&page->launches, __ATOMIC_SEQ_CST));
    for (uint32_t i = 0; i < QG_LANES; i++)
        sum += launches(__atomic_load_n(&page->lanes[i].launches, __ATOMIC_SEQ_CST));
    return sum;
}

/* Advances a total by what a counter of the job grew. A counter that falls, or jumps far, does not
 * move the total. One that goes up and down counts each rise: its program may have started anew. */
static void advance(uint64_t *total, uint64_t *seen, uint64_t value)
{
    uint64_t grown = value - *seen;
    if (value > *seen && grown < MAX_COUNT)
        *total = at_most(*total + grown, MAX_COUNT);
    *seen = value;
}

struct view {
    bool launched, pending, unfenced, frozen, waiting, queued, unreported;
    uint32_t working;
    uint64_t signature, inflight_us, ended_ns, resumed_ns;
};

/* Fences that advance although all channel groups of the process are stopped show that the process
 * continued its groups by itself. */
static void check_held(const struct tenant *t, struct slot *s, bool held, uint64_t reached,
                       uint64_t now)
{
    if (held && s->stopped_since_ns && ar_since(s->stopped_since_ns, now) >= HELD_LATE_NS &&
        reached != s->reached)
        hw_escaped(t);
    if (!held)
        s->stopped_since_ns = 0;
    else if (!s->stopped_since_ns)
        s->stopped_since_ns = now;
    s->reached = reached;
}

/* When a thread of the process left the gate after the gate was last opened. A process reports it
 * once per quantum, perhaps long after others did, or after a ring that found nothing. What the
 * thread launches now was counted when it came to the gate. */
static void read_resumed(const struct tenant *t, const struct qg_proc *page, struct slot *s,
                         struct view *v, uint64_t now)
{
    uint64_t resumed = READ_ONCE(page->quantum_start_ns);
    if (resumed == s->resumed_ns || resumed < t->sample.opened_ns || resumed > now)
        return;
    s->resumed_ns = resumed;
    if (!v->resumed_ns || resumed < v->resumed_ns)
        v->resumed_ns = resumed;
}

/* When the work of the process ended, if the last sample found it at work or this one finds traces
 * of work. The process reports it itself, when a call returned that had waited for that end. */
static void read_reported_end(const struct tenant *t, const struct slot *s,
                              const struct qg_proc *page, bool works, uint64_t count,
                              struct view *v)
{
    if (!works && s->worked_ns < t->sample.full_ns)
        return;
    bool reported = __atomic_load_n(&page->idle_launches, __ATOMIC_ACQUIRE) == count;
    uint64_t ended = reported ? READ_ONCE(page->idle_ns) : 0;
    v->unreported |= !ended;
    if (ended > v->ended_ns)
        v->ended_ns = ended;
}

static void sample_slot(struct tenant *t, uint32_t i, struct view *v, bool fences, uint64_t now)
{
    struct qg_proc *page = &t->page->procs[i];
    struct slot *s = &t->slots[i];
    uint64_t count = total_launches(page);
    uint64_t lost = READ_ONCE(s->lost_ns);
    /* a shim that lost its connection is back within 0.4 s */
    bool ours = !lost || now < lost + RECONNECT_NS;
    /* read before `waiting`: a thread that stops being queued then waits there */
    bool queued = ours && __atomic_load_n(&page->queued, __ATOMIC_ACQUIRE);
    bool waiting = ours && READ_ONCE(page->waiting);
    bool works = count != s->launches, pending = false;
    v->launched |= works;
    advance(&t->usage.launches, &s->launches, count);
    v->waiting |= waiting;
    v->queued |= queued;
    read_resumed(t, page, s, v, now);
    if (fences && ours) {
        bool unfenced = READ_ONCE(page->unfenced) != 0, held = hw_held(t, i);
        uint64_t reached = 0;
        for (uint32_t m = 0; m < QG_FENCES; m++) {
            uint32_t submitted = READ_ONCE(page->fences[m].submitted),
                     done = READ_ONCE(page->fences[m].done);
            if ((int32_t)(submitted - done) > 0)
                pending = true;
            v->signature = v->signature * 31 + submitted * 7ull + done;
            reached = reached * 31 + done;
        }
        check_held(t, s, held, reached, now);
        if (unfenced || pending) /* else the word is of work that has ended */
            v->inflight_us += at_most(READ_ONCE(page->inflight_us), QP_LONE_WINDOW_US);
        v->frozen |= held && (unfenced || pending);
        v->unfenced |= unfenced && !held;
        v->pending |= pending && !held;
        read_reported_end(t, s, page, works || pending, count, v);
        works |= unfenced || pending;
    }
    if (works || waiting)
        s->worked_ns = now;
    v->working += s->worked_ns && ar_since(s->worked_ns, now) < WORKING_NS;
}

static struct view sample_slots(struct tenant *t, bool fences, uint64_t now)
{
    struct view v = {0};
    for (uint32_t i = 0; i < t->hi; i++) {
        if (t->slots[i].proc)
            sample_slot(t, i, &v, fences, now);
    }
    return v;
}

/* Adds up how long the gate was open while a thread still waited there, over as many quanta as it
 * takes. */
static void count_unused(struct tenant *t, bool at_gate, uint64_t now)
{
    if (t->sample.unused_from_ns && now > t->sample.unused_from_ns)
        t->sample.unused_ns += now - t->sample.unused_from_ns;
    t->sample.unused_from_ns = at_gate && !(t->gate->flags & QG_GATE_CLOSED) ? now : 0;
}

/* Does a thread that waits count as work? Threads that stay at an open gate get no more quanta for
 * a while, until a launch or progress shows that they run. The same holds for a thread that waits
 * for room (`stuck`) while its process has nothing on the card. */
static bool gate_wait_counts(struct tenant *t, bool waiting, bool stuck, uint64_t now)
{
    bool there = waiting || stuck;
    t->sample.doubted = there && now < t->sample.discredit_until_ns;
    count_unused(t, there && !t->sample.doubted, now);
    if (!there || t->sample.doubted)
        return false;
    if (t->sample.unused_ns < (t->sample.discredit_ns ? GATE_WAIT_AGAIN_NS : GATE_WAIT_NS))
        return waiting;
    t->sample.unused_ns = t->sample.unused_from_ns = 0;
    t->sample.doubted = true;
    t->sample.discredit_ns = t->sample.discredit_ns ? t->sample.discredit_ns * 2 : DOUBT_MIN_NS;
    if (t->sample.discredit_ns > DOUBT_MAX_NS)
        t->sample.discredit_ns = DOUBT_MAX_NS;
    t->sample.discredit_until_ns = now + t->sample.discredit_ns;
    return false;
}

/* Was the gate closed since before the last sample? Then a launch that was counted since waits in
 * front of it, and is not work on the card. */
static bool closed_since_sample(const struct tenant *t)
{
    return (t->gate->flags & QG_GATE_CLOSED) && t->gate->changed_ns < t->sample.sampled_ns;
}

/* Notes the first use of the current quantum. Returns false if it is known already, or if the gate
 * is closed. */
static bool note_first_use(struct tenant *t, uint64_t since)
{
    struct qp_tenant *q = &t->card->policy.tenant[t->index];
    if (q->used_from_ns || (t->gate->flags & QG_GATE_CLOSED))
        return false;
    q->used_from_ns = since > t->sample.opened_ns ? since : t->sample.opened_ns;
    return true;
}

/* The first ring of a quantum comes from a launch that was counted when it came to the closed gate.
 * It is work from now on. */
void sample_bell(struct tenant *t, uint64_t now)
{
    bool first = note_first_use(t, now);
    t->sample.active_ns = now;
    if (!first || !t->sample.at_gate)
        return;
    t->sample.launched = t->sample.ran = true;
    t->sample.sampled_ns =
        now > t->sample.full_ns ? now : t->sample.full_ns + 1; /* the next full sample keeps it */
}

void sample_gate_moved(struct tenant *t, bool open, uint64_t now)
{
    if (open) {
        t->sample.opened_ns = now;
        t->card->policy.tenant[t->index].used_from_ns = 0;
        /* the threads that waited here launch now; those launches were counted long ago */
        if (t->sample.at_gate)
            t->sample.progress_ns = now;
    }
    count_unused(t, t->sample.at_gate, now);
}

/* A thread that waited at the gate left it. The launch that was counted there is made now, so this
 * is worth as much as a ring. */
static void note_resumed(struct tenant *t, uint64_t resumed)
{
    note_first_use(t, resumed);
    t->sample.launched = t->sample.ran = true;
    if (t->sample.progress_ns < resumed)
        t->sample.progress_ns = resumed;
    if (t->sample.active_ns < resumed)
        t->sample.active_ns = resumed;
}

static void update_sample(struct tenant *t, const struct view *v, bool progress, uint64_t now)
{
    bool ran = v->launched && !closed_since_sample(t);
    if (ran || progress)
        t->sample.progress_ns = now;
    if (v->launched || progress)
        t->sample.discredit_ns = t->sample.discredit_until_ns = t->sample.unused_ns =
            t->sample.unused_from_ns = 0;
    if (v->resumed_ns)
        note_resumed(t, v->resumed_ns);
    if (ran || progress)
        note_first_use(t, t->sample.opened_ns); /* it never rang */
    t->sample.launched |= v->launched;
    t->sample.ran |= ran;
    /* a thread that waited for room comes to the gate now, unless it is stopped */
    bool closed = t->gate->flags & QG_GATE_CLOSED;
    t->sample.queued = v->queued && (!closed || now < t->gate->changed_ns + QUEUED_POLL_NS);
    /* Online's second launch waits at HOLD until offline has left. The first one may be over then,
     * and online is not idle. */
    bool counts = closed || t->id.job_class == QG_CLASS_ONLINE;
    t->sample.at_gate = gate_wait_counts(t, v->waiting || (counts && t->sample.queued),
                                         v->queued && !v->pending && !v->unfenced, now);
    if (v->launched)
        t->sample.launch_seen_ns = now;
    if (v->launched || progress || t->sample.at_gate)
        t->sample.active_ns = now;
    t->sample.sampled_ns = now;
    sample_classify(t, now);
}

void sample_quick(struct tenant *t, uint64_t now)
{
    struct view v = sample_slots(t, false, now);
    update_sample(t, &v, false, now);
}

/* Notes when its last work ended. A reported end counts if it is later than the last time at which
 * a sample found work or could not exclude it. What a quick sample found since the last full one
 * counts like what this sample finds. */
static void note_end(struct tenant *t, const struct view *v, uint64_t now)
{
    bool at_work =
        v->pending || v->unfenced || v->frozen || v->waiting || v->queued || v->resumed_ns;
    bool launched = v->launched || t->sample.launched;
    if (at_work) {
        t->sample.at_work_ns = now;
        t->sample.ended_ns = 0;
    } else if (launched || !t->sample.ended_ns || t->sample.ended_ns == QP_NEVER) {
        if (launched && t->sample.at_work_ns < t->sample.sampled_ns)
            t->sample.at_work_ns = t->sample.sampled_ns;
        bool reported = !v->unreported && v->ended_ns && v->ended_ns >= t->sample.at_work_ns &&
                        v->ended_ns <= now;
        t->sample.ended_ns = reported ? v->ended_ns : QP_NEVER;
        if (!reported)
            t->sample.at_work_ns = now;
    }
    t->card->policy.tenant[t->index].reported_end_ns =
        t->sample.ended_ns == QP_NEVER ? 0 : t->sample.ended_ns;
}

/* Bytes that allocations wait for. A shim rings when they change, so no other sample reads them.
 * The main thread tells qgpud. */
static void sample_wants(struct tenant *t)
{
    bool changed = false;
    for (uint32_t i = 0; i < t->hi; i++) {
        struct slot *s = &t->slots[i];
        uint64_t wanted = s->proc ? READ_ONCE(t->page->procs[i].mem_wanted) : 0;
        wanted = at_most(wanted, t->id.mem_cap);
        changed |= wanted != s->wanted;
        __atomic_store_n(&s->wanted, wanted, __ATOMIC_RELAXED);
    }
    if (changed)
        wants_changed(t->card);
}

void sample_full(struct tenant *t, uint64_t now)
{
    struct view v = sample_slots(t, true, now);
    bool progress = v.signature != t->sample.signature;
    /* what a quick sample found since the last full one still counts, as the counters
     * have moved on */
    t->sample.launched = t->sample.launched && t->sample.sampled_ns > t->sample.full_ns;
    t->sample.ran = t->sample.ran && t->sample.sampled_ns > t->sample.full_ns;
    t->sample.signature = v.signature;
    if (t->sample.frozen && !v.frozen)
        t->sample.progress_ns = now; /* it could not make progress while stopped */
    t->sample.frozen = v.frozen;
    t->sample.pending = v.pending;
    t->sample.expected_ns = v.inflight_us * 1000;
    t->sample.unfenced = v.unfenced;
    t->sample.working = v.working;
    note_end(t, &v, now);
    sample_set_window(t);
    if (t->bell.rung)
        sample_wants(t);
    update_sample(t, &v, progress, now);
    bool ending = t->sample.busy && !t->sample.pending && !t->sample.unfenced && !t->sample.at_gate;
    t->sample.ending = ending && !t->sample.ended;
    t->sample.ended = ending;
    t->sample.full_ns = now;
}

/* A full sample right after a gate was closed. What the sample before found still counts. */
void sample_after_close(struct tenant *t, uint64_t now)
{
    bool launched = t->sample.launched, ran = t->sample.ran, ending = t->sample.ending,
         unfenced = t->sample.unfenced;
    sample_full(t, now);
    bool rose = t->sample.unfenced && !unfenced; /* counted at the window before, launched now */
    if (rose)
        t->sample.launch_seen_ns = t->sample.progress_ns = now;
    t->sample.launched |= launched;
    t->sample.ran |= ran || rose;
    t->sample.ending |= ending;
    sample_classify(t, now);
}

/* Did a launch pass the gate since the last sample? Read after the gate was stored; the shim counts
 * first and reads the gate then. So one of the two always sees the other. */
bool sample_launched_since(const struct tenant *t)
{
    for (uint32_t i = 0; i < t->hi; i++) {
        if (t->slots[i].proc && total_launches(&t->page->procs[i]) != t->slots[i].launches)
            return true;
    }
    return false;
}

void sample_counters(struct tenant *t)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < t->hi; i++) {
        struct slot *s = &t->slots[i];
        if (!s->proc)
            continue;
        struct qg_proc *page = &t->page->procs[i];
        s->mem_used = bytes(READ_ONCE(page->mem_used));
        used += s->mem_used;
        uint64_t peak = bytes(READ_ONCE(page->mem_peak));
        if (peak > t->usage.mem_peak)
            t->usage.mem_peak = peak;
        uint64_t refused = bytes(READ_ONCE(page->mem_refused));
        if (refused > t->usage.mem_refused)
            t->usage.mem_refused = refused;
        advance(&t->usage.mem_denied, &s->denied, READ_ONCE(page->mem_denied));
    }
    t->usage.mem_used = used;
    used += reaped_extra(t);
    if (used > t->usage.mem_peak)
        t->usage.mem_peak = used;
}
