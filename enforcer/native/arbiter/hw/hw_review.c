/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption, the part of the card's thread: which tenants' groups shall stand still. It
 * stores a word and rings; it never waits for the worker, nor takes its lock. With card->lock.
 */
#include "hw/hw.h"
#include "hw/hw_parts.h"
#include "model/model.h"
#include "policy/policy.h"

#define FRESH_NS (2 * QP_MS) /* a gate that was closed so recently is what the stop is for */

/* Groups that stand still stay so until the gate opens, also while their tenant waits for its turn.
 */
static bool shall_stop(const struct card *card, const struct tenant *t, bool stands)
{
    uint32_t flags = t->gate->flags;
    if (t->id.revoked || t->id.job_class != QG_CLASS_OFFLINE || !(flags & QG_GATE_CLOSED))
        return false;
    return stands || ((flags & QG_GATE_WHY_PREEMPTED) && card->policy.tenant[t->index].undrained);
}

static void store(struct hw_tenant *ht, const struct tenant *t, uint64_t word, bool stop,
                  uint64_t now)
{
    uint64_t changed = t->gate->changed_ns;
    HW_STORE(ht->escapes, 0);
    HW_STORE(ht->since_ns, changed + FRESH_NS > now ? changed : now);
    HW_STORE(ht->word, ((word >> 1) + 1) << 1 | stop);
}

/* Are all members of the class that want the card kept apart by their slices? */
static bool sliced(const struct card *card, uint32_t job_class)
{
    const struct hw *hw = card->hw;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        const struct qp_tenant *q = &card->policy.tenant[i];
        if (!q->live || q->free || q->job_class != job_class || !q->runnable)
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
        uint64_t word = ht->word; /* only written here */
        if (!t || (!HW_LOAD(ht->known) && !(word & 1)))
            continue;
        bool stands = word & 1, stop = on && HW_LOAD(ht->known) && shall_stop(card, t, stands);
        if (stop == stands)
            continue;
        store(ht, t, word, stop, now);
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

/* A queue that runs dry before its slice is over gives the rest of it away: two periods are always
 * in flight. */
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

/* A process whose groups stand still made progress: it continued them by itself. They are stopped
 * again; who does it over and over is left to its gate. */
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
