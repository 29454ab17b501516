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

/* count: One step decides no more often while tenants move; the next step goes on. Evidence: bound.
 */
#define MAX_REDO 4
/* ns: A tenant that only waits at its closed gate is sampled this seldom, to save CPU time.
 * Evidence: none. */
#define CLOSED_POLL_NS (10 * QP_MS)
/* ns: A second sample comes this long after one that found only new counts of online. Offline then
 * returns earlier than with the next tick. Evidence: none. */
#define CONFIRM_NS 150000ull
/* ns: Without membarrier(2) a store is visible to all processors long before this. Evidence: bound.
 */
#define RECHECK_NS (1 * QP_MS)

/* Tenants with a muted doorbell are sampled each millisecond until the doorbell counts again.
 * Doubted ones are sampled when the doubt ends. Returns the next such time. */
static uint64_t check_muted_and_doubted(struct card *card, uint64_t now)
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

/* If an online tenant rang, samples only what rang, so that the offline gates close before other
 * pages are read. */
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

/* When to sample again to release offline early. A sample may find a launch that was counted and
 * not yet made. So a tenant that shows only new counts is taken for busy, and a second sample soon
 * after decides. Only once, and only if it is all that keeps offline closed. */
static uint64_t confirm_at(const struct card *card, uint64_t now)
{
    bool ending = false, working = false;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        const struct tenant *t = card->tenants[i];
        if (!t || t->id.job_class != QG_CLASS_ONLINE || !t->sample.busy)
            continue;
        ending |= t->sample.ending;
        working |= !t->sample.ending;
    }
    return ending && !working && card->policy.preempting ? now + CONFIRM_NS : QP_NEVER;
}

/* Is a full sample due? Slots are read as seldom as the state of their tenant allows: each word
 * that the job wrote costs a cache miss. */
static bool sample_due(const struct tenant *t, uint64_t now)
{
    if (t->bell.rung)
        return true;
    /* it may have launched between its last sample and the closing; a long kernel has to be stopped
     * at once */
    if (hw_watches(t) && t->gate->changed_ns > t->sample.full_ns)
        return true;
    bool shown = t->sample.pending || t->sample.unfenced || t->sample.launched;
    if (!polled(t) && !shown)
        return hw_watches(t) && ar_since(t->sample.full_ns, now) >= CLOSED_POLL_NS;
    if (!(t->gate->flags & QG_GATE_CLOSED) || shown)
        return ar_since(t->sample.full_ns, now) >= QP_DRAIN_POLL_NS / 2;
    return ar_since(t->sample.full_ns, now) >= CLOSED_POLL_NS ||
           (t->sample.doubted && now >= t->sample.discredit_until_ns);
}

static void sample_polled(struct card *card, uint64_t now)
{
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        if (!t)
            continue;
        if (t->nprocs && sample_due(t, now))
            sample_full(t, now);
        else
            sample_classify(t, now);
        t->bell.rung = false;
        t->bell.bell_ns = 0;
    }
}

/* Launches that passed a gate while its word changed make their tenant busy after all. */
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

/* Makes our gate words visible before the words of the jobs are read again (barrier.c). Without
 * membarrier(2) a later sample does the same. */
static void order_words(struct card *card, uint64_t now)
{
    if (!card->barrier)
        return;
    card->barrier = false;
    if (!barrier_issue())
        card->recheck_ns = now + RECHECK_NS;
}

/* A tenant whose gate closed while it showed no work may have launched between its last sample and
 * the closing. So it is sampled once more before the next gate opens. This needs no barrier. A
 * count that was written before the gate was read is visible by now. A thread that launched late
 * all the same rings when it comes to the gate again, or when that launch ends. */
static bool sampled_after_close(struct card *card, uint64_t now)
{
    if (!card->policy.resample)
        return false;
    card->policy.resample = 0;
    for (int k = 0; k < 2; k++) {
        const struct qp_class *s = &card->policy.cls[k];
        if (s->closed_idle && s->draining >= 0 && card->tenants[s->draining])
            sample_after_close(card->tenants[s->draining], now);
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
        gang_report(card);
        order_words(card, now);
        bool again = sampled_after_close(card, now);
        if (!slipped_past(card, now) && !again)
            return;
    }
    /* still changing: step again soon, not now */
    card->policy.wake_ns = now + QP_DRAIN_POLL_NS;
}

static bool has_tenants(const struct card *card)
{
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        if (card->tenants[i])
            return true;
    }
    return false;
}

/* Time of a tick. Ticks of all cards fall on a common grid, a little after each other. The card
 * that wakes first does the ticks of the others, so that several cards share one wake-up of a
 * sleeping thread, the most expensive part of a tick. */
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

/* Sets the next wake-up; `due` is the earliest one that something other than the policy needs. */
static void set_wake(struct card *card, uint64_t due, uint64_t now)
{
    uint64_t second = confirm_at(card, now), lease = (uint64_t)card->lease_ms * QP_MS;
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
    uint64_t beat = has_tenants(card) ? card->beat_ns + lease / 4 : QP_NEVER;
    card->wake_ns = sooner(card->wake_ns, beat);
    due = sooner(sooner(due, card->policy.due_ns), sooner(second, beat));
    card->hard_ns = card->recheck_ns ? sooner(due, card->recheck_ns) : due;
    idle_tick_prepare(card, card->hard_ns, now);
}

/* Does an idle tick, if the tick needs no decision. Sets the next wake-up: the next tick, or what
 * is due before. */
static bool did_idle_tick(struct card *card, uint64_t now)
{
    if (!idle_tick(card, now))
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
    if (!did_idle_tick(card, now))
        card_step(card, now);
}

void card_step(struct card *card, uint64_t now)
{
    if (card->policy.last_ns > now)
        now = card->policy.last_ns;
    /* time never goes back behind a step that was taken */
    if (card->idle_tick_ns > now)
        now = card->idle_tick_ns;
    if (card->idle_tick_ns)
        idle_tick_catch_up(card);
    if (card->recheck_ns && now >= card->recheck_ns) {
        card->recheck_ns = 0;
        slipped_past(card, now);
    }
    uint64_t muted_or_doubted = check_muted_and_doubted(card, now);
    if (sample_rung(card, now))
        decide(card, now);
    sample_polled(card, now);
    sample_review_windows(card);
    decide(card, now);
    account(card, now);
    if (now - card->beat_ns >= (uint64_t)card->lease_ms * QP_MS / 8)
        gates_heartbeat(card, now);
    set_wake(card, muted_or_doubted, now);
}
