/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption, the part of the card's thread: which tenants' groups shall be stopped. It
 * stores a word and wakes the worker. It never waits for the worker and never takes hw->lock. All
 * with card->lock.
 */
#include "hw/hw.h"
#include "hw/hw_parts.h"
#include "model/model.h"
#include "policy/policy.h"

/* A stop that begins within 2 ms of the gate's closing is measured from the closing; a later one
 * has another cause. Chosen, not measured. */
#define FRESH_NS (2 * QP_MS)

/* Stopped groups stay so until the gate opens, also while the tenant waits for its quantum. Those
 * of a held tenant go on: its memory can leave only when its work has ended. */
static bool shall_stop(const struct card *card, const struct tenant *t, bool stopped)
{
    uint32_t flags = t->gate->flags;
    if (t->id.revoked || t->id.held || t->id.job_class != QG_CLASS_OFFLINE ||
        !(flags & QG_GATE_CLOSED))
        return false;
    return stopped || ((flags & QG_GATE_WHY_PREEMPTED) && card->policy.tenant[t->index].undrained);
}

static void store_word(struct hw_tenant *ht, const struct tenant *t, uint64_t word, bool stop,
                       uint64_t now)
{
    uint64_t changed = t->gate->changed_ns;
    HW_STORE(ht->escapes, 0);
    HW_STORE(ht->since_ns, changed + FRESH_NS > now ? changed : now);
    HW_STORE(ht->word, ((word >> 1) + 1) << 1 | stop);
}

/* Do time slices divide the card between all runnable members of the class? */
static bool sliced(const struct card *card, uint32_t job_class)
{
    const struct hw *hw = card->hw;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        const struct qp_tenant *q = &card->policy.tenant[i];
        if (!q->live || q->ungoverned || q->job_class != job_class || !q->runnable || q->held)
            continue;
        if (!HW_LOAD(hw->tenant[i].sliced))
            return false;
    }
    return true;
}

void hw_review(struct card *card, uint64_t now)
{
    struct hw *hw = card->hw;
    bool on = HW_LOAD(hw->on), moved = false;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        const struct tenant *t = card->tenants[i];
        struct hw_tenant *ht = &hw->tenant[i];
        uint64_t word = ht->word; /* a plain read: only this thread writes it */
        if (!t || (!HW_LOAD(ht->known) && !(word & 1)))
            continue;
        bool stopped = word & 1, stop = on && HW_LOAD(ht->known) && shall_stop(card, t, stopped);
        if (stop == stopped)
            continue;
        store_word(ht, t, word, stop, now);
        moved = true;
    }
    if (moved)
        hw_ring(hw);
    card->policy.cls[0].sliced = on && HW_LOAD(hw->weights) && sliced(card, QG_CLASS_ONLINE);
    card->policy.cls[1].sliced = on && HW_LOAD(hw->weights) && sliced(card, QG_CLASS_OFFLINE);
}

bool hw_held(const struct tenant *t, uint32_t slot)
{
    const struct hw *hw = t->card->hw;
    return hw && HW_LOAD(hw->tenant[t->index].held[slot]);
}

/* A group without work before its time slice is over loses the rest of it. So the window allows
 * unfinished work for two periods. */
uint32_t hw_window(const struct tenant *t)
{
    bool slices =
        t->card->hw && t->card->policy.cls[t->id.job_class == QG_CLASS_ONLINE ? 0 : 1].sliced;
    return slices ? 2 * HW_LOAD(t->card->hw->weights) : 0;
}

bool hw_watches(const struct tenant *t)
{
    const struct hw *hw = t->card->hw;
    return hw && (t->gate->flags & QG_GATE_WHY_PREEMPTED) && HW_LOAD(hw->tenant[t->index].known);
}

/* A process with stopped groups made progress, so it continued them by itself. They are stopped
 * again. After HW_MAX_ESCAPES times its gate alone stops it. */
void hw_escaped(const struct tenant *t)
{
    struct hw *hw = t->card->hw;
    struct hw_tenant *ht = &hw->tenant[t->index];
    if (!(ht->word & 1))
        return;
    uint32_t escapes = HW_LOAD(ht->escapes) + 1;
    HW_STORE(ht->escapes, escapes);
    if (escapes <= HW_MAX_ESCAPES)
        HW_STORE(ht->word, ((ht->word >> 1) + 1) << 1 | 1);
    hw_ring(hw);
}
