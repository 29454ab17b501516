/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses which member of a class gets the next quantum.
 */
#include "policy/policy_parts.h"

/* Does a go before b? The one with more credit per weight does. At a tie it is the one with work on
 * the card, as that avoids a drain. */
bool qp_goes_first(const struct qp_class *s, const struct qp_tenant *a, const struct qp_tenant *b)
{
    int64_t left = a->deficit_ns * weight(s, b), right = b->deficit_ns * weight(s, a);
    if (left != right)
        return left > right;
    return a->undrained && !b->undrained;
}

/* The competing member, other than `except`, that gets the next quantum; -1 if none competes. */
int32_t qp_select_next(const struct qp_card *c, int k, const struct members *m, int32_t except)
{
    const struct qp_class *s = &c->cls[k];
    int32_t best = -1;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (!competes(t) || (int32_t)m->at[j] == except)
            continue;
        if (best < 0 || qp_goes_first(s, t, &c->tenant[best]))
            best = m->at[j];
    }
    return best;
}
