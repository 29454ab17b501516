/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading what a job shows of itself. Each word is read exactly once and range-checked; nothing is repeated until
 * it "fits". The worst a lying job reaches is to be taken for busy (then it waits for its own turns and pays for
 * them) or for idle (then it loses them).
 */
#include <string.h>

#include "arbiter.h"

#define MARKER_LEASE_NS (60000 * QP_MS)   /* markers without any progress for so long: hung, or lying */
#define UNMARKED_LEASE_NS (100 * QP_MS)   /* the same for work that no marker follows */
#define STANDING_LEASE_NS (20 * QP_MS)    /* an open gate and still standing there: stopped, or lying */
#define DISCREDIT_MIN_NS (100 * QP_MS)
#define DISCREDIT_MAX_NS (1000 * QP_MS)
#define MAX_WAITING 65536u                /* threads; more is garbage */
#define MAX_BYTES (1ull << 48)            /* of one process on one card; more is garbage */

#define READ_ONCE(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)

static uint64_t bytes(uint64_t v) { return v < MAX_BYTES ? v : MAX_BYTES; }

/* Advances a total by what a counter of the job grew; a counter that falls or jumps moves nothing back. */
static void advance(uint64_t *total, uint64_t *seen, uint64_t value) {
    uint64_t grown = value - *seen;
    if (value > *seen && grown < (1ull << 48)) *total += grown;
    *seen = value;
}

struct view {
    bool launched, pending, unmarked;
    uint32_t waiting;
    uint64_t signature;
};

static void look_at_slot(struct tenant *t, uint32_t i, struct view *v, bool markers) {
    struct qg_proc *page = &t->job->procs[i];
    struct slot *s = &t->slots[i];
    uint64_t launches = __atomic_load_n(&page->launches, __ATOMIC_ACQUIRE);
    uint32_t waiting = READ_ONCE(page->waiting);
    if (launches != s->launches) v->launched = true;
    advance(&t->launches, &s->launches, launches);
    if (waiting <= MAX_WAITING) v->waiting += waiting;
    if (!markers) return;
    v->unmarked |= READ_ONCE(page->unmarked) != 0;
    for (uint32_t m = 0; m < QG_MARKERS; m++) {
        uint32_t submitted = READ_ONCE(page->markers[m].submitted), done = READ_ONCE(page->markers[m].done);
        if ((int32_t)(submitted - done) > 0) v->pending = true;
        v->signature = v->signature * 31 + submitted * 7ull + done;
    }
}

static struct view look(struct tenant *t, bool markers) {
    struct view v = {0};
    for (uint32_t i = 0; i < t->hi; i++) {
        if (t->slots[i].proc) look_at_slot(t, i, &v, markers);
    }
    return v;
}

/* Threads at an open gate that do not move earn no more turns for a while; any progress clears their name. */
static bool believe_standing(struct tenant *t, uint32_t waiting, uint64_t now) {
    uint64_t since = t->opened_ns > t->progress_ns ? t->opened_ns : t->progress_ns;
    t->doubted = waiting && now < t->discredit_until_ns;
    if (!waiting || t->doubted) return false;
    if ((t->gate->flags & QG_GATE_CLOSED) || now < since + STANDING_LEASE_NS) return true;
    t->doubted = true;
    t->discredit_ns = t->discredit_ns ? t->discredit_ns * 2 : DISCREDIT_MIN_NS;
    if (t->discredit_ns > DISCREDIT_MAX_NS) t->discredit_ns = DISCREDIT_MAX_NS;
    t->discredit_until_ns = now + t->discredit_ns;
    return false;
}

/* A launch that came while the gate was closed all the time stands in front of it: it is a wish, not work. */
static bool shut_since(const struct tenant *t) {
    return (t->gate->flags & QG_GATE_CLOSED) && t->gate->changed_ns < t->looked_ns;
}

static void take_in(struct tenant *t, const struct view *v, bool progress, uint64_t now) {
    bool ran = v->launched && !shut_since(t);
    if (ran || progress) t->progress_ns = now;
    if (v->launched || progress) t->discredit_ns = t->discredit_until_ns = 0;
    t->launched |= v->launched;
    t->ran |= ran;
    t->standing = believe_standing(t, v->waiting, now);
    t->looked_ns = now;
    sample_classify(t, now);
}

void sample_quick(struct tenant *t, uint64_t now) {
    struct view v = look(t, false);
    take_in(t, &v, false, now);
}

void sample_full(struct tenant *t, uint64_t now) {
    struct view v = look(t, true);
    bool progress = v.signature != t->signature;
    /* what a quick look found since the last full one still counts: the counters have moved on */
    t->launched = t->launched && t->looked_ns > t->full_ns;
    t->ran = t->ran && t->looked_ns > t->full_ns;
    t->signature = v.signature;
    t->pending = v.pending;
    t->unmarked = v.unmarked;
    take_in(t, &v, progress, now);
    t->full_ns = now;
}

/* Turns what was seen into the inputs of the decision. */
void sample_classify(struct tenant *t, uint64_t now) {
    struct qp_tenant *q = &t->card->policy.tenant[t->index];
    uint64_t quiet = now - t->progress_ns;
    uint64_t window = (uint64_t)t->card->window_us * 2000;
    bool marked = t->pending && quiet < MARKER_LEASE_NS;
    bool loose = t->ran || (t->unmarked && quiet < UNMARKED_LEASE_NS);
    t->busy = t->nprocs && (marked || loose || t->standing || t->launched);
    q->live = t->nprocs > 0 && !t->revoked;
    q->granted = !t->revoked;
    q->job_class = t->job_class;
    q->share = t->share;
    q->procs = t->nprocs;
    q->wants = t->busy;
    /* unmarked work behind a closed gate is bounded by the window, it is not awaited for the whole lease */
    q->undrained = t->nprocs && (marked || (loose && quiet < (window > QP_MS ? window : QP_MS)));
}

/* Did anything pass the gate since the last sample? Read after the gate was stored (Dekker's other half). */
bool sample_launched_since(const struct tenant *t) {
    for (uint32_t i = 0; i < t->hi; i++) {
        if (t->slots[i].proc && __atomic_load_n(&t->job->procs[i].launches, __ATOMIC_SEQ_CST) != t->slots[i].launches)
            return true;
    }
    return false;
}

void sample_counters(struct tenant *t) {
    uint64_t used = 0;
    for (uint32_t i = 0; i < t->hi; i++) {
        struct slot *s = &t->slots[i];
        if (!s->proc) continue;
        struct qg_proc *page = &t->job->procs[i];
        s->mem_used = bytes(READ_ONCE(page->mem_used));
        used += s->mem_used;
        uint64_t peak = bytes(READ_ONCE(page->mem_peak));
        if (peak > t->mem_peak) t->mem_peak = peak;
        advance(&t->mem_denied, &s->denied, READ_ONCE(page->mem_denied));
    }
    t->mem_used = used;
    if (used > t->mem_peak) t->mem_peak = used;
}

/* How much of the interval a tenant was on the card: by the arbiter's clock where members took turns, else the mean
 * of the two samples at its ends (work that no marker follows yet counts half). */
static double part_of_interval(struct tenant *t, uint64_t dt) {
    const struct qp_tenant *q = &t->card->policy.tenant[t->index];
    double load = t->pending ? 1.0 : t->ran && t->unmarked ? 0.5 : 0.0;
    double part = (t->load + load) / 2;
    double held = dt ? (double)(q->service_ns - t->service_seen) / (double)dt : 0;
    t->load = load;
    t->service_seen = q->service_ns;
    return t->took_turns ? (held < 1 ? held : 1) : part;
}

/* The gate that counts is the one that stood during the interval, not the one just decided. */
static void book_waiting(struct tenant *t, uint64_t dt) {
    uint32_t flags = t->stood;
    if (!t->wished || !(flags & QG_GATE_CLOSED)) return;
    if (flags & QG_GATE_WHY_PREEMPTED) t->closed_preempted_ns += dt;
    else if (flags & QG_GATE_WHY_SHARE) t->closed_share_ns += dt;
}

/* Books the interval since the last call; called right after a decision, which has charged the same interval. */
void account(struct card *card, uint64_t now) {
    uint64_t dt = card->booked_ns && now > card->booked_ns ? now - card->booked_ns : 0;
    double part[QP_MAX_TENANTS], sum = 0;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        part[i] = t && t->nprocs ? part_of_interval(t, dt) : 0;
        sum += part[i];
    }
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        if (!t || !t->nprocs) continue;
        t->busy_ns += (uint64_t)((double)dt * part[i] / (sum > 1 ? sum : 1));
        book_waiting(t, dt);
        t->stood = t->gate->flags;
        t->wished = t->busy;
        t->took_turns = card->policy.cls[t->job_class == QG_CLASS_ONLINE ? 0 : 1].contended;
    }
    card->booked_ns = now;
}
