/* SPDX-License-Identifier: Apache-2.0
 *
 * fixed-share: each tenant has a token bucket that fills at its share of the wall clock, and a
 * limit on its use in any second. The bucket gives the right mean, also after a kernel of half a
 * second. The limit keeps saved tokens from being used too fast.
 */
#include <string.h>

#include "policy/policy_parts.h"

/* ns: Length of a bin, 1/250 of a second. It bounds the error of a sum. Evidence: bound. */
#define BIN_NS (4 * QP_MS)
/* count: Bins that cover a second with the newest one. Evidence: bound. */
#define SPAN_BINS 250u
/* ns: Most that is charged to a bin at once; it counts in 32 bits. Evidence: bound. */
#define MAX_CHARGE_NS (4000 * QP_MS)

/* Moves the history to the time; old bins fall out. */
static void slide(struct qp_history *h, uint64_t now)
{
    uint64_t bin = now / BIN_NS;
    if (bin > h->bin && bin - h->bin >= QP_BINS) {
        memset(h, 0, sizeof(*h));
        h->bin = bin;
    }
    while (h->bin < bin) {
        h->bin++;
        h->sum -= h->used[(h->bin - SPAN_BINS - 1) % QP_BINS];
        h->used[h->bin % QP_BINS] = 0;
    }
}

/* Most use in any second. One kernel that is in flight when the gate closes comes on top. */
static uint64_t most_in_second(const struct qp_tenant *t)
{
    return t->share * 10 * QP_MS - QP_FIXED_WINDOW_US * 1000ull;
}

/* Tokens from which a closed gate opens again: a slice, or a quarter of one second's share. */
static uint64_t reopen_budget(const struct qp_card *c, const struct qp_tenant *t)
{
    return min_u64(c->slice_ns, t->share * 10 * QP_MS / 4);
}

/* Fills the bucket for the time that passed, and takes what was used. */
void qp_budget_charge(struct qp_card *c, uint32_t i, uint64_t now, uint64_t passed, uint64_t used)
{
    struct qp_tenant *t = &c->tenant[i];
    struct qp_history *h = &c->history[i];
    int64_t quantum = (int64_t)reopen_budget(c, t),
            most = QP_BUDGET_MAX_NS > quantum ? QP_BUDGET_MAX_NS : quantum;
    t->budget_ns += (int64_t)(passed / 100 * t->share) - (int64_t)used;
    t->budget_ns = t->budget_ns < most ? t->budget_ns : most;
    used = min_u64(used, MAX_CHARGE_NS);
    slide(h, now);
    h->used[h->bin % QP_BINS] += (uint32_t)used;
    h->sum += used;
}

/* When this much more fits into the limit, if nothing is used until then. More than the limit fits
 * after a second without use, or a long kernel would never run. */
static uint64_t fits_at(const struct qp_history *h, uint64_t most, uint64_t more, uint64_t now)
{
    uint64_t room = most > more ? most - more : 0, sum = h->sum, bin = h->bin;
    for (; sum > room && bin < h->bin + SPAN_BINS + 1; bin++)
        sum -= h->used[(bin - SPAN_BINS) % QP_BINS];
    return bin == h->bin ? now : bin * BIN_NS;
}

/* When a closed gate opens again. */
static uint64_t opens_at(const struct qp_card *c, uint32_t i, uint64_t now)
{
    const struct qp_tenant *t = &c->tenant[i];
    int64_t enough = (int64_t)reopen_budget(c, t), lacks = enough - t->budget_ns;
    uint64_t filled = lacks > 0 ? now + ((uint64_t)lacks * 100 + t->share - 1) / t->share : now;
    return max_u64(filled, fits_at(&c->history[i], most_in_second(t), (uint64_t)enough, now));
}

/* Closes a gate at the end of its tokens. Opens it when they are worth a quantum again. */
void qp_budget_review(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        if (!is_limited(&c->cls[k], t))
            t->out_of_budget = 0;
        else if (t->out_of_budget)
            t->out_of_budget = opens_at(c, m->at[j], now) > now;
        else
            t->out_of_budget = t->budget_ns <= 0 || c->history[m->at[j]].sum > most_in_second(t);
    }
}

/* How long the tokens last if the tenant uses the card without a break, rather too short. */
static uint64_t tokens_last(const struct qp_card *c, uint32_t i)
{
    const struct qp_tenant *t = &c->tenant[i];
    uint64_t empty = (uint64_t)(t->budget_ns > 0 ? t->budget_ns : 0) * 100 / (100 - t->share) + 1;
    uint64_t used = c->history[i].sum, most = most_in_second(t);
    return min_u64(empty, used < most ? most - used + 1 : 0);
}

/* Writes the time from which an open gate counts as closed, in case the arbiter is late to close
 * it. */
void qp_budget_until(struct qp_card *c, uint32_t i, uint64_t now)
{
    c->tenant[i].until_ns = now + tokens_last(c, i) + QP_OVERSTAY_NS;
}

/* When the current tenant's tokens end, or a tenant without tokens has saved enough. */
uint64_t qp_budget_wake(struct qp_card *c, int k, const struct members *m, uint64_t now)
{
    uint64_t wake = QP_NEVER;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        bool current = c->cls[k].current == (int32_t)m->at[j];
        if (t->out_of_budget && !is_barred(t))
            wake = min_u64(wake, opens_at(c, m->at[j], now));
        else if (current && is_limited(&c->cls[k], t))
            wake = min_u64(wake, now + tokens_last(c, m->at[j]));
    }
    return max_u64(wake, now + QP_DRAIN_POLL_NS);
}
