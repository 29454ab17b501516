/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption: what happens to a tenant's records when it changes or ends. Main thread
 * only. Nothing here calls the driver or blocks.
 */
#include <string.h>

#include "base/base.h"
#include "hw/hw.h"
#include "hw/hw_parts.h"
#include "model/model.h"
#include "policy/policy.h"
#include "qg_msg.h"

bool hw_groups_sane(const struct qg_groups *m)
{
    return qg_terminated(m->uuid, sizeof(m->uuid)) && m->ngroups <= QG_MAX_GROUPS &&
           m->nchannels <= QG_MAX_CHANNELS &&
           !(m->flags & ~(QG_GROUPS_LOST | QG_GROUPS_LEAVE | QG_GROUPS_MORE_CHANNELS));
}

void hw_copy_identity(struct hw_tenant *ht, const struct tenant *t)
{
    ht->job_id = t->id.job_id;
    ht->share = t->id.share;
    ht->job_class = t->id.job_class;
}

void hw_tenant_changed(const struct tenant *t)
{
    struct hw *hw = t->card->hw;
    if (!hw)
        return;
    pthread_mutex_lock(&hw->lock);
    hw_copy_identity(&hw->tenant[t->index], t);
    pthread_mutex_unlock(&hw->lock);
    if (HW_LOAD(hw->weights))
        hw_ring(hw);
}

/* Reads the settings without the lock, as only the main thread changes them. */
bool hw_control_of(const struct arbiter *a, const void *buf, size_t cap,
                   struct qg_ctl_hardware *device)
{
    struct qg_groups m;
    if (cap < sizeof(m))
        return false;
    memcpy(&m, buf, sizeof(m));
    const struct card *card =
        m.head.type == QG_MSG_GROUPS && hw_groups_sane(&m) ? card_find(a, m.uuid) : NULL;
    if (!card || !card->hw)
        return false;
    *device = card->hw->settings;
    return true;
}

void hw_process_left(struct arbiter *a, const struct tenant *t, uint32_t slot)
{
    struct hw *hw = t->card->hw;
    if (!hw)
        return;
    pthread_mutex_lock(&hw->lock);
    for (struct hw_record *r = hw->records, *next; r; r = next) {
        next = r->next;
        if (r->tenant != t->index || r->slot != slot)
            continue;
        hw_record_unlink(hw, r);
        hw_record_put(hw, r);
    }
    hw_review_tenant(hw, t->index);
    if (t->nprocs == 1)
        hw->tenant[t->index].failed = false; /* it was the last one: later processes start anew */
    pthread_mutex_unlock(&hw->lock);
    if (HW_LOAD(hw->weights))
        hw_ring(hw); /* the time slices of other tenants grow */
    hw_attend(a, &hw->key);
}

/* A process that lost its connection continues its groups itself and reports them again. So its
 * records are dropped without a call of the driver. If it runs another program now, its context is
 * gone. Only the arbiter's copy of the control device would keep that on the card. If it has just
 * died, it must not be continued. The worker itself continues the record that it is acting on. Its
 * call may end later than the process's own. */
void hw_connection_ended(struct arbiter *a, const struct tenant *t, uint32_t slot)
{
    struct hw *hw = t->card ? t->card->hw : NULL;
    if (!hw)
        return;
    pthread_mutex_lock(&hw->lock);
    for (struct hw_record *r = hw->records, *next; r; r = next) {
        next = r->next;
        if (r->tenant != t->index || r->slot != slot)
            continue;
        if (hw->current == r) {
            hw_record_leave(hw, r);
            continue;
        }
        hw_record_unlink(hw, r);
        hw_record_put(hw, r);
    }
    hw_review_tenant(hw, t->index);
    pthread_mutex_unlock(&hw->lock);
    hw_attend(a, &hw->key);
}

void hw_forget_all(struct hw *hw)
{
    HW_STORE(hw->on, 0);
    for (struct hw_record *r = hw->records, *next; r; r = next) {
        next = r->next;
        if (r->stage != HW_LEAVING)
            hw_record_leave(hw, r);
    }
    for (uint32_t i = 0; i < QP_MAX_TENANTS; i++)
        hw_review_tenant(hw, i);
}

void hw_tenant_revoked(struct arbiter *a, const struct tenant *t)
{
    struct hw *hw = t->card->hw;
    if (!hw)
        return;
    pthread_mutex_lock(&hw->lock);
    for (struct hw_record *r = hw->records, *next; r; r = next) {
        next = r->next;
        if (r->tenant == t->index && r->stage != HW_LEAVING)
            hw_record_leave(hw, r);
    }
    hw_review_tenant(hw, t->index);
    pthread_mutex_unlock(&hw->lock);
    hw_attend(a, &hw->key);
}

void hw_tenant_new(struct card *card, uint32_t index)
{
    if (!card->hw)
        return;
    pthread_mutex_lock(&card->hw->lock);
    memset(&card->hw->tenant[index], 0, sizeof(card->hw->tenant[index]));
    pthread_mutex_unlock(&card->hw->lock);
}
