/* SPDX-License-Identifier: Apache-2.0
 *
 * Reaped memory, and contexts and modules: what a tenant is charged beside its live slots. A
 * process that ended may still hold memory on the card. The arbiter reports each such death to
 * qgpud, which asks NVML. qgpud reports at intervals that NVML still lists the process, and once
 * that it does not. Without any report the memory stays charged for `answer_ms`. Then it counts as
 * free. Otherwise a node without a qgpud would refuse its jobs memory for ever. Main thread only;
 * the sum is stored in the gate page.
 */
#include <errno.h>
#include <string.h>

#include "base/base.h"
#include "model/model.h"
#include "peer/peer.h"
#include "policy/policy.h"
#include "tenant/tenant.h"
#include "qg_msg.h"
#include "qg_time.h"

/* Deaths reported to one watcher in one pass of the main loop, a system call each. Chosen, not
 * measured. */
#define REPORTS_PER_PASS 64

static uint64_t answer_ns(const struct arbiter *a)
{
    return (uint64_t)a->answer_ms * QP_MS;
}

static uint64_t bounded(uint64_t bytes)
{
    return bytes < AR_MAX_BYTES ? bytes : AR_MAX_BYTES;
}

static void publish_extra(struct tenant *t)
{
    __atomic_store_n(&t->gate->mem_extra, reaped_extra(t), __ATOMIC_RELEASE);
}

static struct qg_ctl_process death_message(const struct tenant *t, pid_t pid, uid_t uid,
                                           uint64_t bytes)
{
    struct qg_ctl_process m = {
        .job_id = t->id.job_id, .pid = (uint32_t)pid, .uid = uid, .mem_used = bytes};
    memcpy(m.uuid, t->card->uuid, sizeof(m.uuid));
    qg_msg_head_init(&m.head, QG_CTL_DIED, sizeof(m));
    return m;
}

static void each_with_reaped(struct arbiter *a,
                             void (*fn)(struct arbiter *, struct tenant *, void *), void *arg)
{
    for (uint32_t i = 0; i < a->ncards; i++) {
        for (uint32_t k = 0; k < QP_MAX_TENANTS; k++) {
            struct tenant *t = a->cards[i]->tenants[k];
            if (t && (t->memory.nreaped || t->memory.noverflow))
                fn(a, t, arg);
        }
    }
}

struct unreported {
    uint64_t after;
    const struct tenant *tenant;
    const struct reaped *first; /* the first death after `after` */
};

static void first_unreported(struct arbiter *a, struct tenant *t, void *arg)
{
    struct unreported *u = arg;
    (void)a;
    for (uint32_t i = 0; i < t->memory.nreaped; i++) {
        const struct reaped *d = &t->memory.reaped[i];
        if (d->order <= u->after || (u->first && u->first->order <= d->order))
            continue;
        u->first = d;
        u->tenant = t;
    }
}

/* Never blocks: deaths for which the socket has no room now are reported when it has. */
void reaped_report(struct arbiter *a, struct conn *c)
{
    int err = 0;
    for (int i = 0; i < REPORTS_PER_PASS && !err && c->reported < a->deaths; i++) {
        struct unreported next = {.after = c->reported};
        each_with_reaped(a, first_unreported, &next);
        if (next.first) {
            struct qg_ctl_process m =
                death_message(next.tenant, next.first->pid, next.first->uid, next.first->bytes);
            err = qg_msg_send(c->fd, &m, sizeof(m), NULL, 0);
        }
        if (!err)
            c->reported = next.first ? next.first->order : a->deaths;
    }
    if (!err || err == -EAGAIN)
        err = ar_watch_room(a, c->fd, &c->key, c->reported < a->deaths);
    if (err)
        conn_close(a, c);
}

static void report_to_watchers(struct arbiter *a)
{
    for (struct conn *c = a->conns; c; c = c->next) {
        /* one that lacks earlier deaths as well gets this one in its order, when it has room */
        if (!c->closed && c->watches && c->reported + 1 == a->deaths)
            reaped_report(a, c);
    }
}

/* Reports a death that is not on the list. A watcher whose socket is full misses it; the memory is
 * then released after `answer_ms`. */
static void report_overflow(struct arbiter *a, const struct qg_ctl_process *m)
{
    for (struct conn *c = a->conns; c; c = c->next) {
        if (!c->closed && c->watches)
            qg_msg_send(c->fd, m, sizeof(*m), NULL, 0);
    }
}

static void drop(struct arbiter *a, struct tenant *t, uint32_t i)
{
    t->memory.reaped[i] = t->memory.reaped[--t->memory.nreaped];
    a->nreaped--;
}

/* True: it is on the list. False: it is in the overflow. This comes before the report, so that
 * qgpud's answer can only release this process. */
static bool list_or_overflow(struct arbiter *a, struct tenant *t, pid_t pid, uid_t uid,
                             uint64_t bytes)
{
    uint64_t now = qg_now_ns();
    if (t->memory.nreaped < AR_MAX_REAPED) {
        t->memory.reaped[t->memory.nreaped++] = (struct reaped){.pid = pid,
                                                                .uid = uid,
                                                                .bytes = bytes,
                                                                .died_ns = now,
                                                                .order = ++a->deaths,
                                                                .listed_ns = now};
        a->nreaped++;
        return true;
    }
    if (!t->memory.noverflow++)
        a->nreaped++;
    t->memory.overflow = bounded(t->memory.overflow + bytes);
    t->memory.overflow_listed_ns = now;
    return false;
}

static void forget_overflow(struct arbiter *a, struct tenant *t)
{
    if (t->memory.noverflow)
        a->nreaped--;
    t->memory.noverflow = 0;
    t->memory.overflow = 0;
}

/* The bytes are what the process reported of itself. So they are bounded by its job's memory cap.
 * If no connection ever asked for deaths, nothing is kept: no report would release it. */
void reaped_add(struct arbiter *a, struct tenant *t, pid_t pid, uid_t uid, uint64_t bytes)
{
    if (!a->watched)
        return;
    if (bytes > t->id.mem_cap)
        bytes = t->id.mem_cap;
    bytes = bounded(bytes);
    if (t->memory.nreaped == AR_MAX_REAPED && !bytes)
        return; /* the list has no room, and there is nothing to charge */
    bool listed = list_or_overflow(a, t, pid, uid, bytes);
    publish_extra(t);
    if (listed) {
        report_to_watchers(a);
    } else {
        struct qg_ctl_process m = death_message(t, pid, uid, bytes);
        report_overflow(a, &m);
    }
}

/* Releases one process. If two on the list had the same pid, it is the older one. A pid that is not
 * on the list belongs to the overflow. Only the sum of its bytes is known. So it is released with
 * its last process. */
void reaped_gone(struct arbiter *a, struct tenant *t, pid_t pid)
{
    uint32_t found = t->memory.nreaped;
    for (uint32_t i = 0; i < t->memory.nreaped; i++) {
        if (t->memory.reaped[i].pid == pid &&
            (found == t->memory.nreaped ||
             t->memory.reaped[i].died_ns < t->memory.reaped[found].died_ns))
            found = i;
    }
    if (found < t->memory.nreaped)
        drop(a, t, found);
    else if (t->memory.noverflow == 1)
        forget_overflow(a, t);
    else if (t->memory.noverflow)
        t->memory.noverflow--;
    publish_extra(t);
}

/* If two on the list had the same pid, both stay charged: NVML may mean either. */
void reaped_listed(struct tenant *t, pid_t pid)
{
    uint64_t now = qg_now_ns();
    bool found = false;
    for (uint32_t i = 0; i < t->memory.nreaped; i++) {
        if (t->memory.reaped[i].pid != pid)
            continue;
        t->memory.reaped[i].listed_ns = now;
        found = true;
    }
    if (!found)
        t->memory.overflow_listed_ns = now;
}

void reaped_forget(struct arbiter *a, struct tenant *t)
{
    while (t->memory.nreaped)
        drop(a, t, 0);
    forget_overflow(a, t);
}

void reaped_overhead(struct tenant *t, uint64_t bytes, uint64_t context)
{
    t->memory.overhead = bounded(bytes);
    publish_extra(t);
    __atomic_store_n(&t->gate->mem_context, bounded(context), __ATOMIC_RELEASE);
}

void reaped_watch(struct arbiter *a, struct conn *c)
{
    c->watches = a->watched = true;
    c->reported = 0;
    reaped_report(a, c);
}

struct due {
    uint64_t now, next;
};

static void release_expired(struct arbiter *a, struct tenant *t, void *arg)
{
    struct due *due = arg;
    for (uint32_t i = 0; i < t->memory.nreaped;) {
        uint64_t until = t->memory.reaped[i].listed_ns + answer_ns(a);
        if (until > due->now) {
            if (until < due->next)
                due->next = until;
            i++;
            continue;
        }
        ar_log(
            a, 1,
            "process %d of job %llu ended, for %d ms qgpud did not say whether its memory is free; "
            "it counts as free now",
            (int)t->memory.reaped[i].pid, (unsigned long long)t->id.job_id, a->answer_ms);
        drop(a, t, i);
    }
    uint64_t until = t->memory.overflow_listed_ns + answer_ns(a);
    if (t->memory.noverflow && until <= due->now)
        forget_overflow(a, t);
    else if (t->memory.noverflow && until < due->next)
        due->next = until;
    publish_extra(t);
}

int reaped_sweep(struct arbiter *a, uint64_t now)
{
    struct due due = {.now = now, .next = QP_NEVER};
    if (!a->nreaped)
        return -1;
    each_with_reaped(a, release_expired, &due);
    return due.next == QP_NEVER ? -1 : (int)((due.next - now) / QP_MS) + 1;
}
