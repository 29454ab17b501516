/* SPDX-License-Identifier: Apache-2.0
 *
 * fixed-share: each tenant has a budget that fills at its share of the wall clock, and hard limits
 * on its use in the last second and in the last ten. The budget gives the right mean, also after a
 * kernel of half a second. The windows keep saved budget from being used too fast.
 */
#include <string.h>

#include "policy/policy_parts.h"

/* bins in a window's length; 1/250 of it bounds the error of the sum */
#define SPAN_BINS 250u
/* ns of a bin of the 1 s window: its length in SPAN_BINS bins */
#define ONE_BIN (4 * QP_MS)
/* ns of a bin of the 10 s window: its length in SPAN_BINS bins */
#define TEN_BIN (40 * QP_MS)
/* least ns of budget for a quantum on a card that would be idle otherwise; less is not worth a
 * hand-over. Chosen on the simulator */
#define MIN_QUANTUM_NS QP_MS
/* ns, the same of a tenant with long kernels: one kernel may exceed the budget, so any positive
 * amount will do */
#define MIN_LONG_KERNEL_NS 100000u
/* least ns until a full window is checked again; limits CPU time */
#define RECHECK_NS (QP_MS / 2)
/* ns, the same for a tenant without work: it does not wait for the result */
#define IDLE_RECHECK_NS (20 * QP_MS)
/* percent: if the shares of the waiting tenants reach it, hardly any time of the card is left over.
 * Chosen on the simulator */
#define FULL_SHARES 90u
/* most ns for which budget is earned at once; keeps the product with the share from overflowing */
#define MAX_EARNED_NS (1000000 * QP_MS)

/* Moves a window to the time; old bins fall out. */
static void slide(struct qp_window *w, uint64_t width, uint64_t now)
{
    uint64_t bin = now / width;
    if (bin <= w->bin)
        return;
    if (bin - w->bin >= QP_BINS) {
        memset(w->used, 0, sizeof(w->used));
        w->sum = 0;
        w->bin = bin;
        return;
    }
    while (w->bin < bin) {
        w->bin++;
        w->sum -= w->used[(w->bin - SPAN_BINS - 1) % QP_BINS];
        w->used[w->bin % QP_BINS] = 0;
    }
}

static void record_use(struct qp_window *w, uint64_t width, uint64_t now, uint64_t used)
{
    slide(w, width, now);
    w->used[w->bin % QP_BINS] += (uint32_t)used;
    w->sum += (uint32_t)used;
}

/* Of the use in a bin, the most that may lie in its last `end` ns. When it was used within the bin
 * is not known. */
static uint64_t last_part_of_bin(const struct qp_window *w, uint64_t bin, uint64_t end)
{
    return min_u64(w->used[bin % QP_BINS], end);
}

/* Use within the length of the window, at most. */
static uint64_t used_in(struct qp_window *w, uint64_t width, uint64_t now)
{
    slide(w, width, now);
    uint64_t oldest = w->bin - SPAN_BINS;
    return w->sum - w->used[oldest % QP_BINS] +
           last_part_of_bin(w, oldest, (w->bin + 1) * width - now);
}

/* Time at which the use in the window has fallen to `most`, if nothing is used until then. */
static uint64_t falls_to(struct qp_window *w, uint64_t width, uint64_t now, uint64_t most)
{
    uint64_t used = used_in(w, width, now), from = now;
    for (uint64_t bin = w->bin; used > most && bin < w->bin + SPAN_BINS; from = ++bin * width) {
        uint64_t in_it = bin == w->bin
                             ? last_part_of_bin(w, bin - SPAN_BINS, (bin + 1) * width - now)
                             : w->used[(bin - SPAN_BINS) % QP_BINS];
        if (in_it >= used - most)
            return max_u64(from, (bin + 1) * width - (in_it - (used - most)));
        used -= in_it;
    }
    return from;
}

/* Budget from which a closed gate opens again: some slices, or less where that would be too much of
 * one second's share. */
static int64_t reopen_budget(const struct qp_card *c, const struct qp_tenant *t)
{
    return (int64_t)min_u64(QP_REOPEN_SLICES * c->slice_ns, t->share * 10 * QP_MS / 4);
}

/* Did a recent drain last longer than any window allows? Then its kernels are that long, and most
 * of its use is such kernels. */
static bool has_long_kernels(const struct qp_tenant *t)
{
    return t->max_drain_long_ns > QP_FIXED_WINDOW_MAX_US * 1000ull + QP_TICK_NS;
}

/* Most use in one second. A tenant with long kernels may exceed it by one kernel, but late reports
 * of many quanta may not add up to more. */
static uint64_t limit_one(const struct qp_tenant *t)
{
    return t->share * 10 * QP_MS - (has_long_kernels(t) ? QP_LATE_REPORT_NS : QP_MARGIN_NS);
}

static uint64_t limit_ten(const struct qp_tenant *t)
{
    return (t->share + 1) * 100 * QP_MS - QP_MARGIN_NS;
}

/* A new member of the class starts without a history, and with enough budget for a first
 * quantum. */
static void begin(struct qp_card *c, uint32_t index)
{
    struct qp_tenant *t = &c->tenant[index];
    if (t->budgeted)
        return;
    t->budgeted = 1;
    t->out_of_budget = 0;
    t->budget_ns = reopen_budget(c, t);
    memset(&c->history[index], 0, sizeof(c->history[index]));
}

void qp_budget_charge(struct qp_card *c, uint32_t index, uint64_t now, uint64_t passed,
                      uint64_t used, uint64_t unseen)
{
    struct qp_tenant *t = &c->tenant[index];
    struct qp_history *h = &c->history[index];
    begin(c, index);
    t->budget_ns += (int64_t)(min_u64(passed, MAX_EARNED_NS) * t->share / 100) - (int64_t)used;
    int64_t most = QP_BUDGET_MAX_NS > reopen_budget(c, t) ? QP_BUDGET_MAX_NS : reopen_budget(c, t);
    if (t->budget_ns > most)
        t->budget_ns = most;
    if (!used && !unseen)
        return;
    /* the budget follows the mean use, the windows the largest possible use */
    used = min_u64(used + unseen, MAX_CHARGE_NS);
    record_use(&h->one, ONE_BIN, now, used);
    record_use(&h->ten, TEN_BIN, now, used);
}

static uint64_t above_zero(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* When this much more use fits into both windows. A share of 100 % needs no limit: time itself is
 * one. After ten seconds without use anything fits, or a kernel longer than the limit would never
 * run. */
static uint64_t fits_at(struct qp_card *c, uint32_t i, uint64_t now, uint64_t one_more,
                        uint64_t ten_more)
{
    const struct qp_tenant *t = &c->tenant[i];
    struct qp_history *h = &c->history[i];
    if (t->share >= 100)
        return now;
    uint64_t one = falls_to(&h->one, ONE_BIN, now, above_zero(limit_one(t), one_more));
    return max_u64(one, falls_to(&h->ten, TEN_BIN, now, above_zero(limit_ten(t), ten_more)));
}

/* When a closed gate opens again: when the budget is worth a hand-over. If the card would be idle,
 * less is enough. */
static uint64_t reopens_at(struct qp_card *c, uint32_t i, uint64_t now, bool idle)
{
    const struct qp_tenant *t = &c->tenant[i];
    uint64_t least = has_long_kernels(t) ? MIN_LONG_KERNEL_NS : MIN_QUANTUM_NS;
    int64_t whole = reopen_budget(c, t),
            enough = idle && whole > (int64_t)least ? (int64_t)least : whole;
    int64_t lacks = enough - t->budget_ns;
    uint64_t quantum = (uint64_t)whole / QP_REOPEN_SLICES, filled = now;
    if (lacks > 0)
        filled += ((uint64_t)lacks * 100 + t->share - 1) / t->share;
    return max_u64(filled,
                   fits_at(c, i, now, idle ? min_u64(quantum, least) : quantum, t->max_drain_ns));
}

/* The same while another tenant uses the card. */
uint64_t qp_budget_opens(struct qp_card *c, uint32_t i, uint64_t now)
{
    return reopens_at(c, i, now, false);
}

/* Would the card stand still although several tenants are runnable and their shares add up to
 * nearly all of it? If much of the card is left over, each tenant waits for a budget worth a
 * hand-over. Each hand-over is charged, and no other tenant needs the time. */
static bool all_out_of_budget(const struct qp_card *c, const struct members *m)
{
    uint32_t waiting = 0, shares = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (competes(t) || t->undrained)
            return false;
        waiting += t->runnable && !t->suspended;
        shares += t->runnable && !t->suspended ? t->share : 0;
    }
    return waiting > 1 && shares >= FULL_SHARES;
}

/* Closes a gate at the end of its budget. Opens it when the budget is worth a quantum again. */
void qp_budget_review(struct qp_card *c, const struct members *m, uint64_t now)
{
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        begin(c, m->at[j]);
        if (!t->out_of_budget) {
            t->out_of_budget = t->budget_ns <= 0 || fits_at(c, m->at[j], now, 0, 0) > now;
        } else {
            t->out_of_budget = reopens_at(c, m->at[j], now, all_out_of_budget(c, m)) > now;
        }
    }
}

void qp_budget_drop(struct qp_card *c, const struct members *m)
{
    for (uint32_t j = 0; j < m->n; j++)
        c->tenant[m->at[j]].budgeted = c->tenant[m->at[j]].out_of_budget = 0;
}

/* How long a tenant may use the card without a break from now on, up to `most`. */
uint64_t qp_budget_lasts(struct qp_card *c, uint32_t i, uint64_t now, uint64_t most)
{
    const struct qp_tenant *t = &c->tenant[i];
    struct qp_window *w = &c->history[i].one;
    if (t->share >= 100)
        return most;
    most = min_u64(most, (uint64_t)(t->budget_ns > 0 ? t->budget_ns : 0) * 100 / (100 - t->share));
    uint64_t used = used_in(w, ONE_BIN, now), full = limit_one(t), from = now;
    /* old use leaves the window meanwhile */
    for (uint64_t bin = w->bin; from < now + most && used <= full; bin++) {
        uint64_t step = (bin + 1) * ONE_BIN - from;
        used += step - min_u64(used + step, last_part_of_bin(w, bin - SPAN_BINS, step));
        from += step;
    }
    return min_u64(most, used > full ? above_zero(from - now, used - full) : from - now);
}

/* How long the budget lasts if the tenant uses the card without a break, rather too short than too
 * long. */
static uint64_t budget_ends_in(const struct qp_card *c, uint32_t i)
{
    const struct qp_tenant *t = &c->tenant[i];
    uint64_t empty =
        (uint64_t)(t->budget_ns > 1 ? t->budget_ns - 1 : 0) * 100 / (100 - t->share) + 1;
    uint64_t used = c->history[i].one.sum, full = limit_one(t);
    return min_u64(empty, used < full ? full - used + 1 : RECHECK_NS);
}

/* Writes the time from which an open gate counts as closed, in case the arbiter is late to close
 * it. A tenant that was idle rings at its first launch, and gets its time then. */
void qp_budget_until(struct qp_card *c, uint32_t i, bool limited, uint64_t now)
{
    struct qp_tenant *t = &c->tenant[i];
    bool watched = limited && !(t->gate & (QG_GATE_CLOSED | QG_GATE_NOTIFY));
    t->until_ns = watched ? now + budget_ends_in(c, i) + QP_OVERSTAY_NS : 0;
}

/* When the current tenant's budget ends, or a tenant without budget has saved enough. */
uint64_t qp_budget_wake(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    uint64_t wake = QP_NEVER;
    /* an idle current tenant is charged if others compete */
    bool others = qp_select_next(c, k, m, c->cls[k].current) >= 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (t->out_of_budget && !t->suspended) {
            uint64_t opens = reopens_at(c, m->at[j], now, all_out_of_budget(c, m));
            if (!t->runnable)
                opens = max_u64(opens, now + IDLE_RECHECK_NS);
            wake = min_u64(wake, max_u64(opens, now + QP_DRAIN_POLL_NS));
        } else if (c->cls[k].current == (int32_t)m->at[j] && t->share < 100 &&
                   (t->runnable || t->undrained || others)) {
            wake = min_u64(wake, now + max_u64(budget_ends_in(c, m->at[j]), QP_DRAIN_POLL_NS));
        }
    }
    return wake;
}
