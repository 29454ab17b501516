/* SPDX-License-Identifier: Apache-2.0
 *
 * fixed-share: a bucket per tenant that fills at its share of the wall clock, and the use of the last second and of
 * the last ten as hard limits on top. The bucket gives the right mean, also after a kernel of half a second; the
 * windows keep what was saved up from being spent too fast.
 */
#include <string.h>

#include "policy_parts.h"

#define SPAN 250u             /* bins of a window's length */
#define ONE_BIN (4 * QP_MS)   /* 250 of them: 1 s */
#define TEN_BIN (40 * QP_MS)  /* 250 of them: 10 s */
#define RECHECK_NS (2 * QP_MS) /* a window that is full is looked at again */
#define IDLE_RECHECK_NS (20 * QP_MS) /* the same where nobody waits for it */
#define SETTLED_NS (1000000 * QP_MS)

/* Moves a window to the time; old bins fall out. */
static void slide(struct qp_window *w, uint64_t width, uint64_t now) {
    uint64_t bin = now / width;
    if (bin <= w->bin) return;
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

static void put(struct qp_window *w, uint64_t width, uint64_t now, uint64_t used) {
    slide(w, width, now);
    w->used[w->bin % QP_BINS] += (uint32_t)used;
    w->sum += (uint32_t)used;
}

/* Use within the length of the window; of the oldest bin, the part that still lies in it. */
static uint64_t used_in(struct qp_window *w, uint64_t width, uint64_t now) {
    slide(w, width, now);
    uint64_t oldest = w->used[(w->bin - SPAN) % QP_BINS];
    return w->sum - oldest * (now - w->bin * width) / width;
}

/* What the gate opens for at least: some slices, or less where that would be too much of one second. */
static int64_t portion(const struct qp_card *c, const struct qp_tenant *t) {
    return (int64_t)min_u64(QP_PORTION * c->slice_ns, t->share * 10 * QP_MS / 4);
}

static uint64_t limit_one(const struct qp_tenant *t) { return t->share * 10 * QP_MS - QP_MARGIN_NS; }

static uint64_t limit_ten(const struct qp_tenant *t) { return (t->share + 1) * 100 * QP_MS - QP_MARGIN_NS; }

/* A new member of the class: a clean record, and enough for a first turn. */
static void begin(struct qp_card *c, uint32_t index) {
    struct qp_tenant *t = &c->tenant[index];
    if (t->budgeted) return;
    t->budgeted = 1;
    t->spent = 0;
    t->budget_ns = portion(c, t);
    memset(&c->history[index], 0, sizeof(c->history[index]));
}

void qp_budget_book(struct qp_card *c, uint32_t index, uint64_t now, uint64_t passed, uint64_t used) {
    struct qp_tenant *t = &c->tenant[index];
    struct qp_history *h = &c->history[index];
    begin(c, index);
    t->budget_ns += (int64_t)(min_u64(passed, SETTLED_NS) * t->share / 100) - (int64_t)used;
    int64_t most = QP_BUDGET_MAX_NS > portion(c, t) ? QP_BUDGET_MAX_NS : portion(c, t);
    if (t->budget_ns > most) t->budget_ns = most;
    if (!used) return;
    used = min_u64(used, 4000 * QP_MS);
    put(&h->one, ONE_BIN, now, used);
    put(&h->ten, TEN_BIN, now, used);
}

/* Nothing to limit at 100 %: the clock itself does. */
static bool over_a_window(struct qp_card *c, uint32_t i, uint64_t now, uint64_t one_more, uint64_t ten_more) {
    const struct qp_tenant *t = &c->tenant[i];
    struct qp_history *h = &c->history[i];
    if (t->share >= 100) return false;
    if (used_in(&h->one, ONE_BIN, now) + one_more > limit_one(t)) return true;
    uint64_t ten = used_in(&h->ten, TEN_BIN, now);
    return ten && ten + ten_more > limit_ten(t);
}

/* Closes at the end of the budget, opens again when it is worth a turn. */
void qp_budget_review(struct qp_card *c, const struct side *m, uint64_t now) {
    for (uint32_t j = 0; j < m->n; j++) {
        struct qp_tenant *t = &c->tenant[m->at[j]];
        begin(c, m->at[j]);
        if (!t->spent) {
            t->spent = t->budget_ns <= 0 || over_a_window(c, m->at[j], now, 0, 0);
        } else if (t->budget_ns >= portion(c, t)) {
            t->spent = over_a_window(c, m->at[j], now, (uint64_t)portion(c, t) / QP_PORTION, t->tail_ns);
        }
    }
}

void qp_budget_drop(struct qp_card *c, const struct side *m) {
    for (uint32_t j = 0; j < m->n; j++) c->tenant[m->at[j]].budgeted = c->tenant[m->at[j]].spent = 0;
}

/* When the holder's budget will end, or that of somebody without any will have filled. */
uint64_t qp_budget_wake(const struct qp_card *c, int k, const struct side *m, uint64_t now) {
    uint64_t wake = QP_NEVER;
    bool others = qp_best_claim(c, k, m, c->cls[k].holder) >= 0; /* then an idle holder is charged as well */
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (t->spent && !t->suspended) {
            int64_t lacks = portion(c, t) - t->budget_ns;
            uint64_t recheck = t->wants ? RECHECK_NS : IDLE_RECHECK_NS;
            uint64_t fill = lacks > 0 ? ((uint64_t)lacks * 100 + t->share - 1) / t->share : recheck;
            wake = min_u64(wake, now + fill);
        } else if (c->cls[k].holder == (int32_t)m->at[j] && t->share < 100 && (t->wants || t->undrained || others)) {
            uint64_t empty = (uint64_t)(t->budget_ns > 1 ? t->budget_ns - 1 : 0) * 100 / (100 - t->share) + 1;
            uint64_t used = c->history[m->at[j]].one.sum, full = limit_one(t); /* a little early rather than late */
            empty = min_u64(empty, used < full ? full - used + 1 : RECHECK_NS / 4);
            wake = min_u64(wake, now + max_u64(empty, QP_DRAIN_POLL_NS));
        }
    }
    return wake;
}
