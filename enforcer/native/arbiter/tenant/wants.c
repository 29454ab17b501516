/* SPDX-License-Identifier: Apache-2.0
 *
 * What allocations wait for that the driver refused (docs/specs/control.md). Threads of cards read
 * the bytes that a process wrote into its slot, when it rang. The main thread tells the connections
 * that watch, and writes what qgpud answers into the gate pages. The bytes are a hint of the job:
 * each process is heard TOLD_PER_SECOND times a second at most, and each job on a card
 * TENANT_PER_SECOND times after a burst. What changes meanwhile is told once.
 */
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"
#include "model/model.h"
#include "peer/peer.h"
#include "policy/policy.h"
#include "tenant/tenant.h"
#include "qg_msg.h"
#include "qg_time.h"

enum {
    TOLD_PER_SECOND = 20, /* of one process; docs/specs/limits.md */
    /* Of one job on a card, and at once: all its processes may begin and end to wait. Chosen, not
     * measured. */
    TENANT_PER_SECOND = 100,
    TENANT_BURST = 256,
    /* Threads that one answer wakes. Further ones wake by their own timeout, so that no job delays
     * the main thread. Chosen, not measured. */
    MAX_WAKE = 128
};

static struct key key_wants = {KEY_WANTS};

int wants_start(struct arbiter *a)
{
    a->wants_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return a->wants_fd < 0 ? -errno : ar_watch(a, a->wants_fd, &key_wants);
}

static bool watched_now(const struct arbiter *a)
{
    for (const struct conn *c = a->conns; c; c = c->next) {
        if (!c->closed && c->watches)
            return true;
    }
    return false;
}

/* False: a socket is full. It hears it later; the others then hear it twice, which says nothing
 * new. */
static bool tell(struct arbiter *a, const struct tenant *t, uint32_t slot, uint64_t wanted)
{
    const struct proc *p = t->slots[slot].proc;
    struct qg_ctl_process m = {
        .job_id = t->id.job_id, .pid = (uint32_t)p->pid, .uid = p->uid, .mem_used = wanted};
    bool all = true;
    memcpy(m.uuid, t->card->uuid, sizeof(m.uuid));
    qg_msg_head_init(&m.head, QG_CTL_WANT, sizeof(m));
    for (struct conn *c = a->conns; c; c = c->next) {
        if (!c->closed && c->watches)
            all &= qg_msg_send(c->fd, &m, sizeof(m), NULL, 0) != -EAGAIN;
    }
    return all;
}

static bool take_token(struct tenant_memory *m, uint64_t now)
{
    uint64_t earned = (now - m->tokens_ns) / (1000 * QP_MS / TENANT_PER_SECOND);
    if (earned) {
        m->tokens = m->tokens + earned > TENANT_BURST ? TENANT_BURST : m->tokens + (uint32_t)earned;
        m->tokens_ns = now;
    }
    if (!m->tokens)
        return false;
    m->tokens--;
    return true;
}

/* True: something is left to tell. */
static bool review_tenant(struct arbiter *a, struct tenant *t, uint64_t now)
{
    bool left = false;
    for (uint32_t i = 0; i < t->hi; i++) {
        struct slot *s = &t->slots[i];
        uint64_t wanted = __atomic_load_n(&s->wanted, __ATOMIC_RELAXED);
        if (!s->proc || wanted == s->told)
            continue;
        bool due = now >= s->told_ns + 1000 * QP_MS / TOLD_PER_SECOND;
        if (!due || !take_token(&t->memory, now) || !tell(a, t, i, wanted)) {
            left = true;
            continue;
        }
        s->told = wanted;
        s->told_ns = now;
    }
    return left;
}

static bool review_card(struct arbiter *a, struct card *card, uint64_t now)
{
    bool left = false;
    if (!__atomic_exchange_n(&card->wants, false, __ATOMIC_SEQ_CST))
        return false;
    for (uint32_t i = 0; i < QP_MAX_TENANTS; i++)
        left |= card->tenants[i] && review_tenant(a, card->tenants[i], now);
    if (left)
        __atomic_store_n(&card->wants, true, __ATOMIC_SEQ_CST);
    return left;
}

int wants_review(struct arbiter *a, uint64_t now)
{
    uint64_t count;
    bool left = false;
    if (read(a->wants_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
        return -1;
    for (uint32_t i = 0; i < a->ncards && watched_now(a); i++)
        left |= review_card(a, a->cards[i], now);
    return left ? 1000 / TOLD_PER_SECOND : -1;
}

void wants_watch(struct arbiter *a)
{
    for (uint32_t i = 0; i < a->ncards; i++) {
        for (uint32_t k = 0; k < QP_MAX_TENANTS; k++) {
            struct tenant *t = a->cards[i]->tenants[k];
            for (uint32_t j = 0; t && j < t->hi; j++)
                t->slots[j].told = t->slots[j].told_ns = 0;
        }
        __atomic_store_n(&a->cards[i]->wants, true, __ATOMIC_SEQ_CST);
    }
}

void wants_left(struct arbiter *a, struct tenant *t, uint32_t slot)
{
    if (t->slots[slot].told)
        tell(a, t, slot, 0); /* where a socket is full, the death says it, too */
}

static void store(struct tenant *t, uint32_t *word, uint32_t value)
{
    uint32_t *changes = &t->gate->mem_changes;
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    __atomic_store_n(changes, *changes + 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, changes, FUTEX_WAKE, MAX_WAKE, NULL, NULL, 0);
}

void wants_reset(struct tenant *t, bool wait)
{
    if (t->gate->mem_wait != wait)
        store(t, &t->gate->mem_wait, wait);
}

static void order(struct tenant *t, uint32_t action)
{
    struct qg_gate_page *gate = t->gate;
    if (t->id.revoked)
        return;
    switch (action) {
    case QG_MEMORY_WAIT:
    case QG_MEMORY_NOWAIT:
        wants_reset(t, action == QG_MEMORY_WAIT);
        break;
    case QG_MEMORY_RETRY:
        store(t, &gate->mem_retry, gate->mem_retry + 1);
        break;
    default:
        store(t, &gate->mem_final, gate->mem_final + 1);
        break;
    }
}

int wants_order(struct arbiter *a, const struct qg_ctl_memory *m)
{
    struct card *card = card_find(a, m->uuid);
    if (!card)
        return -ENODEV;
    if (!m->job_id && m->action <= QG_MEMORY_NOWAIT)
        card->waits = m->action == QG_MEMORY_WAIT;
    for (uint32_t i = 0; i < QP_MAX_TENANTS; i++) {
        struct tenant *t = card->tenants[i];
        if (t && (!m->job_id || t->id.job_id == m->job_id))
            order(t, m->action);
    }
    return 0;
}
