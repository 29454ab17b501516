/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption: QG_MSG_GROUPS and QG_MSG_ACTED of registered processes. Main thread only.
 * Nothing here calls the driver or blocks. A descriptor is checked without asking its file system,
 * as that may be the sender's own.
 */
#include <fcntl.h>
#include <string.h>

#include "base/base.h"
#include "fds/fds.h"
#include "hw/hw.h"
#include "hw/hw_parts.h"
#include "model/model.h"
#include "peer/peer.h"
#include "serve/serve.h"
#include "qg_msg.h"
#include "qg_time.h"

/* The live slot of the sender in that tenant. */
static bool slot_of(const struct arbiter *a, const struct conn *c, const struct tenant *t,
                    uint32_t *slot)
{
    for (const struct proc *p = a->procs; p; p = p->next) {
        if (p->ended || p->pid != c->pid)
            continue;
        for (uint32_t i = 0; i < p->nslots; i++) {
            *slot = p->slots[i].slot;
            if (p->slots[i].tenant == t)
                return true;
        }
    }
    return false;
}

/* May the user have one more record? The records of all cards share one table. Main thread only: it
 * alone adds records. */
static bool room_for_record(const struct arbiter *a, uid_t uid)
{
    uint32_t mine = 0;
    for (uint32_t i = 0; i < a->ncards; i++) {
        struct hw *hw = a->cards[i]->hw;
        if (!hw)
            continue;
        pthread_mutex_lock(&hw->lock);
        for (const struct hw_record *r = hw->records; r; r = r->next)
            mine += r->uid == uid;
        pthread_mutex_unlock(&hw->lock);
    }
    return ar_may_hold(mine, hw_record_total(), HW_RECORDS);
}

/* The sender's tenant on the card of the message; NULL: there is none, and the message is
 * ignored. */
static struct tenant *sender_tenant(const struct arbiter *a, const struct conn *c,
                                    const struct qg_groups *m, uint32_t *slot)
{
    struct tenant *t = c->registered ? tenant_named(a, m->job_id, m->uuid) : NULL;
    return t && t->card->hw && slot_of(a, c, t, slot) ? t : NULL;
}

/* The new record keeps the old one, whose groups may be stopped, as its `former`. An old record
 * that no worker has tested yet leaves this chain, so that it stays short. */
static void replace(struct hw *hw, struct hw_record *r, struct hw_record *old)
{
    if (!old)
        return;
    hw_record_unlink(hw, old);
    if (old->actor == QG_HW_ACTOR_SHIM) {
        hw_record_put(hw, old);
    } else if (old->tested || hw->current == old) {
        r->former = old; /* the list's reference goes with it */
    } else {
        r->former = old->former;
        old->former = NULL;
        hw_record_put(hw, old);
    }
}

/* Acts on the message, with hw->lock. Where it keeps *fd, it sets it to -1. */
static void apply_groups(struct hw *hw, struct conn *c, struct tenant *t, uint32_t slot,
                         const struct qg_groups *m, bool room, int *fd)
{
    struct hw_tenant *ht = &hw->tenant[t->index];
    struct hw_record *old = hw_record_find(hw, t, slot, m);
    bool shim = hw->settings.actor != QG_HW_ACTOR_ARBITER,
         arbiter = hw->settings.actor != QG_HW_ACTOR_SHIM;
    if (m->flags & QG_GROUPS_LEAVE) {
        if (old && old->sock < 0)
            old->sock = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
        if (old)
            old->uid = c->uid;
        if (old)
            old->acknowledge = old->sock >= 0;
        if (old)
            hw_record_leave(hw, old);
        else
            hw_acknowledge(c->fd, m->uuid, m->client);
        return;
    }
    if (m->flags & QG_GROUPS_LOST) {
        hw_fail(hw, t->index, 0, "a process has more groups than can be followed");
    } else if (!m->ngroups) {
        if (old)
            hw_record_leave(hw, old);
    } else if (arbiter && (*fd >= 0 || !shim) && !(*fd >= 0 && hw_is_control(&hw->settings, *fd))) {
        hw_fail(hw, t->index, 0, "the descriptor that it sent is not the driver's control device");
    } else if (!old && (hw_record_count(hw, t->index, slot) >= HW_CLIENTS ||
                        ht->nrecords >= HW_TENANT_RECORDS)) {
        hw_fail(hw, t->index, 0, "it reported more clients of the driver than are followed");
    } else if (!old && !room) {
        hw_fail(hw, t->index, 0, "its user has as many clients of the driver as there is room for");
    } else {
        struct hw_record *r = hw_record_create(hw, t, slot, m);
        if (!r)
            return;
        replace(hw, r, old);
        r->sock = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
        r->uid = c->uid;
        if (!arbiter)
            return;
        r->fd = *fd;
        *fd = -1;
    }
}

/* Are the tenant's groups used? Those of an online tenant are with weights only. Those of a job
 * that was moved here are not: its older processes cannot tell that their groups are on this card
 * now, so they report none, and STOP would stop a part of the job. */
static bool groups_needed(const struct hw *hw, const struct tenant *t)
{
    if (!HW_LOAD(hw->on) || hw->tenant[t->index].failed || t->id.home[0])
        return false;
    return t->id.job_class == QG_CLASS_OFFLINE || hw->settings.weights;
}

void hw_groups(struct arbiter *a, struct conn *c, const void *buf, size_t len, int *fd)
{
    struct qg_groups m;
    uint32_t slot = 0;
    if (!qg_msg_is(buf, len, QG_MSG_GROUPS, sizeof(m))) {
        conn_close(a, c);
        return;
    }
    memcpy(&m, buf, sizeof(m));
    if (!hw_groups_sane(&m)) {
        conn_close(a, c);
        return;
    }
    struct tenant *t = sender_tenant(a, c, &m, &slot);
    struct hw *hw = t ? t->card->hw : NULL;
    if (!hw || !groups_needed(hw, t)) {
        if (m.flags & QG_GROUPS_LEAVE && !hw_acknowledge(c->fd, m.uuid, m.client))
            conn_close(a, c);
        return;
    }
    bool room = room_for_record(a, c->uid);
    pthread_mutex_lock(&hw->lock);
    hw_copy_identity(&hw->tenant[t->index], t);
    apply_groups(hw, c, t, slot, &m, room, fd);
    hw_review_tenant(hw, t->index);
    pthread_mutex_unlock(&hw->lock);
    hw_ring(hw);
    hw_attend(a, &hw->key);
}

static void answered(struct hw *hw, struct hw_record *r, const struct qg_act *m)
{
    r->serial = 0;
    if (r->stage == HW_LEAVING || r->stage == HW_SUSPECT)
        return;
    if (r->stage == HW_ASKED && m->status) {
        r->status = m->status;
        hw_ask_test(hw, r);
    } else if (m->status == RM_BAD_STATE) { /* it will destroy them, and its next message says so */
        r->status = m->status;
        r->stage = HW_SUSPECT;
        r->due_ns = qg_now_ns() + HW_EXPLAIN_NS;
    } else if (m->status) {
        hw_fail(hw, r->tenant, m->status, "the process could not carry out an order on its groups");
    } else if (r->stage == HW_ASKED) {
        r->stage = HW_USABLE;
        r->applied = 0;
    } else {
        bool went_on = m->action == QG_ACT_CONTINUE;
        /* it was continued because another record had to be: stop it again */
        r->applied = went_on && r->doing & 1 ? 0 : r->doing;
        if (went_on)
            r->stopped = false;
    }
}

void hw_acted(struct arbiter *a, struct conn *c, const void *buf, size_t len)
{
    struct qg_act m;
    if (!qg_msg_is(buf, len, QG_MSG_ACTED, sizeof(m))) {
        conn_close(a, c);
        return;
    }
    memcpy(&m, buf, sizeof(m));
    struct card *card =
        c->registered && qg_terminated(m.uuid, sizeof(m.uuid)) ? card_find(a, m.uuid) : NULL;
    if (!card || !card->hw || !m.serial)
        return;
    struct hw *hw = card->hw;
    pthread_mutex_lock(&hw->lock);
    for (struct hw_record *r = hw->records, *next; r; r = next) {
        next = r->next;
        if (r->pid != c->pid || r->actor != QG_HW_ACTOR_SHIM || r->serial != m.serial)
            continue;
        uint32_t tenant = r->tenant;
        answered(hw, r, &m);
        hw_review_tenant(hw, tenant);
        if (hw->tenant[tenant].failed)
            break; /* its records are gone */
    }
    pthread_mutex_unlock(&hw->lock);
    hw_ring(hw);
    hw_attend(a, &hw->key);
}
