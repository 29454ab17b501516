/* SPDX-License-Identifier: Apache-2.0
 *
 * How much work of a tenant may be in flight.
 */
#include "hw/hw.h"
#include "model/model.h"
#include "observe/observe_parts.h"
#include "policy/policy.h"

/* The window bounds the unfinished work of a tenant, and so how long an online tenant waits for
 * offline ones. Processes that work at the same time divide it. It is wider if no online tenant has
 * to wait, and for online tenants themselves: kernels of a millisecond then queue up, and a late
 * wake-up of the program leaves no gap on the card. It is widest for a tenant alone on its card, or
 * an online tenant without online peers. It is narrow under fixed-share, as what is unfinished when
 * a budget ends comes on top of the share, and where pauses are lent, as the tenant that is back
 * waits for it. */
uint32_t sample_window(const struct tenant *t)
{
    const struct card *card = t->card;
    bool online = t->id.job_class == QG_CLASS_ONLINE,
         fixed = card->policy.cls[!online].policy == QG_POLICY_FIXED_SHARE;
    bool lone = online ? card->lone_online : card->lone;
    uint32_t window = card->window_us, wide = lone ? QP_LONE_WINDOW_US : QP_SHARED_WINDOW_US;
    bool lends = card->lends[!online] && !lone;
    if ((online || !card->awaits_online || lone) && !lends && window < wide)
        window = wide;
    if (fixed && window > QP_FIXED_WINDOW_US)
        window = QP_FIXED_WINDOW_US;
    if (!lone || fixed)
        window /= t->sample.working ? t->sample.working : 1;
    if ((online || !card->awaits_online) && window < hw_window(t))
        window = hw_window(t);
    return window ? window : 1;
}

void sample_set_window(struct tenant *t)
{
    uint32_t window = sample_window(t);
    if (t->gate->window_us != window)
        __atomic_store_n(&t->gate->window_us, window, __ATOMIC_RELAXED);
}

void sample_review_windows(struct card *card)
{
    uint32_t live = 0, online = 0, expected = 0;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        const struct qp_tenant *q = &card->policy.tenant[i];
        bool here = q->live && (!q->held || q->undrained);
        live += here;
        online += here && q->job_class == QG_CLASS_ONLINE;
        expected += card->tenants[i] && !card->tenants[i]->id.revoked && !q->live &&
                    q->job_class == QG_CLASS_ONLINE;
    }
    bool lone = live <= 1 && !expected, awaits = online || expected,
         lone_online = online + expected <= 1;
    bool same = lone == card->lone && awaits == card->awaits_online;
    for (int k = 0; k < 2; k++) {
        bool lends = card->policy.cls[k].way == QP_WAY_LEND;
        same &= lends == card->lends[k];
        card->lends[k] = lends;
    }
    if (same && lone_online == card->lone_online)
        return;
    card->lone = lone;
    card->lone_online = lone_online;
    card->awaits_online = awaits;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        if (card->tenants[i])
            sample_set_window(card->tenants[i]);
    }
}
