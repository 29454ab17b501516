/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the decision share: the members of a class, and the functions that policy.c
 * calls.
 */
#ifndef QGPU_POLICY_PARTS_H
#define QGPU_POLICY_PARTS_H

#include "policy/policy.h"
#include "qgpu_abi.h"

enum { ONLINE = 0, OFFLINE = 1 };

/* The members of one class, found once per decision. Ungoverned tenants are registered, but take no
 * quanta. */
struct members {
    uint32_t registered; /* live tenants of the class */
    uint32_t n;          /* members */
    uint32_t may_run;    /* members that are not barred, or still have work on the card */
    uint16_t at[QP_MAX_TENANTS];
};

static inline int class_of(const struct qp_tenant *t)
{
    return t->job_class == QG_CLASS_ONLINE ? ONLINE : OFFLINE;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline int64_t clamp_deficit(int64_t v)
{
    int64_t most = QP_DEFICIT_MAX_NS;
    return v > most ? most : v < -most ? -most : v;
}

static inline bool is_fixed_share(const struct qp_class *s)
{
    return s->policy == QG_POLICY_FIXED_SHARE;
}

/* Do the pauses of a quantum go to others at once? */
static inline bool lends(const struct qp_class *s)
{
    return s->way == QP_WAY_LEND;
}

/* The same for this member: its pauses were long so far. Short ones are not worth a change of
 * context, and are waited for. */
static inline bool lends_at_once(const struct qp_class *s, const struct qp_tenant *t)
{
    return lends(s) && t->pause_ns >= 2 * QP_PAUSE_NS;
}

/* Is its use limited? A share of 100 % needs no limit: time itself is one. */
static inline bool is_limited(const struct qp_class *s, const struct qp_tenant *t)
{
    return is_fixed_share(s) && t->share < 100;
}

/* best-effort is burst-share with equal weights */
static inline int64_t weight(const struct qp_class *s, const struct qp_tenant *t)
{
    return s->policy == QG_POLICY_BEST_EFFORT || !t->share ? 1 : (int64_t)t->share;
}

/* Must it not run here, whatever its class may do? */
static inline bool is_barred(const struct qp_tenant *t)
{
    return t->suspended || t->held || t->late;
}

/* Does it compete for the card? */
static inline bool competes(const struct qp_tenant *t)
{
    return t->runnable && !is_barred(t) && !t->out_of_budget;
}

static inline bool is_open(const struct qp_tenant *t)
{
    return !(t->gate & QG_GATE_CLOSED);
}

/* policy_release.c: may offline run, and which of its tenants? Online works (or not) now. */
void qp_release(struct qp_card *c, const struct members *offline, bool works, uint64_t now);

/* policy_charge.c: which tenant used the card since the last decision */
void qp_charge(struct qp_card *c, int k, const struct members *m, uint64_t now);

/* policy_quantum.c: whose quantum it is */
int32_t qp_choose_open(struct qp_card *c, int k, const struct members *m, uint64_t now);
int32_t qp_select_next(const struct qp_card *c, int k, const struct members *m, int32_t except);
uint64_t qp_quantum_wake(struct qp_card *c, int k, const struct members *m, uint64_t now);
void qp_begin_slice(struct qp_card *c, int k, uint64_t from);

/* policy_way.c: how the members share the card */
void qp_choose_way(struct qp_card *c, int k, const struct members *m, enum qp_way last,
                   uint64_t now);
uint64_t qp_way_wake(const struct qp_card *c, int k, const struct members *m);

/* policy_budget.c: fixed-share */
void qp_budget_charge(struct qp_card *c, uint32_t i, uint64_t now, uint64_t passed, uint64_t used);
void qp_budget_review(struct qp_card *c, int k, const struct members *m, uint64_t now);
void qp_budget_until(struct qp_card *c, uint32_t i, uint64_t now);
uint64_t qp_budget_wake(struct qp_card *c, int k, const struct members *m, uint64_t now);

#endif
