/* SPDX-License-Identifier: Apache-2.0
 *
 * Absolute preemption between classes, weighted slices with deficits inside one. See policy.h.
 */
#include "policy.h"

#include <string.h>

#include "qgpu_abi.h"

enum { ONLINE = 0, OFFLINE = 1 };

static int class_of(const struct qp_tenant *t) { return t->job_class == QG_CLASS_ONLINE ? ONLINE : OFFLINE; }

static bool member(const struct qp_tenant *t, int k) { return t->live && class_of(t) == k; }

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* best-effort is burst-share with equal weights */
static int64_t weight(const struct qp_card *c, const struct qp_tenant *t) {
    if (c->cls[class_of(t)].policy == QG_POLICY_BEST_EFFORT) return 1;
    return t->share ? (int64_t)t->share : 1;
}

static uint32_t count(const struct qp_card *c, int k) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) n += member(&c->tenant[i], k);
    return n;
}

/* Members that have work, or had until just now: a gap between two launches ends no competition. */
static uint32_t count_competing(const struct qp_card *c, int k, uint64_t now) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        n += member(t, k) && (t->wants || (t->worked && now - t->last_work_ns < QP_PASS_ON_NS));
    }
    return n;
}

void qp_init(struct qp_card *card) {
    memset(card, 0, sizeof(*card));
    card->wake_ns = QP_NEVER;
    for (int k = 0; k < 2; k++) {
        card->cls[k].policy = QG_POLICY_BURST_SHARE;
        card->cls[k].holder = card->cls[k].draining = -1;
    }
}

void qp_forget(struct qp_card *card, uint32_t index) {
    memset(&card->tenant[index], 0, sizeof(card->tenant[index]));
    for (int k = 0; k < 2; k++) {
        if (card->cls[k].holder == (int32_t)index) card->cls[k].holder = -1;
        if (card->cls[k].draining == (int32_t)index) card->cls[k].draining = -1;
    }
}

static int64_t clamp_deficit(int64_t v) {
    if (v > QP_DEFICIT_MAX_NS) return QP_DEFICIT_MAX_NS;
    return v < -QP_DEFICIT_MAX_NS ? -QP_DEFICIT_MAX_NS : v;
}

/* Who used the card in the interval that ends now: the holder by its open gate, others by unfinished work. */
static uint32_t mark_charged(struct qp_card *c, int k) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        if (!member(t, k)) continue;
        bool held = c->cls[k].holder == (int32_t)i && !(t->gate & QG_GATE_CLOSED);
        t->charged = c->cls[k].contended && (held || t->undrained);
        n += t->charged;
    }
    return n;
}

/* A member that neither used nor wanted the card: credit is given away at once, debt is paid off by waiting. */
static void settle_absent(struct qp_tenant *t, int64_t part) {
    if (t->deficit_ns > 0) t->deficit_ns = 0;
    else t->deficit_ns = t->deficit_ns + part > 0 ? 0 : t->deficit_ns + part;
}

/* Books the time since the last decision: everyone who took part is entitled to its weight, users are debited. */
static void charge(struct qp_card *c, int k, int64_t dt) {
    int64_t users = mark_charged(c, k), sum = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        if (member(t, k) && (t->charged || t->wants)) sum += weight(c, t);
    }
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        if (!member(t, k)) continue;
        if (!c->cls[k].contended) {
            settle_absent(t, dt); /* nobody competed: old debts fade with time */
        } else if (!t->charged && !t->wants) {
            settle_absent(t, dt * weight(c, t) / (sum + weight(c, t)));
        } else if (users > 0) {
            int64_t used = t->charged ? dt / users : 0;
            t->deficit_ns = clamp_deficit(t->deficit_ns + dt * weight(c, t) / sum - used);
            t->service_ns += (uint64_t)used;
        }
    }
}

/* Is a's claim better than b's? Credit per weight; at a tie work already on the card avoids a drain. */
static bool better(const struct qp_card *c, const struct qp_tenant *a, const struct qp_tenant *b) {
    int64_t left = a->deficit_ns * weight(c, b), right = b->deficit_ns * weight(c, a);
    if (left != right) return left > right;
    return a->undrained && !b->undrained;
}

/* The best claim among those who want the card, except one; -1 if there is none. */
static int32_t best_claim(const struct qp_card *c, int k, int32_t except) {
    int32_t best = -1;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        if (!member(t, k) || !t->wants || (int32_t)i == except) continue;
        if (best < 0 || better(c, t, &c->tenant[best])) best = (int32_t)i;
    }
    return best;
}

static int32_t any_member(const struct qp_card *c, int k) {
    for (uint32_t i = 0; i < c->ntenants; i++) {
        if (member(&c->tenant[i], k)) return (int32_t)i;
    }
    return -1;
}

/* Must members of this class run one at a time now? */
static bool contended(const struct qp_card *c, int k, uint64_t now) {
    if (count(c, k) < 2) return false;
    if (k == OFFLINE && count(c, ONLINE)) return true; /* a bounded window for online's sake */
    if (count_competing(c, k, now) < 2) return false;
    if (c->cls[k].policy != QG_POLICY_BEST_EFFORT) return true;
    for (uint32_t i = 0; i < c->ntenants; i++) { /* one context each: the card itself divides equally */
        if (member(&c->tenant[i], k) && c->tenant[i].procs > 1) return true;
    }
    return false;
}

/* Does the holder give the card to somebody else now? */
static bool must_leave(const struct qp_card *c, int k, uint64_t now) {
    const struct qp_class *s = &c->cls[k];
    const struct qp_tenant *h = &c->tenant[s->holder];
    int32_t other = best_claim(c, k, s->holder);
    if (other < 0) return false;
    if (!h->wants && now - h->last_work_ns >= QP_PASS_ON_NS) return true;
    return now >= s->slice_end_ns && !better(c, h, &c->tenant[other]);
}

/* Lets the holder leave when its time is over; true while its last work is awaited. */
static bool hand_over(struct qp_card *c, int k, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    if (s->holder >= 0 && must_leave(c, k, now)) {
        s->draining = s->holder;
        s->holder = -1;
        s->drain_until_ns = now + QP_DRAIN_MAX_NS;
    }
    if (s->draining < 0) return false;
    if (c->tenant[s->draining].undrained && now < s->drain_until_ns) return true;
    s->draining = -1;
    return false;
}

/* One at a time: returns the index of the member whose gate is open, or -1 while a former holder drains. */
static int32_t take_turns(struct qp_card *c, int k, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    if (s->holder >= 0 && !member(&c->tenant[s->holder], k)) s->holder = -1;
    if (s->draining >= 0 && !member(&c->tenant[s->draining], k)) s->draining = -1;
    if (hand_over(c, k, now)) return -1;
    bool fresh = !s->resumed || !s->contended;
    if (s->holder < 0) {
        s->holder = best_claim(c, k, -1);
        if (s->holder < 0) s->holder = any_member(c, k);
        fresh = true;
    }
    if (fresh || now >= s->slice_end_ns) s->slice_end_ns = now + c->slice_ns;
    return s->holder;
}

/* Decides one class whose members may run now. */
static void arbitrate(struct qp_card *c, int k, uint64_t now) {
    struct qp_class *s = &c->cls[k];
    bool alone = !contended(c, k, now);
    int32_t open = alone ? -1 : take_turns(c, k, now);
    if (alone) {
        s->holder = best_claim(c, k, -1);
        s->draining = -1;
    }
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        if (!member(t, k)) continue;
        t->gate = alone || open == (int32_t)i ? 0 : QG_GATE_CLOSED | QG_GATE_WHY_SHARE;
    }
    s->contended = !alone;
    s->resumed = 1;
}

static void close_class(struct qp_card *c, int k, uint32_t why) {
    for (uint32_t i = 0; i < c->ntenants; i++) {
        if (member(&c->tenant[i], k)) c->tenant[i].gate = QG_GATE_CLOSED | why;
    }
    c->cls[k].resumed = 0;
}

static void open_all(struct qp_card *c) {
    for (uint32_t i = 0; i < c->ntenants; i++) c->tenant[i].gate = 0;
    for (int k = 0; k < 2; k++) {
        c->cls[k].contended = 0;
        c->cls[k].holder = c->cls[k].draining = -1;
    }
}

/* Bits beside CLOSED: track always; bound the window where somebody else may need the card; ring after idleness. */
static void decorate(struct qp_card *c, uint64_t now) {
    uint32_t members[2] = {count(c, ONLINE), count(c, OFFLINE)}, expected = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) { /* a queue must be short before the first online launch */
        expected += c->tenant[i].granted && class_of(&c->tenant[i]) == ONLINE;
    }
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        if (!t->live) continue;
        t->gate |= QG_GATE_TRACK;
        bool shared = members[class_of(t)] > 1 || (class_of(t) == OFFLINE && (members[ONLINE] || expected));
        if (shared && !c->ungoverned) t->gate |= QG_GATE_WINDOW;
        bool idle = !t->wants && !t->undrained && now - t->last_work_ns >= QP_NOTIFY_NS;
        if (idle && !(t->gate & QG_GATE_CLOSED)) t->gate |= QG_GATE_NOTIFY;
    }
}

/* When the turns of a class change next. */
static uint64_t turn_wake(const struct qp_card *c, int k, uint64_t now) {
    const struct qp_class *s = &c->cls[k];
    if (!s->contended) return QP_NEVER;
    if (s->draining >= 0) return min_u64(now + QP_DRAIN_POLL_NS, s->drain_until_ns);
    if (s->holder < 0 || best_claim(c, k, s->holder) < 0) return QP_NEVER;
    const struct qp_tenant *h = &c->tenant[s->holder];
    return h->wants ? s->slice_end_ns : min_u64(s->slice_end_ns, h->last_work_ns + QP_PASS_ON_NS);
}

static uint64_t next_wake(const struct qp_card *c, bool recovering, uint64_t now) {
    uint32_t online = count(c, ONLINE), offline = count(c, OFFLINE);
    uint64_t wake = QP_NEVER, tick = online || offline > 1 ? QP_TICK_NS : QP_SOLO_TICK_NS;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        bool polled = t->wants || t->undrained || !(t->gate & (QG_GATE_NOTIFY | QG_GATE_CLOSED));
        if (t->live && polled) wake = now + tick;
    }
    if (offline && c->preempting) wake = min_u64(wake, c->online_busy_ns + c->idle_release_ns);
    if (offline && recovering) wake = min_u64(wake, c->recovery_until_ns);
    if (!c->ungoverned) {
        wake = min_u64(wake, turn_wake(c, ONLINE, now));
        if (c->cls[OFFLINE].resumed) wake = min_u64(wake, turn_wake(c, OFFLINE, now));
    }
    return wake <= now ? now + QP_DRAIN_POLL_NS : wake;
}

/* Notes who works; a tenant seen for the first time counts as idle since now. Online counts as idle since the first
 * look that found it so: its last kernel may have ended right before, and the release must never come early. */
static void observe(struct qp_card *c, uint64_t now) {
    uint32_t working = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        struct qp_tenant *t = &c->tenant[i];
        if (!t->live) continue;
        if (t->wants || !t->last_work_ns) t->last_work_ns = now;
        if (t->wants) t->worked = 1;
        working |= t->wants && class_of(t) == ONLINE;
    }
    if (working || c->online_working) c->online_busy_ns = now;
    c->online_working = working;
}

void qp_decide(struct qp_card *c, uint64_t now) {
    uint64_t passed = c->last_ns && now > c->last_ns ? now - c->last_ns : 0;
    int64_t dt = (int64_t)min_u64(passed, 1000 * QP_MS);
    for (int k = 0; k < 2; k++) charge(c, k, dt);
    observe(c, now);
    bool recovering = now < c->recovery_until_ns;
    c->preempting = c->online_busy_ns && now < c->online_busy_ns + c->idle_release_ns;
    if (c->ungoverned) {
        open_all(c);
    } else {
        arbitrate(c, ONLINE, now);
        if (c->preempting) close_class(c, OFFLINE, QG_GATE_WHY_PREEMPTED);
        else if (recovering) close_class(c, OFFLINE, QG_GATE_WHY_RECOVERY);
        else arbitrate(c, OFFLINE, now);
    }
    decorate(c, now);
    c->wake_ns = next_wake(c, recovering, now);
    c->last_ns = now;
}
