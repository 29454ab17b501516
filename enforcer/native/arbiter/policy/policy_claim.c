/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the claims of the members of one class.
 */
#include "policy/policy_parts.h"

/* Is a's claim better than b's? Credit per weight; at a tie work already on the card avoids a
 * drain. */
bool qp_better(const struct qp_class *s, const struct qp_tenant *a, const struct qp_tenant *b)
{
    int64_t left = a->deficit_ns * weight(s, b), right = b->deficit_ns * weight(s, a);
    if (left != right)
        return left > right;
    return a->undrained && !b->undrained;
}

/* The best claim among those who compete, except one; -1 if there is none. */
int32_t qp_best_claim(const struct qp_card *c, int k, const struct side *m, int32_t except)
{
    const struct qp_class *s = &c->cls[k];
    int32_t best = -1;
    for (uint32_t j = 0; j < m->n; j++) {
        const struct qp_tenant *t = &c->tenant[m->at[j]];
        if (!claims(t) || (int32_t)m->at[j] == except)
            continue;
        if (best < 0 || qp_better(s, t, &c->tenant[best]))
            best = m->at[j];
    }
    return best;
}
