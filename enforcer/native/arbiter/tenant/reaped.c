/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tenant is charged beside its live slots: contexts and modules as NVML counts them, and
 * processes that died but may still lie on the card. qgpud, which sees NVML, is told of each death,
 * says again and again that the card still holds the memory, and when it let go. While it is away,
 * hangs, or gets no answer of the driver, the memory stays charged; a minute without a word ends
 * that, so that a node whose qgpud never returns does not lock its jobs out for ever. Main thread
 * only; the gate page takes one store.
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

#define REPORTS_PER_PASS 64 /* deaths; then others of the main loop have their turn */

static uint64_t answer_ns(const struct arbiter *a)
{
    return (uint64_t)a->answer_ms * QP_MS;
}

static uint64_t cut(uint64_t bytes)
{
    return bytes < AR_MAX_BYTES ? bytes : AR_MAX_BYTES;
}

static void publish(struct tenant *t)
{
    __atomic_store_n(&t->gate->mem_extra, reaped_extra(t), __ATOMIC_RELEASE);
}

static struct qg_ctl_process message(const struct tenant *t, pid_t pid, uid_t uid, uint64_t bytes)
{
    struct qg_ctl_process m = {
        .job_id = t->id.job_id, .pid = (uint32_t)pid, .uid = uid, .mem_used = bytes};
    memcpy(m.uuid, t->card->uuid, sizeof(m.uuid));
    qg_msg_head_init(&m.head, QG_CTL_DIED, sizeof(m));
    return m;
}

static void each(struct arbiter *a, void (*fn)(struct arbiter *, struct tenant *, void *),
                 void *arg)
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

/* Nobody waits for a watcher: what its socket has no room for now, it is told when it has read. */
void reaped_report(struct arbiter *a, struct conn *c)
{
    int err = 0;
    for (int i = 0; i < REPORTS_PER_PASS && !err && c->reported < a->deaths; i++) {
        struct unreported next = {.after = c->reported};
        each(a, first_unreported, &next);
        if (next.first) {
            struct qg_ctl_process m =
                message(next.tenant, next.first->pid, next.first->uid, next.first->bytes);
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

static void tell(struct arbiter *a)
{
    for (struct conn *c = a->conns; c; c = c->next) {
        /* one that is behind waits for room already, and hears of the others in their order */
        if (!c->closed && c->watches && c->reported + 1 == a->deaths)
            reaped_report(a, c);
    }
}

/* Overflow deaths are not queued. A watcher whose socket is full misses them, and the memory is
 * released after `answer_ms`. */
static void tell_once(struct arbiter *a, const struct qg_ctl_process *m)
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

/* On the list: true. Whoever is told of is there or in the crowd, so that the answer lets go of
 * nobody else. */
static bool remember(struct arbiter *a, struct tenant *t, pid_t pid, uid_t uid, uint64_t bytes)
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
    t->memory.overflow = cut(t->memory.overflow + bytes);
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

/* A process cannot have held more than its job may; what it wrote itself is a hint like any other.
 * Where no connection ever asked to watch, no answer will say that the memory is free. */
void reaped_add(struct arbiter *a, struct tenant *t, pid_t pid, uid_t uid, uint64_t bytes)
{
    if (!a->watched)
        return;
    if (bytes > t->id.mem_cap)
        bytes = t->id.mem_cap;
    bytes = cut(bytes);
    if (t->memory.nreaped == AR_MAX_REAPED && !bytes)
        return; /* holds nothing, and the list has no room */
    bool listed = remember(a, t, pid, uid, bytes);
    publish(t);
    if (listed) {
        tell(a);
    } else {
        struct qg_ctl_process m = message(t, pid, uid, bytes);
        tell_once(a, &m);
    }
}

/* One answer lets go of one process: should the number have been given away meanwhile, the older
 * one is meant. Who is not on the list belongs to the crowd; that is free when nobody of it is
 * left, since it is not known who held what. */
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
    publish(t);
}

/* Should two on the list have had this number, both stay: which of them the driver means nobody
 * knows. */
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

void reaped_overhead(struct tenant *t, uint64_t bytes)
{
    t->memory.overhead = cut(bytes);
    publish(t);
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

static void let_go(struct arbiter *a, struct tenant *t, void *arg)
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
        ar_log(a, 1,
               "process %d of job %llu ended, for %d ms nobody said whether its memory is free; it "
               "counts as free now",
               (int)t->memory.reaped[i].pid, (unsigned long long)t->id.job_id, a->answer_ms);
        drop(a, t, i);
    }
    uint64_t until = t->memory.overflow_listed_ns + answer_ns(a);
    if (t->memory.noverflow && until <= due->now)
        forget_overflow(a, t);
    else if (t->memory.noverflow && until < due->next)
        due->next = until;
    publish(t);
}

int reaped_sweep(struct arbiter *a, uint64_t now)
{
    struct due due = {.now = now, .next = QP_NEVER};
    if (!a->nreaped)
        return -1;
    each(a, let_go, &due);
    return due.next == QP_NEVER ? -1 : (int)((due.next - now) / QP_MS) + 1;
}
