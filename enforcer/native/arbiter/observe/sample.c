/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading what a job shows of itself. Each word is read exactly once and range-checked; nothing is
 * repeated until it "fits". The worst a lying job reaches is to be taken for busy (then it waits
 * for its own turns and pays for them) or for idle (then it loses them).
 */
#include <string.h>

#include "base/base.h"
#include "hw/hw.h"
#include "model/model.h"
#include "observe/observe_parts.h"
#include "policy/policy.h"
#include "qg_msg.h"

/* ns that a thread may wait at an open gate and count as work; then it is stopped or lies */
#define STANDING_LEASE_NS (5 * QP_MS)
/* ns, the same from the second time on: it was wrong once */
#define STANDING_AGAIN_NS (1 * QP_MS)
/* ns for which such a word is ignored the first time; doubles each time */
#define DISCREDIT_MIN_NS (10 * QP_MS)
/* most ns for which it is ignored, so that an honest program comes back */
#define DISCREDIT_MAX_NS (1000 * QP_MS)
/* ns in which words still arrive that were on their way when groups were stopped */
#define HELD_NS (1 * QP_MS)
/* ns without a connection; then the process runs another program, whose words these are not */
#define LOST_NS (2000 * QP_MS)
/* ns since its last work within which a process divides the window */
#define WORKING_NS (10 * QP_MS)
/* ns by which a thread may go on before the arbiter noted the opening of the gate */
#define TURN_NS 20000u
/* ns: predicted ends further ahead are wrong, or too far to use */
#define MAX_AHEAD_NS (1000 * QP_MS)
/* threads that wait in one process; more is not believed */
#define MAX_WAITING 65536u
/* contexts of one process; more counts as this many */
#define MAX_CONTEXTS 64u
/* launches in one counter; more is not believed */
#define MAX_LAUNCHES (1ull << 56)
/* most of a total of a job: it must neither wrap nor become negative */
#define MAX_TOTAL (1ull << 56)

#define QUEUED_NS       (2 * QP_MS) /* who waits for room looks at its gate each millisecond */
#define READ_ONCE(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)

static uint64_t bytes(uint64_t v)
{
    return v < AR_MAX_BYTES ? v : AR_MAX_BYTES;
}

static uint64_t launches(uint64_t v)
{
    return v < MAX_LAUNCHES ? v : 0;
}

/* All counters of a process, each read once. Idle lanes cost no cache miss: nobody writes them. */
static uint64_t total_launches(const struct qg_proc *page)
{
    uint64_t sum = launches(__atomic_load_n(&page->launches, __ATOMIC_SEQ_CST));
    for (uint32_t i = 0; i < QG_LANES; i++)
        sum += launches(__atomic_load_n(&page->lanes[i].launches, __ATOMIC_SEQ_CST));
    return sum;
}

/* Advances a total by what a counter of the job grew; a counter that falls or jumps moves nothing
 * back. One that goes up and down again and again counts each time: it may be a program that began
 * anew. */
static void advance(uint64_t *total, uint64_t *seen, uint64_t value)
{
    uint64_t grown = value - *seen;
    if (value > *seen && grown < (1ull << 48))
        *total = at_most(*total + grown, MAX_TOTAL);
    *seen = value;
}

struct view {
    bool launched, pending, unmarked, frozen, unforeseen, queued, unreported;
    uint32_t waiting, working, more_contexts;
    uint64_t signature, inflight_us, ends_ns, ended_ns, turn_ns;
};

/* What the card reaches although all groups of the process stand still tells that it continued them
 * by itself. */
static void watch_held(const struct tenant *t, struct slot *s, bool held, uint64_t reached,
                       uint64_t now)
{
    if (held && s->held_ns && ar_since(s->held_ns, now) >= HELD_NS && reached != s->reached)
        hw_escaped(t);
    if (!held)
        s->held_ns = 0;
    else if (!s->held_ns)
        s->held_ns = now;
    s->reached = reached;
}

/* When a thread of the process went on after the gate opened last. Each process says it once per
 * turn, and perhaps long after others have, or after a ring that found nothing: what it launches
 * now was counted when it came to the gate. */
static void look_for_turn(const struct tenant *t, const struct qg_proc *page, struct slot *s,
                          struct view *v, uint64_t now)
{
    uint64_t turn = READ_ONCE(page->turn_ns);
    if (turn == s->resumed_ns || turn + TURN_NS <= t->sample.opened_ns || turn > now)
        return;
    s->resumed_ns = turn;
    if (!v->turn_ns || turn < v->turn_ns)
        v->turn_ns = turn;
}

/* When the process's work ended, if the look before found it at work, or this one finds traces: by
 * its own word, which it gave when a call of it came back that had waited for that. */
static void look_for_end(const struct tenant *t, const struct slot *s, const struct qg_proc *page,
                         bool works, uint64_t count, struct view *v)
{
    if (!works && s->worked_ns < t->sample.full_ns)
        return;
    bool told = __atomic_load_n(&page->rests_launches, __ATOMIC_ACQUIRE) == count;
    uint64_t ended = told ? READ_ONCE(page->rests_ns) : 0;
    v->unreported |= !ended;
    if (ended > v->ended_ns)
        v->ended_ns = ended;
}

static void look_at_slot(struct tenant *t, uint32_t i, struct view *v, bool markers, uint64_t now)
{
    struct qg_proc *page = &t->job->procs[i];
    struct slot *s = &t->slots[i];
    uint64_t count = total_launches(page);
    uint64_t lost = READ_ONCE(s->lost_ns);
    /* a shim that lost its connection is back within 0.4 s */
    bool ours = !lost || now < lost + LOST_NS;
    /* before `waiting`, which it goes over to */
    bool queued = ours && __atomic_load_n(&page->queued, __ATOMIC_ACQUIRE);
    uint32_t waiting = ours ? READ_ONCE(page->waiting) : 0;
    bool works = count != s->launches, pending = false;
    v->launched |= works;
    advance(&t->usage.launches, &s->launches, count);
    if (waiting > MAX_WAITING)
        waiting = 0;
    v->waiting += waiting;
    v->queued |= queued;
    look_for_turn(t, page, s, v, now);
    if (markers && ours) {
        bool unmarked = READ_ONCE(page->unmarked) != 0, held = hw_held(t, i);
        uint64_t reached = 0;
        for (uint32_t m = 0; m < QG_MARKERS; m++) {
            uint32_t submitted = READ_ONCE(page->markers[m].submitted),
                     done = READ_ONCE(page->markers[m].done);
            if ((int32_t)(submitted - done) > 0)
                pending = true;
            v->signature = v->signature * 31 + submitted * 7ull + done;
            reached = reached * 31 + done;
        }
        watch_held(t, s, held, reached, now);
        uint64_t contexts = at_most(READ_ONCE(page->contexts), MAX_CONTEXTS);
        v->more_contexts += contexts > 1 ? (uint32_t)contexts - 1 : 0;
        if (unmarked || pending) /* else it is of work that has ended */
            v->inflight_us += at_most(READ_ONCE(page->inflight_us), QP_DEEP_WINDOW_US);
        v->frozen |= held && (unmarked || pending);
        v->unmarked |= unmarked && !held;
        v->pending |= pending && !held;
        uint64_t ends = READ_ONCE(page->ends_ns);
        if (pending && ends > v->ends_ns)
            v->ends_ns = ends;
        look_for_end(t, s, page, works || pending, count, v);
        v->unforeseen |= unmarked || (pending && (!ends || ends > now + MAX_AHEAD_NS));
        works |= unmarked || pending;
    }
    if (works || waiting)
        s->worked_ns = now;
    v->working += s->worked_ns && ar_since(s->worked_ns, now) < WORKING_NS;
}

static struct view look(struct tenant *t, bool markers, uint64_t now)
{
    struct view v = {0};
    for (uint32_t i = 0; i < t->hi; i++) {
        if (t->slots[i].proc)
            look_at_slot(t, i, &v, markers, now);
    }
    return v;
}

/* Adds up how long the gate was open while somebody stood there all the same, over as many turns as
 * it takes. */
static void count_unused(struct tenant *t, bool standing, uint64_t now)
{
    if (t->sample.unused_from_ns && now > t->sample.unused_from_ns)
        t->sample.unused_ns += now - t->sample.unused_from_ns;
    t->sample.unused_from_ns = standing && !(t->gate->flags & QG_GATE_CLOSED) ? now : 0;
}

/* Threads at an open gate that do not move earn no more turns for a while; any progress clears
 * their name. The same for one that waits for room (`stuck`) although nothing of its process is on
 * the card. */
static bool believe_standing(struct tenant *t, bool waiting, bool stuck, uint64_t now)
{
    bool there = waiting || stuck;
    t->sample.doubted = there && now < t->sample.discredit_until_ns;
    count_unused(t, there && !t->sample.doubted, now);
    if (!there || t->sample.doubted)
        return false;
    if (t->sample.unused_ns < (t->sample.discredit_ns ? STANDING_AGAIN_NS : STANDING_LEASE_NS))
        return waiting;
    t->sample.unused_ns = t->sample.unused_from_ns = 0;
    t->sample.doubted = true;
    t->sample.discredit_ns = t->sample.discredit_ns ? t->sample.discredit_ns * 2 : DISCREDIT_MIN_NS;
    if (t->sample.discredit_ns > DISCREDIT_MAX_NS)
        t->sample.discredit_ns = DISCREDIT_MAX_NS;
    t->sample.discredit_until_ns = now + t->sample.discredit_ns;
    return false;
}

/* A launch that came while the gate was closed all the time stands in front of it: it is a wish,
 * not work. */
static bool shut_since(const struct tenant *t)
{
    return (t->gate->flags & QG_GATE_CLOSED) && t->gate->changed_ns < t->sample.sampled_ns;
}

/* The tenant uses the turn that it was given since then. False: that was known, or it has none. */
static bool begin_use(struct tenant *t, uint64_t since)
{
    struct qp_tenant *q = &t->card->policy.tenant[t->index];
    if (q->used_from_ns || (t->gate->flags & QG_GATE_CLOSED))
        return false;
    q->used_from_ns = since > t->sample.opened_ns ? since : t->sample.opened_ns;
    return true;
}

/* The first ring of a turn comes from a launch that was counted when it came to the closed gate: it
 * is work now. */
void sample_bell(struct tenant *t, uint64_t now)
{
    bool first = begin_use(t, now);
    t->sample.active_ns = now;
    if (!first || !t->sample.at_gate)
        return;
    t->sample.launched = t->sample.ran = true;
    t->sample.sampled_ns =
        now > t->sample.full_ns ? now : t->sample.full_ns + 1; /* the next full look keeps it */
}

void sample_turn(struct tenant *t, bool open, uint64_t now)
{
    if (open) {
        t->sample.opened_ns = now;
        t->card->policy.tenant[t->index].used_from_ns = 0;
        /* what stood here launches now, and was counted long ago */
        if (t->sample.at_gate)
            t->sample.progress_ns = now;
    }
    count_unused(t, t->sample.at_gate, now);
}

/* A thread that stood at the gate went on: the launch that was counted there is made now, and it is
 * as good as a ring. */
static void go_on(struct tenant *t, uint64_t turn)
{
    begin_use(t, turn);
    t->sample.launched = t->sample.ran = true;
    if (t->sample.progress_ns < turn)
        t->sample.progress_ns = turn;
    if (t->sample.active_ns < turn)
        t->sample.active_ns = turn;
}

static void take_in(struct tenant *t, const struct view *v, bool progress, uint64_t now)
{
    bool ran = v->launched && !shut_since(t);
    if (ran || progress)
        t->sample.progress_ns = now;
    if (v->launched || progress)
        t->sample.discredit_ns = t->sample.discredit_until_ns = t->sample.unused_ns =
            t->sample.unused_from_ns = 0;
    if (v->turn_ns)
        go_on(t, v->turn_ns);
    if (ran || progress)
        begin_use(t, t->sample.opened_ns); /* nobody rang */
    t->sample.launched |= v->launched;
    t->sample.ran |= ran;
    /* who waited for room comes to the gate now, unless it was stopped */
    bool closed = t->gate->flags & QG_GATE_CLOSED;
    t->sample.queued = v->queued && (!closed || now < t->gate->changed_ns + QUEUED_NS);
    t->sample.at_gate = believe_standing(t, v->waiting || (closed && t->sample.queued),
                                         v->queued && !v->pending && !v->unmarked, now);
    if (v->launched)
        t->sample.launch_seen_ns = now;
    if (v->launched || progress || t->sample.at_gate)
        t->sample.active_ns = now;
    t->sample.sampled_ns = now;
    sample_classify(t, now);
}

void sample_quick(struct tenant *t, uint64_t now)
{
    struct view v = look(t, false, now);
    take_in(t, &v, false, now);
}

/* When did its last work end? After the last look that found it at work, or after which it may have
 * been, or it is not believed. What a quick look found since the last full one is work like what
 * this one finds. */
static void note_end(struct tenant *t, const struct view *v, uint64_t now)
{
    bool at_work = v->pending || v->unmarked || v->frozen || v->waiting || v->queued || v->turn_ns;
    bool launched = v->launched || t->sample.launched;
    if (at_work) {
        t->sample.at_work_ns = now;
        t->sample.ended_ns = 0;
    } else if (launched || !t->sample.ended_ns || t->sample.ended_ns == QP_NEVER) {
        if (launched && t->sample.at_work_ns < t->sample.sampled_ns)
            t->sample.at_work_ns = t->sample.sampled_ns;
        bool told = !v->unreported && v->ended_ns && v->ended_ns >= t->sample.at_work_ns &&
                    v->ended_ns <= now;
        t->sample.ended_ns = told ? v->ended_ns : QP_NEVER;
        if (!told)
            t->sample.at_work_ns = now;
    }
    t->card->policy.tenant[t->index].reported_end_ns =
        t->sample.ended_ns == QP_NEVER ? 0 : t->sample.ended_ns;
}

void sample_full(struct tenant *t, uint64_t now)
{
    struct view v = look(t, true, now);
    bool progress = v.signature != t->sample.signature;
    /* what a quick look found since the last full one still counts: the counters have moved on */
    t->sample.launched = t->sample.launched && t->sample.sampled_ns > t->sample.full_ns;
    t->sample.ran = t->sample.ran && t->sample.sampled_ns > t->sample.full_ns;
    t->sample.signature = v.signature;
    if (t->sample.frozen && !v.frozen)
        t->sample.progress_ns = now; /* it could not have made any */
    t->sample.frozen = v.frozen;
    if (t->sample.pending && progress &&
        ar_since(t->sample.progress_ns, now) > t->sample.longest_silence_ns)
        t->sample.longest_silence_ns = now - t->sample.progress_ns;
    t->sample.pending = v.pending;
    t->sample.expected_ns = v.inflight_us * 1250; /* a quarter more: estimates are only that */
    t->sample.unfenced = v.unmarked;
    t->sample.working = v.working;
    t->sample.more_contexts = v.more_contexts;
    t->card->policy.tenant[t->index].predicted_end_ns = v.unforeseen ? 0 : v.ends_ns;
    note_end(t, &v, now);
    sample_set_window(t);
    take_in(t, &v, progress, now);
    bool ending = t->sample.busy && !t->sample.pending && !t->sample.unfenced && !t->sample.at_gate;
    t->sample.ending = ending && !t->sample.ended;
    t->sample.ended = ending;
    t->sample.full_ns = now;
}

/* A look behind a gate that was closed a moment ago. What the last one found still counts. */
void sample_behind(struct tenant *t, uint64_t now)
{
    bool launched = t->sample.launched, ran = t->sample.ran, ending = t->sample.ending,
         unmarked = t->sample.unfenced;
    sample_full(t, now);
    bool rose =
        t->sample.unfenced && !unmarked; /* counted when it came to the window, and launched now */
    if (rose)
        t->sample.launch_seen_ns = t->sample.progress_ns = now;
    t->sample.launched |= launched;
    t->sample.ran |= ran || rose;
    t->sample.ending |= ending;
    sample_classify(t, now);
}

/* Did anything pass the gate since the last sample? Read after the gate was stored (Dekker's other
 * half). */
bool sample_launched_since(const struct tenant *t)
{
    for (uint32_t i = 0; i < t->hi; i++) {
        if (t->slots[i].proc && total_launches(&t->job->procs[i]) != t->slots[i].launches)
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
        struct qg_proc *page = &t->job->procs[i];
        s->mem_used = bytes(READ_ONCE(page->mem_used));
        used += s->mem_used;
        uint64_t peak = bytes(READ_ONCE(page->mem_peak));
        if (peak > t->usage.mem_peak)
            t->usage.mem_peak = peak;
        advance(&t->usage.mem_denied, &s->denied, READ_ONCE(page->mem_denied));
    }
    t->usage.mem_used = used;
    used += reaped_extra(t);
    if (used > t->usage.mem_peak)
        t->usage.mem_peak = used;
}
