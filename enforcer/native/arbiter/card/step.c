/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of a card: sample, decide, move gates. And when the next one is due.
 */
#include "base/base.h"
#include "card/card.h"
#include "gate/gate.h"
#include "hw/hw.h"
#include "model/model.h"
#include "observe/observe.h"
#include "policy/policy.h"
#include "qg_time.h"

/* decisions in one step at most, repeated while tenants move meanwhile; bounds its time */
#define MAX_REDO 4
/* ns between samples of a tenant that waits at a closed gate: it changes seldom */
#define STANDING_LOOK_NS (10 * QP_MS)
/* ns to a second sample after one that found only traces of work */
#define SECOND_LOOK_NS 150000ull
/* ns until a store is visible everywhere, where membarrier(2) is missing */
#define SETTLE_NS (1 * QP_MS)

/* Muted tenants are looked at each millisecond until their doorbell counts again; doubted ones when
 * the doubt ends. */
static uint64_t look_at_odd_ones(struct card *card, uint64_t now)
{
    uint64_t wake = QP_NEVER;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        if (t && t->sample.doubted && t->sample.discredit_until_ns < wake)
            wake = t->sample.discredit_until_ns;
        if (!t || !t->bell.muted || (t->bell.jammed && !t->nprocs))
            continue;
        t->bell.rung = true;
        if (now >= t->bell.muted_until_ns && !t->bell.jammed) {
            t->bell.storm_rings = 0;
            t->bell.storm_from_ns = now;
            card_watch_bell(card, t, true);
        } else if (now + QP_TICK_NS < wake) {
            wake = now + QP_TICK_NS;
        }
    }
    return wake;
}

static bool polled(const struct tenant *t)
{
    return t->nprocs && (t->sample.busy || t->sample.doubted ||
                         !(t->gate->flags & (QG_GATE_NOTIFY | QG_GATE_CLOSED)));
}

static bool online_rang(const struct card *card)
{
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        const struct tenant *t = card->tenants[i];
        if (t && t->bell.rung && t->id.job_class == QG_CLASS_ONLINE)
            return true;
    }
    return false;
}

/* Where online rang first only what rang, so that a gate closes before anything else is read. */
static bool sample_rung(struct card *card, uint64_t now)
{
    if (!online_rang(card))
        return false;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        if (t && t->bell.rung)
            sample_quick(t, now);
    }
    return true;
}

/* A launch may have been counted and not yet made when its tenant was looked at, so who only shows
 * new counts is taken for busy. A second look soon tells; once, and only where the release of
 * offline hangs on it. */
static uint64_t second_look(const struct card *card, uint64_t now)
{
    bool ending = false, working = false;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        const struct tenant *t = card->tenants[i];
        if (!t || t->id.job_class != QG_CLASS_ONLINE || !t->sample.busy)
            continue;
        ending |= t->sample.ending;
        working |= !t->sample.ending;
    }
    return ending && !working && card->policy.preempting ? now + SECOND_LOOK_NS : QP_NEVER;
}

/* Slots are read as seldom as their tenant's state allows: each word that the job wrote costs a
 * cache miss. */
static bool look_due(const struct tenant *t, uint64_t now)
{
    if (t->bell.rung)
        return true;
    /* it may have launched between its last look and the closing: what runs for long is stopped at
     * once, or seen late */
    if (hw_watches(t) && t->gate->changed_ns > t->sample.full_ns)
        return true;
    bool shown = t->sample.pending || t->sample.unfenced || t->sample.launched;
    if (!polled(t) && !shown)
        return hw_watches(t) && ar_since(t->sample.full_ns, now) >= STANDING_LOOK_NS;
    if (!(t->gate->flags & QG_GATE_CLOSED) || shown)
        return ar_since(t->sample.full_ns, now) >= QP_DRAIN_POLL_NS / 2;
    return ar_since(t->sample.full_ns, now) >= STANDING_LOOK_NS ||
           (t->sample.doubted && now >= t->sample.discredit_until_ns);
}

static void sample_polled(struct card *card, uint64_t now)
{
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        if (!t)
            continue;
        if (t->nprocs && look_due(t, now))
            sample_full(t, now);
        else
            sample_classify(t, now);
        t->bell.rung = false;
        t->bell.bell_ns = 0;
    }
}

/* Launches that slipped past a gate word while it changed make their tenant busy after all. */
static bool slipped_past(struct card *card, uint64_t now)
{
    bool any = false, later = card->recheck_ns != 0;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        if (!t || !t->bell.notified)
            continue;
        t->bell.notified = later;
        if (!t->nprocs || t->sample.busy || !(t->gate->flags & QG_GATE_NOTIFY) ||
            !sample_launched_since(t))
            continue;
        sample_quick(t, now);
        any = true;
    }
    return any;
}

/* Our words first, then theirs: see barrier.c. A kernel without membarrier(2) gets a second look
 * instead. */
static void order_words(struct card *card, uint64_t now)
{
    if (!card->barrier)
        return;
    card->barrier = false;
    if (!barrier_issue())
        card->recheck_ns = now + SETTLE_NS;
}

/* Who left its turn with nothing on the card may have launched between its last look and the
 * closing: the next gate opens after one more look. Without a barrier: a count written before the
 * gate was read is here long before we are, and a thread whose launch came late all the same rings
 * when it comes to the gate again, or at the end of that launch. */
static bool looked_behind(struct card *card, uint64_t now)
{
    if (!card->policy.resample)
        return false;
    card->policy.resample = 0;
    for (int k = 0; k < 2; k++) {
        const struct qp_class *s = &card->policy.cls[k];
        if (s->closed_idle && s->draining >= 0 && card->tenants[s->draining])
            sample_behind(card->tenants[s->draining], now);
    }
    return true;
}

static void decide(struct card *card, uint64_t now)
{
    for (int i = 0; i < MAX_REDO; i++) {
        qp_decide(&card->policy, now);
        gates_apply(card);
        if (card->hw)
            hw_review(card, now);
        together_tell(card);
        order_words(card, now);
        bool again = looked_behind(card, now);
        if (!slipped_past(card, now) && !again)
            return;
    }
    /* still moving: look again soon rather than now */
    card->policy.wake_ns = now + QP_DRAIN_POLL_NS;
}

static bool anybody(const struct card *card)
{
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        if (card->tenants[i])
            return true;
    }
    return false;
}

/* Ticks of all cards fall on common instants, a little after each other: whoever wakes first takes
 * the others along, and a wake-up of a sleeping thread, the dearest part of a tick, is paid once.
 */
static uint64_t tick_at(const struct card *card, uint64_t at, uint64_t now)
{
    uint64_t place = (card->number % CARD_GROUP) * CARD_STAGGER_NS,
             grid = at / QP_TICK_NS * QP_TICK_NS + place;
    return grid > now + QP_TICK_NS / 4 ? grid : grid + QP_TICK_NS;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* When to be here again; `due`: something else than the policy asks for that. */
static void set_wake(struct card *card, uint64_t due, uint64_t now)
{
    uint64_t second = second_look(card, now), lease = (uint64_t)card->lease_ms * QP_MS;
    card->wake_ns = sooner(card->policy.wake_ns, due);
    if (card->wake_ns <= now)
        card->wake_ns = now + QP_TICK_NS;
    __atomic_store_n(&card->tick_ns, card->wake_ns - now, __ATOMIC_RELAXED);
    bool ticking = card->tick_ns == QP_TICK_NS || card->tick_ns == QP_SOLO_TICK_NS;
    if (ticking)
        card->wake_ns = tick_at(card, card->wake_ns, now);
    if (second < card->wake_ns) {
        card->wake_ns = second;
        ticking = false;
    }
    __atomic_store_n(&card->ticking, ticking, __ATOMIC_RELAXED);
    if (card->recheck_ns && card->recheck_ns < card->wake_ns)
        card->wake_ns = card->recheck_ns;
    uint64_t beat = anybody(card) ? card->beat_ns + lease / 4 : QP_NEVER;
    card->wake_ns = sooner(card->wake_ns, beat);
    due = sooner(sooner(due, card->policy.due_ns), sooner(second, beat));
    card->hard_ns = card->recheck_ns ? sooner(due, card->recheck_ns) : due;
    quiet_after(card, sooner(card->hard_ns, card->policy.soft_ns), now);
}

/* A tick that needed no decision: the next one, or what is due before. */
static bool step_quietly(struct card *card, uint64_t now)
{
    if (!quiet_tick(card, now))
        return false;
    card->wake_ns = tick_at(card, now + card->tick_ns, now);
    if (card->wake_ns > card->hard_ns) {
        card->wake_ns = card->hard_ns;
        __atomic_store_n(&card->ticking, false, __ATOMIC_RELAXED);
    }
    return true;
}

void card_tick(struct card *card, uint64_t now)
{
    if (!step_quietly(card, now))
        card_step(card, now);
}

void card_step(struct card *card, uint64_t now)
{
    if (card->policy.last_ns > now)
        now = card->policy.last_ns;
    /* a step never goes back behind one that was taken */
    if (card->idle_tick_ns > now)
        now = card->idle_tick_ns;
    if (card->idle_tick_ns)
        quiet_catch_up(card);
    if (card->recheck_ns && now >= card->recheck_ns) {
        card->recheck_ns = 0;
        slipped_past(card, now);
    }
    uint64_t odd = look_at_odd_ones(card, now);
    if (sample_rung(card, now))
        decide(card, now);
    sample_polled(card, now);
    sample_lonely(card);
    decide(card, now);
    account(card, now);
    if (now - card->beat_ns >= (uint64_t)card->lease_ms * QP_MS / 8)
        gates_heartbeat(card, now);
    set_wake(card, odd, now);
}
