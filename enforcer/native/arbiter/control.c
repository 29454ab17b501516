/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands of qgpud. The peer is root, but a message that makes no sense is still refused, never guessed at.
 */
#include <errno.h>
#include <string.h>

#include "arbiter.h"
#include "qg_msg.h"
#include "qg_time.h"

static bool policy_known(uint32_t p) { return p >= QG_POLICY_BEST_EFFORT && p <= QG_POLICY_BURST_SHARE; }

static bool card_sane(const struct qg_ctl_card *m) {
    return qg_terminated(m->uuid, sizeof(m->uuid)) && m->uuid[0] && m->idle_release_ms <= 60000 && m->window_us >= 50 &&
           m->window_us <= 1000000 && m->slice_us >= 100 && m->slice_us <= 1000000 && m->lease_ms >= 100 &&
           m->lease_ms <= 600000 && m->grace_ms <= 600000 && policy_known(m->policy_online) &&
           policy_known(m->policy_offline) && !(m->flags & ~QG_CARD_UNGOVERNED);
}

static void card_apply(struct card *card, const struct qg_ctl_card *m) {
    card->lease_ms = m->lease_ms;
    card->window_us = m->window_us;
    card->grace_ms = m->grace_ms;
    card->policy.idle_release_ns = m->idle_release_ms * QP_MS;
    card->policy.slice_ns = m->slice_us * 1000ull;
    card->policy.cls[0].policy = m->policy_online;
    card->policy.cls[1].policy = m->policy_offline;
    card->policy.ungoverned = m->flags & QG_CARD_UNGOVERNED;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        if (!card->tenants[i]) continue;
        __atomic_store_n(&card->tenants[i]->gate->window_us, m->window_us, __ATOMIC_RELAXED);
        __atomic_store_n(&card->tenants[i]->gate->lease_ms, m->lease_ms, __ATOMIC_RELAXED);
    }
}

static int on_card(struct arbiter *a, const void *buf) {
    struct qg_ctl_card m;
    int err = 0;
    memcpy(&m, buf, sizeof(m));
    if (!card_sane(&m)) return EINVAL;
    if (m.policy_online == QG_POLICY_FIXED_SHARE || m.policy_offline == QG_POLICY_FIXED_SHARE) return ENOTSUP;
    struct card *card = card_find(a, m.uuid);
    if (!card && !(card = card_create(a, m.uuid, &err))) return -err;
    pthread_mutex_lock(&card->lock);
    card_apply(card, &m);
    card_step(card, qg_now_ns());
    pthread_mutex_unlock(&card->lock);
    card_kick(card);
    return 0;
}

static int on_grant(struct arbiter *a, const void *buf) {
    struct qg_ctl_grant m;
    memcpy(&m, buf, sizeof(m));
    bool class_known = m.job_class == QG_CLASS_ONLINE || m.job_class == QG_CLASS_OFFLINE;
    if (!m.job_id || !class_known || m.share < 1 || m.share > 100 || m.flags) return EINVAL;
    if (!qg_terminated(m.uuid, sizeof(m.uuid))) return EINVAL;
    return -tenant_grant(a, &m);
}

/* Walks all tenants; `fn` may end the one it is given. */
static void each_tenant(struct arbiter *a, void (*fn)(struct arbiter *, struct tenant *, uint64_t), uint64_t arg) {
    for (uint32_t i = 0; i < a->ncards; i++) {
        for (uint32_t k = 0; k < QP_MAX_TENANTS; k++) {
            if (a->cards[i]->tenants[k]) fn(a, a->cards[i]->tenants[k], arg);
        }
    }
}

static void unconfirm(struct arbiter *a, struct tenant *t, uint64_t arg) {
    (void)a, (void)arg;
    t->confirmed = false;
}

static void revoke_job(struct arbiter *a, struct tenant *t, uint64_t job_id) {
    if (t->job_id == job_id && !t->revoked) tenant_revoke(a, t);
}

static void revoke_unconfirmed(struct arbiter *a, struct tenant *t, uint64_t arg) {
    (void)arg;
    if (!t->confirmed && !t->revoked) tenant_revoke(a, t);
}

static void on_hello(struct arbiter *a) {
    a->synced = false;
    each_tenant(a, unconfirm, 0);
}

static void on_synced(struct arbiter *a) {
    each_tenant(a, revoke_unconfirmed, 0);
    a->synced = a->ever_synced = true;
    for (uint32_t i = 0; i < a->ncards; i++) {
        struct card *card = a->cards[i];
        pthread_mutex_lock(&card->lock);
        recovery_review(card, true);
        card_step(card, qg_now_ns());
        pthread_mutex_unlock(&card->lock);
        card_kick(card);
    }
}

static void fill(struct tenant *t, struct qg_ctl_tenant *m) {
    m->job_id = t->job_id;
    memcpy(m->uuid, t->card->uuid, sizeof(m->uuid));
    m->uid = t->uid;
    m->job_class = t->job_class;
    m->share = t->share;
    m->gate = t->gate->flags;
    m->procs = t->nprocs;
    m->busy = t->busy;
    m->mem_cap = t->mem_cap;
    m->mem_used = t->mem_used;
    m->mem_peak = t->mem_peak;
    m->mem_denied = t->mem_denied;
    m->launches = t->launches;
    m->busy_ns = t->busy_ns;
    m->closed_preempted_ns = t->closed_preempted_ns;
    m->closed_share_ns = t->closed_share_ns;
    m->preemptions = t->preemptions;
    m->gate_close_max_ns = t->close_max_ns;
    m->granted_ns = t->granted_ns;
}

static bool send_stats(struct arbiter *a, struct conn *c) {
    for (uint32_t i = 0; i < a->ncards; i++) {
        struct card *card = a->cards[i];
        for (uint32_t k = 0; k < QP_MAX_TENANTS; k++) {
            struct qg_ctl_tenant m = {0};
            struct tenant *t = card->tenants[k];
            if (!t) continue;
            pthread_mutex_lock(&card->lock);
            sample_counters(t);
            fill(t, &m);
            pthread_mutex_unlock(&card->lock);
            qg_msg_head_init(&m.head, QG_CTL_TENANT, sizeof(m));
            if (qg_msg_send(c->fd, &m, sizeof(m), NULL, 0) != 0) return false;
        }
    }
    return true;
}

static bool reply(struct arbiter *a, struct conn *c, uint32_t type, int status) {
    struct qg_ctl_ack ack = {.status = status, .boot_id = a->boot_id};
    qg_msg_head_init(&ack.head, type, sizeof(ack));
    return qg_msg_send(c->fd, &ack, sizeof(ack), NULL, 0) == 0;
}

bool control_message(struct arbiter *a, struct conn *c, const void *buf, size_t len) {
    struct qg_msg_head head;
    struct qg_ctl_revoke revoke;
    if (len < sizeof(head)) return false;
    memcpy(&head, buf, sizeof(head));
    static const size_t sizes[] = {[QG_CTL_HELLO] = sizeof(struct qg_msg_head), [QG_CTL_CARD] = sizeof(struct qg_ctl_card),
                                   [QG_CTL_GRANT] = sizeof(struct qg_ctl_grant), [QG_CTL_REVOKE] = sizeof(revoke),
                                   [QG_CTL_SYNCED] = sizeof(struct qg_msg_head), [QG_CTL_STATS] = sizeof(struct qg_msg_head)};
    if (head.type < QG_CTL_HELLO || head.type > QG_CTL_STATS) return reply(a, c, QG_CTL_ACK, EPROTO);
    if (!qg_msg_is(buf, len, head.type, sizes[head.type])) return reply(a, c, QG_CTL_ACK, EPROTO);
    switch (head.type) {
    case QG_CTL_HELLO: on_hello(a); break;
    case QG_CTL_CARD: return reply(a, c, QG_CTL_ACK, on_card(a, buf));
    case QG_CTL_GRANT: return reply(a, c, QG_CTL_ACK, on_grant(a, buf));
    case QG_CTL_REVOKE:
        memcpy(&revoke, buf, sizeof(revoke));
        each_tenant(a, revoke_job, revoke.job_id);
        break;
    case QG_CTL_SYNCED: on_synced(a); break;
    default: return send_stats(a, c) && reply(a, c, QG_CTL_END, 0);
    }
    return reply(a, c, QG_CTL_ACK, 0);
}
