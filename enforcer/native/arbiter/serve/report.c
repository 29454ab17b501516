/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers to qgpud's questions: the usage of all tenants, and the registered processes. Many
 * messages go into one packet. A system call per tenant would be most of the cost.
 */
#include <string.h>

#include "base/base.h"
#include "hw/hw.h"
#include "model/model.h"
#include "observe/observe.h"
#include "policy/policy.h"
#include "serve/serve.h"
#include "qg_msg.h"

static struct {
    size_t used;
    char bytes[QG_LIST_BYTES];
} packet; /* used by the main thread only; empty between two questions */

static bool send_packet(struct conn *c)
{
    bool sent = !packet.used || qg_msg_send(c->fd, packet.bytes, packet.used, NULL, 0) == 0;
    packet.used = 0;
    return sent;
}

bool report_put(struct conn *c, void *message, uint32_t type, size_t size)
{
    struct qg_msg_head *head = message;
    qg_msg_head_init(head, type, size);
    if (packet.used + size > sizeof(packet.bytes) && !send_packet(c))
        return false;
    memcpy(packet.bytes + packet.used, message, size);
    packet.used += size;
    return true;
}

static uint32_t flags_of(const struct tenant *t)
{
    const struct qp_tenant *q = &t->card->policy.tenant[t->index];
    uint32_t flags = 0;
    if (t->sample.doubted || t->sample.stuck)
        flags |= QG_TENANT_PASSED_OVER;
    if (q->ungoverned || t->card->policy.ungoverned)
        flags |= QG_TENANT_UNGOVERNED;
    if (t->usage.suspended)
        flags |= QG_TENANT_SUSPENDED;
    return flags;
}

static void fill(struct tenant *t, struct qg_ctl_tenant *m)
{
    const struct card *card = t->card;
    m->job_id = t->id.job_id;
    memcpy(m->uuid, card->uuid, sizeof(m->uuid));
    m->uid = t->id.uid;
    m->job_class = t->id.job_class;
    m->share = t->id.share;
    m->gate = t->gate->flags;
    m->procs = t->nprocs;
    m->busy = t->sample.busy;
    m->mem_cap = t->id.mem_cap;
    m->mem_used = t->usage.mem_used;
    m->mem_peak = t->usage.mem_peak;
    m->mem_denied = t->usage.mem_denied;
    m->launches = t->usage.launches;
    m->busy_ns = t->usage.busy_ns;
    m->closed_preempted_ns = t->usage.closed_preempted_ns;
    m->closed_share_ns = t->usage.closed_share_ns;
    m->preemptions = t->usage.preemptions;
    m->gate_close_max_ns = t->usage.close_max_ns;
    m->granted_ns = t->usage.granted_ns;
    m->flags = flags_of(t);
    m->policy = card->policy.cls[t->id.job_class == QG_CLASS_ONLINE ? 0 : 1].policy;
    const struct qp_tenant *q = &card->policy.tenant[t->index];
    m->deficit_ns = m->policy == QG_POLICY_FIXED_SHARE ? q->budget_ns : q->deficit_ns;
    m->mem_extra = reaped_extra(t);
    m->closed_suspended_ns = t->usage.closed_suspended_ns;
    m->held_ns = t->usage.locked_out_ns;
    m->closed_idle_ns = t->usage.closed_idle_ns;
    m->mem_refused = t->usage.mem_refused;
    memcpy(m->close_hist, t->usage.close_hist, sizeof(m->close_hist));
}

static bool send_tenant(struct conn *c, struct tenant *t)
{
    struct qg_ctl_tenant m = {0};
    pthread_mutex_lock(&t->card->lock);
    sample_counters(t);
    fill(t, &m);
    pthread_mutex_unlock(&t->card->lock);
    return report_put(c, &m, QG_CTL_TENANT, sizeof(m));
}

static bool report_tenants(struct arbiter *a, struct conn *c)
{
    for (uint32_t i = 0; i < a->ncards; i++) {
        for (uint32_t k = 0; k < QP_MAX_TENANTS; k++) {
            struct tenant *t = a->cards[i]->tenants[k];
            if (t && !send_tenant(c, t))
                return false;
        }
    }
    return true;
}

static bool send_process(struct conn *c, const struct tenant *t, uint32_t slot)
{
    const struct qg_proc *page = &t->page->procs[slot];
    const struct proc *p = t->slots[slot].proc;
    uint64_t used = __atomic_load_n(&page->mem_used, __ATOMIC_RELAXED);
    uint64_t pending = __atomic_load_n(&page->mem_pending, __ATOMIC_RELAXED);
    struct qg_ctl_process m = {.job_id = t->id.job_id, .pid = (uint32_t)p->pid, .uid = p->uid};
    memcpy(m.uuid, t->card->uuid, sizeof(m.uuid));
    m.mem_used = used < AR_MAX_BYTES ? used : AR_MAX_BYTES;
    m.mem_pending = pending < AR_MAX_BYTES ? pending : AR_MAX_BYTES;
    uint64_t reserved = __atomic_load_n(&page->mem_contexts, __ATOMIC_RELAXED);
    m.mem_contexts = reserved < m.mem_used ? reserved : m.mem_used;
    m.contexts = __atomic_load_n(&page->made, __ATOMIC_RELAXED);
    return report_put(c, &m, QG_CTL_PROC, sizeof(m));
}

static bool report_processes(struct arbiter *a, struct conn *c)
{
    for (const struct proc *p = a->procs; p; p = p->next) {
        for (uint32_t i = 0; i < p->nslots && !p->ended; i++) {
            if (!send_process(c, p->slots[i].tenant, p->slots[i].slot))
                return false;
        }
    }
    return true;
}

static bool report_items(struct arbiter *a, struct conn *c, uint32_t of)
{
    switch (of) {
    case QG_CTL_STATS:
        return report_tenants(a, c);
    case QG_CTL_PROCS:
        return report_processes(a, c);
    default:
        return hw_report(a, c);
    }
}

bool report_list(struct arbiter *a, struct conn *c, uint32_t of)
{
    struct qg_ctl_ack end = {.boot_id = a->boot_id};
    packet.used = 0; /* left from the last question if its connection ended in between */
    return report_items(a, c, of) && report_put(c, &end, QG_CTL_END, sizeof(end)) && send_packet(c);
}
