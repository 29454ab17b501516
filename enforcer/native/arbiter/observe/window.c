/* SPDX-License-Identifier: Apache-2.0
 *
 * How much work of a tenant may be in flight.
 */
#include "hw/hw.h"
#include "model/model.h"
#include "observe/observe_parts.h"
#include "policy/policy.h"

/* In the middle of a long quantum two kernels fit even if they are long. */
static uint32_t deep_window(const struct tenant *t, uint32_t window)
{
    const struct qp_tenant *q = &t->card->policy.tenant[t->index];
    uint32_t two = q->deep_window ? QP_DEEP_WINDOW_US : 0;
    return two > window ? two : window;
}

/* The window bounds the unfinished work of a tenant, and so how long an online tenant waits for
 * offline ones. Processes that work at the same time divide it. It is wider if no online tenant has
 * to wait, and for online tenants themselves: kernels of a millisecond then queue up, and a late
 * wake-up of the program leaves no gap on the card. It is widest for a tenant alone on its card, or
 * an online tenant without online peers. It is narrow under fixed-share, as what is unfinished when
 * a budget ends comes on top of the share. */
uint32_t sample_window(const struct tenant *t)
{
    const struct card *card = t->card;
    bool online = t->id.job_class == QG_CLASS_ONLINE,
         fixed = card->policy.cls[!online].policy == QG_POLICY_FIXED_SHARE;
    bool lone = online ? card->lone_online : card->lone;
    uint32_t window = card->window_us, wide = fixed ? QP_FIXED_WINDOW_US : QP_SHARED_WINDOW_US;
    if (lone && !fixed)
        wide = QP_LONE_WINDOW_US;
    if (online || !card->awaits_online || lone)
        window = window > wide ? window : wide;
    if (fixed && window > QP_FIXED_WINDOW_MAX_US)
        window = QP_FIXED_WINDOW_MAX_US;
    if (!card->awaits_online)
        window = deep_window(t, window);
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
        live += q->live;
        online += q->live && q->job_class == QG_CLASS_ONLINE;
        expected += card->tenants[i] && q->granted && !q->live && q->job_class == QG_CLASS_ONLINE;
    }
    bool lone = live <= 1 && !expected, awaits = online || expected,
         lone_online = online + expected <= 1;
    if (lone == card->lone && awaits == card->awaits_online && lone_online == card->lone_online)
        return;
    card->lone = lone;
    card->lone_online = lone_online;
    card->awaits_online = awaits;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        if (card->tenants[i])
            sample_set_window(card->tenants[i]);
    }
}
