/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption: settings and questions of qgpud (QG_CTL_HARDWARE, QG_CTL_LIST). Main thread
 * only.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/base.h"
#include "hw/hw.h"
#include "hw/hw_parts.h"
#include "model/model.h"
#include "policy/policy.h"
#include "serve/serve.h"
#include "qg_msg.h"
#include "qg_time.h"

/* Major versions of the oldest and newest driver with published structures as in qgpu_rm.h. */
#define OLDEST_DRIVER 535u
#define NEWEST_DRIVER 595u

static bool sane(const struct qg_ctl_hardware *m)
{
    if (!qg_terminated(m->uuid, sizeof(m->uuid)) || m->enabled > 1 || m->weights > 1 ||
        m->method > QG_HW_TIMESLICE || m->actor > QG_HW_ACTOR_SHIM)
        return false;
    if (m->weights && (m->period_us < 1000 || m->period_us > 1000000))
        return false;
    return !m->enabled || m->ctl_rdev || (m->ctl_dev && m->ctl_ino);
}

/* A MIG instance is not supported: it has no subdevice of its own with a UUID to check. */
static bool supported(const struct qg_ctl_hardware *m)
{
    return m->driver_major >= OLDEST_DRIVER && m->driver_major <= NEWEST_DRIVER &&
           strncmp(m->uuid, "GPU-", 4) == 0;
}

static struct hw *create(struct arbiter *a, struct card *card)
{
    struct hw *hw = calloc(1, sizeof(*hw));
    pthread_mutexattr_t attr;
    if (!hw)
        return NULL;
    hw->key.kind = KEY_HARDWARE;
    hw->card = card;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&hw->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    hw->notify_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    hw->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (hw->notify_fd >= 0 && hw->timer_fd >= 0 && !ar_watch(a, hw->notify_fd, &hw->key) &&
        !ar_watch(a, hw->timer_fd, &hw->key))
        return hw;
    if (hw->notify_fd >= 0)
        close(hw->notify_fd);
    if (hw->timer_fd >= 0)
        close(hw->timer_fd);
    free(hw);
    return NULL;
}

/* Asks all processes on the card for their channel groups. Those that registered while hardware
 * preemption was off reported none, or none that was kept. */
static void ask_for_groups(const struct arbiter *a, const struct card *card)
{
    struct qg_act m = {.action = QG_ACT_REPORT};
    qg_msg_head_init(&m.head, QG_MSG_ACT, sizeof(m));
    memcpy(m.uuid, card->uuid, sizeof(m.uuid));
    for (const struct proc *p = a->procs; p; p = p->next) {
        for (uint32_t i = 0; i < p->nslots && !p->ended; i++) {
            const struct tenant *t = p->slots[i].tenant;
            const struct conn *c = t->slots[p->slots[i].slot].conn;
            if (t->card == card && c)
                qg_msg_send(c->fd, &m, sizeof(m), NULL, 0);
        }
    }
}

static bool same(const struct qg_ctl_hardware *x, const struct qg_ctl_hardware *y)
{
    size_t head = sizeof(x->head);
    return memcmp((const char *)x + head, (const char *)y + head, sizeof(*x) - head) == 0;
}

/* Continues all groups and forgets them. Processes then report them again, under the new
 * settings. */
static int apply(struct arbiter *a, struct hw *hw, const struct qg_ctl_hardware *m)
{
    bool on = m->enabled && supported(m);
    pthread_mutex_lock(&hw->lock);
    if (HW_LOAD(hw->on) == on && same(&hw->settings, m)) {
        pthread_mutex_unlock(&hw->lock);
        return 0;
    }
    hw_forget_all(hw);
    hw->settings = *m;
    for (uint32_t i = 0; i < QP_MAX_TENANTS; i++)
        hw->tenant[i].failed = false;
    if (on && !hw->running && (hw->hung >= HW_MAX_HUNG || !hw_worker_start(a, hw)))
        on = false;
    HW_STORE(hw->weights, m->weights ? m->period_us : 0);
    HW_STORE(hw->on, (uint32_t)on);
    pthread_mutex_unlock(&hw->lock);
    hw_ring(hw);
    hw_attend(a, &hw->key);
    ar_log(a, 2, "card %u (%s): hardware preemption is %s", hw->card->number, hw->card->uuid,
           on ? "on" : "off");
    if (on)
        ask_for_groups(a, hw->card);
    if (on == (bool)m->enabled)
        return 0;
    return supported(m) ? EBUSY : ENOTSUP;
}

int hw_settings(struct arbiter *a, const void *buf)
{
    struct qg_ctl_hardware m;
    memcpy(&m, buf, sizeof(m));
    if (!sane(&m))
        return EINVAL;
    struct card *card = card_find(a, m.uuid);
    if (!card)
        return ENODEV;
    if (!card->hw && m.enabled && supported(&m)) {
        struct hw *hw = create(a, card);
        if (!hw)
            return ENOMEM;
        pthread_mutex_lock(&card->lock);
        card->hw = hw;
        pthread_mutex_unlock(&card->lock);
    }
    if (card->hw)
        return apply(a, card->hw, &m);
    return m.enabled ? ENOTSUP : 0;
}

static void fill(struct qg_ctl_hwtenant *m, struct hw *hw, const struct tenant *t)
{
    const struct hw_tenant *ht = &hw->tenant[t->index];
    uint64_t now = qg_now_ns();
    for (const struct hw_record *r = hw->records; r; r = r->next) {
        if (r->tenant == t->index && r->stage == HW_USABLE)
            m->ngroups += r->reported.ngroups;
    }
    m->state = ht->failed            ? QG_HW_FAILED
               : ht->stopped_from_ns ? QG_HW_STOPPED
               : HW_LOAD(ht->usable) ? QG_HW_READY
                                     : QG_HW_NONE;
    m->actor = ht->actor;
    m->method = ht->method;
    m->stops = ht->stops;
    m->continues = ht->continues;
    m->failures = ht->failures;
    m->stopped_ns = ht->stopped_ns + (ht->stopped_from_ns ? now - ht->stopped_from_ns : 0);
    m->stop_max_ns = ht->stop_max_ns;
    memcpy(m->stop_hist, ht->stop_hist, sizeof(m->stop_hist));
    m->last_status = ht->last_status;
    if (ht->failed)
        memcpy(m->why, ht->why, sizeof(m->why));
}

static bool send_tenant(struct conn *c, struct hw *hw, const struct tenant *t)
{
    struct qg_ctl_hwtenant m = {.job_id = t->id.job_id};
    memcpy(m.uuid, t->card->uuid, sizeof(m.uuid));
    if (hw) {
        pthread_mutex_lock(&hw->lock);
        fill(&m, hw, t);
        pthread_mutex_unlock(&hw->lock);
    }
    return report_put(c, &m, QG_CTL_HWTENANT, sizeof(m));
}

/* Reports whether hardware preemption of the card is on, as qgpud ordered. */
static bool send_card(struct conn *c, const struct card *card)
{
    struct hw *hw = card->hw;
    struct qg_ctl_hwcard m = {0};
    if (!hw)
        return true;
    memcpy(m.uuid, card->uuid, sizeof(m.uuid));
    pthread_mutex_lock(&hw->lock);
    m.ordered = hw->settings.enabled;
    m.on = HW_LOAD(hw->on);
    m.hung = hw->hung;
    pthread_mutex_unlock(&hw->lock);
    return report_put(c, &m, QG_CTL_HWCARD, sizeof(m));
}

bool hw_report(struct arbiter *a, struct conn *c)
{
    for (uint32_t i = 0; i < a->ncards; i++) {
        if (!send_card(c, a->cards[i]))
            return false;
        for (uint32_t k = 0; k < QP_MAX_TENANTS; k++) {
            const struct tenant *t = a->cards[i]->tenants[k];
            if (t && !send_tenant(c, a->cards[i]->hw, t))
                return false;
        }
    }
    return true;
}
