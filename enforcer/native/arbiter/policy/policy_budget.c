/* SPDX-License-Identifier: Apache-2.0
 *
 * fixed-share: a bucket per tenant that fills at its share of the wall clock, and the use of the
 * last second and of the last ten as hard limits on top. The bucket gives the right mean, also
 * after a kernel of half a second; the windows keep what was saved up from being spent too fast.
 */
#include <string.h>

#include "policy/policy_parts.h"

/* bins of a window's length; sets the precision of the sum */
#define SPAN 250u
/* ns of a bin of the 1 s window */
#define ONE_BIN (4 * QP_MS)
/* ns of a bin of the 10 s window */
#define TEN_BIN (40 * QP_MS)
/* least ns of a quantum on a card that would be idle otherwise: a hand-over costs time */
#define LEAST_NS QP_MS
/* ns, the same of one long kernel: it may exceed the share, so any room will do */
#define LEAST_LONG_NS 100000u
/* least ns until a full window is checked again; limits CPU time */
#define RECHECK_NS (QP_MS / 2)
/* ns, the same where no tenant waits for it */
#define IDLE_RECHECK_NS (20 * QP_MS)
/* percent of shares that leave hardly anything of the card over */
#define ALL_OF_IT 90u
/* most ns of budget earned at once; a limit against overflow */
#define SETTLED_NS (1000000 * QP_MS)

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
        w->sum -= w->used[(w->bin - SPAN - 1) % QP_BINS];
        w->used[w->bin % QP_BINS] = 0;
    }
}

static void put(struct qp_window *w, uint64_t width, uint64_t now, uint64_t used)
{
    slide(w, width, now);
    w->used[w->bin % QP_BINS] += (uint32_t)used;
    w->sum += (uint32_t)used;
}

/* Of what was used in a bin, the most that may lie in the end of it, which is so long: nobody knows
 * when it was used. */
static uint64_t in_the_end(const struct qp_window *w, uint64_t bin, uint64_t end)
{
    return min_u64(w->used[bin % QP_BINS], end);
}

/* Use within the length of the window, at most. */
static uint64_t used_in(struct qp_window *w, uint64_t width, uint64_t now)
{
    slide(w, width, now);
    uint64_t oldest = w->bin - SPAN;
    return w->sum - w->used[oldest % QP_BINS] + in_the_end(w, oldest, (w->bin + 1) * width - now);
}

/* When no more than `most` of it is left, if nothing is used until then. */
static uint64_t falls_to(struct qp_window *w, uint64_t width, uint64_t now, uint64_t most)
{
    uint64_t used = used_in(w, width, now), from = now;
    for (uint64_t bin = w->bin; used > most && bin < w->bin + SPAN; from = ++bin * width) {
        uint64_t in_it = bin == w->bin ? in_the_end(w, bin - SPAN, (bin + 1) * width - now)
                                       : w->used[(bin - SPAN) % QP_BINS];
        if (in_it >= used - most)
            return max_u64(from, (bin + 1) * width - (in_it - (used - most)));
        used -= in_it;
    }
    return from;
}

/* What the gate opens for at least: some slices, or less where that would be too much of one
 * second. */
static int64_t portion(const struct qp_card *c, const struct qp_tenant *t)
{
    return (int64_t)min_u64(QP_PORTION * c->slice_ns, t->share * 10 * QP_MS / 4);
}

/* Drained for longer than any window holds: that is one kernel, and most of what it is given is
 * such kernels. */
static bool has_long_kernels(const struct qp_tenant *t)
{
    return t->longest_ns > QP_FIXED_MOST_US * 1000ull + QP_TICK_NS;
}

/* One kernel may come on top. What the moments add up to in which turns began unheard may not. */
static uint64_t limit_one(const struct qp_tenant *t)
{
    return t->share * 10 * QP_MS - (has_long_kernels(t) ? QP_LATE_NS : QP_MARGIN_NS);
}

static uint64_t limit_ten(const struct qp_tenant *t)
{
    return (t->share + 1) * 100 * QP_MS - QP_MARGIN_NS;
}

/* A new member of the class: a clean record, and enough for a first turn. */
static void begin(struct qp_card *c, uint32_t index)
{
    struct qp_tenant *t = &c->tenant[index];
    if (t->budgeted)
        return;
    t->budgeted = 1;
    t->spent = 0;
    t->budget_ns = portion(c, t);
    memset(&c->history[index], 0, sizeof(c->history[index]));
}

void qp_budget_book(struct qp_card *c, uint32_t index, uint64_t now, uint64_t passed, uint64_t used,
                    uint64_t unseen)
{
    struct qp_tenant *t = &c->tenant[index];
    struct qp_history *h = &c->history[index];
    begin(c, index);
    t->budget_ns += (int64_t)(min_u64(passed, SETTLED_NS) * t->share / 100) - (int64_t)used;
    int64_t most = QP_BUDGET_MAX_NS > portion(c, t) ? QP_BUDGET_MAX_NS : portion(c, t);
    if (t->budget_ns > most)
        t->budget_ns = most;
    if (!used && !unseen)
        return;
    /* the budget follows the mean, the limits what it may have been */
    used = min_u64(used + unseen, 4000 * QP_MS);
    put(&h->one, ONE_BIN, now, used);
    put(&h->ten, TEN_BIN, now, used);
}

static uint64_t above_zero(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* When so much more fits into both windows. Nothing to limit at 100 %: the clock itself does. Ten
 * seconds without use allow anything, or a kernel that is longer than the limit would never run. */
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

/* When a closed gate opens again: for a turn that is worth a change of hands; for less where the
 * card would stand still. */
static uint64_t reopens_at(struct qp_card *c, uint32_t i, uint64_t now, bool idle)
{
    const struct qp_tenant *t = &c->tenant[i];
    uint64_t least = has_long_kernels(t) ? LEAST_LONG_NS : LEAST_NS;
    int64_t whole = portion(c, t), enough = idle && whole > (int64_t)least ? (int64_t)least : whole;
    int64_t lacks = enough - t->budget_ns;
    uint64_t turn = (uint64_t)whole / QP_PORTION, filled = now;
    if (lacks > 0)
        filled += ((uint64_t)lacks * 100 + t->share - 1) / t->share;
    return max_u64(filled, fits_at(c, i, now, idle ? min_u64(turn, least) : turn, t->tail_ns));
}

/* The same where somebody else uses the card. */
uint64_t qp_budget_opens(struct qp_card *c, uint32_t i, uint64_t now)
{
    return reopens_at(c, i, now, false);
}

/* Would the card stand still although several want it and all of it is theirs? Who leaves some of
 * it alone, as one alone does, waits for a turn that is worth its while: each change of hands is
 * charged, and nobody else needs the time. */
static bool all_spent(const struct qp_card *c, const struct side *m)
{
    uint32_t waiting = 0, shares = 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (claims(t) || t->undrained)
            return false;
        waiting += t->wants && !t->suspended;
        shares += t->wants && !t->suspended ? t->share : 0;
    }
    return waiting > 1 && shares >= ALL_OF_IT;
}

/* Closes at the end of the budget, opens again when it is worth a turn. */
void qp_budget_review(struct qp_card *c, const struct side *m, uint64_t now)
{
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        begin(c, m->at[j]);
        if (!t->spent) {
            t->spent = t->budget_ns <= 0 || fits_at(c, m->at[j], now, 0, 0) > now;
        } else {
            t->spent = reopens_at(c, m->at[j], now, all_spent(c, m)) > now;
        }
    }
}

void qp_budget_drop(struct qp_card *c, const struct side *m)
{
    for (uint32_t j = 0; j < m->n; j++)
        c->tenant[m->at[j]].budgeted = c->tenant[m->at[j]].spent = 0;
}

/* How long a tenant may use the card on end from now on, as far as `most`. */
uint64_t qp_budget_lasts(struct qp_card *c, uint32_t i, uint64_t now, uint64_t most)
{
    const struct qp_tenant *t = &c->tenant[i];
    struct qp_window *w = &c->history[i].one;
    if (t->share >= 100)
        return most;
    most = min_u64(most, (uint64_t)(t->budget_ns > 0 ? t->budget_ns : 0) * 100 / (100 - t->share));
    uint64_t used = used_in(w, ONE_BIN, now), full = limit_one(t), from = now;
    /* old use leaves while it goes on */
    for (uint64_t bin = w->bin; from < now + most && used <= full; bin++) {
        uint64_t step = (bin + 1) * ONE_BIN - from;
        used += step - min_u64(used + step, in_the_end(w, bin - SPAN, step));
        from += step;
    }
    return min_u64(most, used > full ? above_zero(from - now, used - full) : from - now);
}

/* How long a tenant that uses the card on end has its budget, a little less rather than more. */
static uint64_t ends_in(const struct qp_card *c, uint32_t i)
{
    const struct qp_tenant *t = &c->tenant[i];
    uint64_t empty =
        (uint64_t)(t->budget_ns > 1 ? t->budget_ns - 1 : 0) * 100 / (100 - t->share) + 1;
    uint64_t used = c->history[i].one.sum, full = limit_one(t);
    return min_u64(empty, used < full ? full - used + 1 : RECHECK_NS);
}

/* Where we are late to close its gate it stops by itself. Who was idle rings at its first launch,
 * so that we look then. */
void qp_budget_until(struct qp_card *c, uint32_t i, bool limited, uint64_t now)
{
    struct qp_tenant *t = &c->tenant[i];
    bool watched = limited && !(t->gate & (QG_GATE_CLOSED | QG_GATE_NOTIFY));
    t->until_ns = watched ? now + ends_in(c, i) + QP_OVERSTAY_NS : 0;
}

/* When the holder's budget will end, or that of somebody without any will have filled. */
uint64_t qp_budget_wake(struct qp_card *c, int k, const struct side *m, uint64_t now)
{
    uint64_t wake = QP_NEVER;
    /* then an idle holder is charged as well */
    bool others = qp_best_claim(c, k, m, c->cls[k].holder) >= 0;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (t->spent && !t->suspended) {
            uint64_t opens = reopens_at(c, m->at[j], now, all_spent(c, m));
            if (!t->wants)
                opens = max_u64(opens, now + IDLE_RECHECK_NS);
            wake = min_u64(wake, max_u64(opens, now + QP_DRAIN_POLL_NS));
        } else if (c->cls[k].holder == (int32_t)m->at[j] && t->share < 100 &&
                   (t->wants || t->undrained || others)) {
            wake = min_u64(wake, now + max_u64(ends_in(c, m->at[j]), QP_DRAIN_POLL_NS));
        }
    }
    return wake;
}
