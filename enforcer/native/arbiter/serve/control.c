/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands of qgpud. The peer is root, but a message with invalid values is still refused.
 */
#include <errno.h>
#include <string.h>

#include "base/base.h"
#include "card/card.h"
#include "fds/fds.h"
#include "gate/gate.h"
#include "hw/hw.h"
#include "model/model.h"
#include "policy/policy.h"
#include "serve/serve.h"
#include "tenant/tenant.h"
#include "qg_msg.h"
#include "qg_time.h"

#define CARD_FLAGS  (QG_CARD_UNGOVERNED | QG_CARD_GANG_SUSPEND)
#define GRANT_FLAGS (QG_GRANT_UNGOVERNED | QG_GRANT_HELD)

static bool policy_known(uint32_t p)
{
    return p >= QG_POLICY_FIRST && p <= QG_POLICY_LAST;
}

/* Bounds of the settings: those that gres/config/schema.py has for the same keys of qgpu.yaml;
 * online_delay is 0 as well, where idle_release is not auto. */
static bool card_sane(const struct qg_ctl_card *m)
{
    return qg_terminated(m->uuid, sizeof(m->uuid)) && m->uuid[0] && m->idle_release_ms <= 60000 &&
           m->window_us >= 50 && m->window_us <= 1000000 && m->slice_us >= 100 &&
           m->slice_us <= 1000000 && m->lease_ms >= 100 && m->lease_ms <= 600000 &&
           m->grace_ms <= 600000 && policy_known(m->policy_online) &&
           policy_known(m->policy_offline) && !(m->flags & ~CARD_FLAGS) &&
           m->online_delay_us <= 100000 && m->online_share <= 100;
}

/* Ends the quantum in progress earlier where the slice was made shorter. */
static void shorten_quanta(struct qp_card *policy, uint64_t now)
{
    for (int k = 0; k < 2; k++) {
        if (policy->cls[k].slice_end_ns > now + policy->slice_ns)
            policy->cls[k].slice_end_ns = now + policy->slice_ns;
        uint64_t longest = now + QP_LONG_QUANTUM * policy->slice_ns;
        if (policy->cls[k].quantum_end_ns > longest)
            policy->cls[k].quantum_end_ns = longest;
    }
}

static void card_apply(struct card *card, const struct qg_ctl_card *m, uint64_t now)
{
    card->lease_ms = m->lease_ms;
    card->window_us = m->window_us;
    card->grace_ms = m->grace_ms;
    card->policy.idle_release_ns = m->idle_release_ms * QP_MS;
    card->policy.online_delay_ns = m->online_delay_us * 1000ull;
    card->policy.online_share = m->online_share;
    card->policy.slice_ns = m->slice_us * 1000ull;
    card->policy.cls[0].policy = m->policy_online;
    card->policy.cls[1].policy = m->policy_offline;
    card->policy.ungoverned = m->flags & QG_CARD_UNGOVERNED;
    card->flags = m->flags;
    shorten_quanta(&card->policy, now);
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        if (card->tenants[i])
            gates_settings(card->tenants[i], now);
    }
}

static int on_card(struct arbiter *a, const void *buf)
{
    struct qg_ctl_card m;
    int err = 0;
    memcpy(&m, buf, sizeof(m));
    if (!card_sane(&m))
        return EINVAL;
    struct card *card = card_find(a, m.uuid);
    if (!card && !(card = card_create(a, m.uuid, &err)))
        return -err;
    pthread_mutex_lock(&card->lock);
    uint64_t now = qg_now_ns();
    card_apply(card, &m, now);
    card_step(card, now);
    pthread_mutex_unlock(&card->lock);
    card_kick(card);
    return 0;
}

static int on_grant(struct arbiter *a, const void *buf)
{
    struct qg_ctl_grant m;
    memcpy(&m, buf, sizeof(m));
    bool class_known = m.job_class == QG_CLASS_ONLINE || m.job_class == QG_CLASS_OFFLINE;
    if (!m.job_id || !class_known || m.share < 1 || m.share > 100)
        return EINVAL;
    if (m.flags & ~GRANT_FLAGS || !qg_terminated(m.uuid, sizeof(m.uuid)) ||
        !qg_terminated(m.home, sizeof(m.home)) || strcmp(m.home, m.uuid) == 0)
        return EINVAL;
    return -tenant_grant(a, &m);
}

/* Calls `fn` for all tenants; it may end its tenant. */
static void each_tenant(struct arbiter *a, void (*fn)(struct arbiter *, struct tenant *, uint64_t),
                        uint64_t arg)
{
    for (uint32_t i = 0; i < a->ncards; i++) {
        for (uint32_t k = 0; k < QP_MAX_TENANTS; k++) {
            if (a->cards[i]->tenants[k])
                fn(a, a->cards[i]->tenants[k], arg);
        }
    }
}

static void unconfirm(struct arbiter *a, struct tenant *t, uint64_t arg)
{
    (void)a, (void)arg;
    t->id.confirmed = false;
}

static void revoke_job(struct arbiter *a, struct tenant *t, uint64_t job_id)
{
    if (t->id.job_id == job_id && !t->id.revoked)
        tenant_revoke(a, t);
}

static void revoke_unconfirmed(struct arbiter *a, struct tenant *t, uint64_t arg)
{
    (void)arg;
    if (!t->id.confirmed && !t->id.revoked)
        tenant_revoke(a, t);
}

static void on_hello(struct arbiter *a)
{
    a->synced = false;
    each_tenant(a, unconfirm, 0);
}

static void on_synced(struct arbiter *a)
{
    each_tenant(a, revoke_unconfirmed, 0);
    a->synced = a->ever_synced = true;
    users_changed();
    for (uint32_t i = 0; i < a->ncards; i++) {
        struct card *card = a->cards[i];
        pthread_mutex_lock(&card->lock);
        recovery_review(card, true);
        card_step(card, qg_now_ns());
        pthread_mutex_unlock(&card->lock);
        card_kick(card);
    }
}

static struct tenant *tenant_of(const struct arbiter *a, const char uuid[QG_UUID_LEN],
                                uint64_t job_id)
{
    const struct card *card = qg_terminated(uuid, QG_UUID_LEN) ? card_find(a, uuid) : NULL;
    return card ? tenant_find(card, job_id) : NULL;
}

/* The job may have ended meanwhile, which is no error: NULL. */
static void on_gone(struct arbiter *a, const void *buf)
{
    struct qg_ctl_process m;
    memcpy(&m, buf, sizeof(m));
    struct tenant *t = tenant_of(a, m.uuid, m.job_id);
    if (t)
        reaped_gone(a, t, (pid_t)m.pid);
}

static void on_listed(struct arbiter *a, const void *buf)
{
    struct qg_ctl_process m;
    memcpy(&m, buf, sizeof(m));
    struct tenant *t = tenant_of(a, m.uuid, m.job_id);
    if (t)
        reaped_listed(t, (pid_t)m.pid);
}

static void on_overhead(struct arbiter *a, const void *buf)
{
    struct qg_ctl_overhead m;
    memcpy(&m, buf, sizeof(m));
    struct tenant *t = tenant_of(a, m.uuid, m.job_id);
    if (t)
        reaped_overhead(t, m.bytes, m.mem_context);
}

static int on_memory(struct arbiter *a, const void *buf)
{
    struct qg_ctl_memory m;
    memcpy(&m, buf, sizeof(m));
    if (m.action < QG_MEMORY_WAIT || m.action > QG_MEMORY_FINAL ||
        !qg_terminated(m.uuid, sizeof(m.uuid)))
        return EINVAL;
    return -wants_order(a, &m);
}

static bool reply(struct arbiter *a, struct conn *c, uint32_t type, int status)
{
    struct qg_ctl_ack ack = {.status = status, .boot_id = a->boot_id};
    qg_msg_head_init(&ack.head, type, sizeof(ack));
    return qg_msg_send(c->fd, &ack, sizeof(ack), NULL, 0) == 0;
}

/* Bytes of a message of this type; 0 = qgpud does not send such a type. */
static size_t size_of(uint32_t type)
{
    switch (type) {
    case QG_CTL_HELLO:
    case QG_CTL_SYNCED:
    case QG_CTL_WATCH:
        return sizeof(struct qg_msg_head);
    case QG_CTL_CARD:
        return sizeof(struct qg_ctl_card);
    case QG_CTL_GRANT:
        return sizeof(struct qg_ctl_grant);
    case QG_CTL_REVOKE:
        return sizeof(struct qg_ctl_revoke);
    case QG_CTL_HARDWARE:
        return sizeof(struct qg_ctl_hardware);
    case QG_CTL_GONE:
    case QG_CTL_LISTED:
        return sizeof(struct qg_ctl_process);
    case QG_CTL_OVERHEAD:
        return sizeof(struct qg_ctl_overhead);
    case QG_CTL_MEMORY:
        return sizeof(struct qg_ctl_memory);
    case QG_CTL_LIST:
        return sizeof(struct qg_ctl_list);
    default:
        return 0;
    }
}

static void on_revoke(struct arbiter *a, const void *buf)
{
    struct qg_ctl_revoke m;
    memcpy(&m, buf, sizeof(m));
    struct tenant *t = m.uuid[0] ? tenant_of(a, m.uuid, m.job_id) : NULL;
    if (!m.uuid[0])
        each_tenant(a, revoke_job, m.job_id);
    else if (t)
        tenant_vacate(a, t);
}

static bool on_list(struct arbiter *a, struct conn *c, const void *buf)
{
    struct qg_ctl_list m;
    memcpy(&m, buf, sizeof(m));
    if (m.of != QG_CTL_STATS && m.of != QG_CTL_PROCS && m.of != QG_CTL_HWSTATS)
        return reply(a, c, QG_CTL_ACK, EINVAL);
    return report_list(a, c, m.of);
}

bool control_message(struct arbiter *a, struct conn *c, const void *buf, size_t len)
{
    struct qg_msg_head head;
    if (len < sizeof(head))
        return false;
    memcpy(&head, buf, sizeof(head));
    size_t want = size_of(head.type);
    if (!want || !qg_msg_is(buf, len, head.type, want))
        return reply(a, c, QG_CTL_ACK, EPROTO);
    switch (head.type) {
    case QG_CTL_HELLO:
        on_hello(a);
        break;
    case QG_CTL_CARD:
        return reply(a, c, QG_CTL_ACK, on_card(a, buf));
    case QG_CTL_GRANT:
        return reply(a, c, QG_CTL_ACK, on_grant(a, buf));
    case QG_CTL_REVOKE:
        on_revoke(a, buf);
        break;
    case QG_CTL_SYNCED:
        on_synced(a);
        break;
    case QG_CTL_GONE:
        on_gone(a, buf);
        break;
    case QG_CTL_LISTED:
        on_listed(a, buf);
        break;
    case QG_CTL_OVERHEAD:
        on_overhead(a, buf);
        break;
    case QG_CTL_MEMORY:
        return reply(a, c, QG_CTL_ACK, on_memory(a, buf));
    case QG_CTL_LIST:
        return on_list(a, c, buf);
    case QG_CTL_HARDWARE:
        return reply(a, c, QG_CTL_ACK, hw_settings(a, buf));
    case QG_CTL_WATCH:
        if (!reply(a, c, QG_CTL_ACK, 0))
            return false;
        wants_watch(a);
        reaped_watch(a, c);
        return true; /* reaped_watch() may have closed the connection already */
    default:
        return false;
    }
    return reply(a, c, QG_CTL_ACK, 0);
}
