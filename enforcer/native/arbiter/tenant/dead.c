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

#define TOLD_AT_ONCE 64 /* deaths; then others of the main loop have their turn */

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
    __atomic_store_n(&t->gate->mem_extra, dead_extra(t), __ATOMIC_RELEASE);
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
            if (t && (t->memory.ndead || t->memory.ncrowd))
                fn(a, t, arg);
        }
    }
}

struct untold {
    uint64_t after;
    const struct tenant *tenant;
    const struct dead *dead; /* the first death after that one */
};

static void first_untold(struct arbiter *a, struct tenant *t, void *arg)
{
    struct untold *u = arg;
    (void)a;
    for (uint32_t i = 0; i < t->memory.ndead; i++) {
        const struct dead *d = &t->memory.dead[i];
        if (d->order <= u->after || (u->dead && u->dead->order <= d->order))
            continue;
        u->dead = d;
        u->tenant = t;
    }
}

/* Nobody waits for a watcher: what its socket has no room for now, it is told when it has read. */
void dead_tell(struct arbiter *a, struct conn *c)
{
    int err = 0;
    for (int i = 0; i < TOLD_AT_ONCE && !err && c->told < a->deaths; i++) {
        struct untold next = {.after = c->told};
        each(a, first_untold, &next);
        if (next.dead) {
            struct qg_ctl_process m =
                message(next.tenant, next.dead->pid, next.dead->uid, next.dead->bytes);
            err = qg_msg_send(c->fd, &m, sizeof(m), NULL, 0);
        }
        if (!err)
            c->told = next.dead ? next.dead->order : a->deaths;
    }
    if (!err || err == -EAGAIN)
        err = ar_watch_room(a, c->fd, &c->key, c->told < a->deaths);
    if (err)
        conn_close(a, c);
}

static void tell(struct arbiter *a)
{
    for (struct conn *c = a->conns; c; c = c->next) {
        /* one that is behind waits for room already, and hears of the others in their order */
        if (!c->dead && c->watches && c->told + 1 == a->deaths)
            dead_tell(a, c);
    }
}

/* Overflow deaths are not queued. A watcher whose socket is full misses them, and the memory is
 * released after `answer_ms`. */
static void tell_once(struct arbiter *a, const struct qg_ctl_process *m)
{
    for (struct conn *c = a->conns; c; c = c->next) {
        if (!c->dead && c->watches)
            qg_msg_send(c->fd, m, sizeof(*m), NULL, 0);
    }
}

static void drop(struct arbiter *a, struct tenant *t, uint32_t i)
{
    t->memory.dead[i] = t->memory.dead[--t->memory.ndead];
    a->ndead--;
}

/* On the list: true. Whoever is told of is there or in the crowd, so that the answer lets go of
 * nobody else. */
static bool remember(struct arbiter *a, struct tenant *t, pid_t pid, uid_t uid, uint64_t bytes)
{
    uint64_t now = qg_now_ns();
    if (t->memory.ndead < AR_MAX_DEAD) {
        t->memory.dead[t->memory.ndead++] = (struct dead){.pid = pid,
                                                          .uid = uid,
                                                          .bytes = bytes,
                                                          .died_ns = now,
                                                          .order = ++a->deaths,
                                                          .heard_ns = now};
        a->ndead++;
        return true;
    }
    if (!t->memory.ncrowd++)
        a->ndead++;
    t->memory.crowd = cut(t->memory.crowd + bytes);
    t->memory.crowd_heard_ns = now;
    return false;
}

static void forget_crowd(struct arbiter *a, struct tenant *t)
{
    if (t->memory.ncrowd)
        a->ndead--;
    t->memory.ncrowd = 0;
    t->memory.crowd = 0;
}

/* A process cannot have held more than its job may; what it wrote itself is a hint like any other.
 * Where no connection ever asked to watch, no answer will say that the memory is free. */
void dead_add(struct arbiter *a, struct tenant *t, pid_t pid, uid_t uid, uint64_t bytes)
{
    if (!a->watched)
        return;
    if (bytes > t->id.mem_cap)
        bytes = t->id.mem_cap;
    bytes = cut(bytes);
    if (t->memory.ndead == AR_MAX_DEAD && !bytes)
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
void dead_gone(struct arbiter *a, struct tenant *t, pid_t pid)
{
    uint32_t found = t->memory.ndead;
    for (uint32_t i = 0; i < t->memory.ndead; i++) {
        if (t->memory.dead[i].pid == pid &&
            (found == t->memory.ndead || t->memory.dead[i].died_ns < t->memory.dead[found].died_ns))
            found = i;
    }
    if (found < t->memory.ndead)
        drop(a, t, found);
    else if (t->memory.ncrowd == 1)
        forget_crowd(a, t);
    else if (t->memory.ncrowd)
        t->memory.ncrowd--;
    publish(t);
}

/* Should two on the list have had this number, both stay: which of them the driver means nobody
 * knows. */
void dead_listed(struct tenant *t, pid_t pid)
{
    uint64_t now = qg_now_ns();
    bool found = false;
    for (uint32_t i = 0; i < t->memory.ndead; i++) {
        if (t->memory.dead[i].pid != pid)
            continue;
        t->memory.dead[i].heard_ns = now;
        found = true;
    }
    if (!found)
        t->memory.crowd_heard_ns = now;
}

void dead_forget(struct arbiter *a, struct tenant *t)
{
    while (t->memory.ndead)
        drop(a, t, 0);
    forget_crowd(a, t);
}

void dead_overhead(struct tenant *t, uint64_t bytes)
{
    t->memory.overhead = cut(bytes);
    publish(t);
}

void dead_watch(struct arbiter *a, struct conn *c)
{
    c->watches = a->watched = true;
    c->told = 0;
    dead_tell(a, c);
}

struct due {
    uint64_t now, next;
};

static void let_go(struct arbiter *a, struct tenant *t, void *arg)
{
    struct due *due = arg;
    for (uint32_t i = 0; i < t->memory.ndead;) {
        uint64_t until = t->memory.dead[i].heard_ns + answer_ns(a);
        if (until > due->now) {
            if (until < due->next)
                due->next = until;
            i++;
            continue;
        }
        ar_log(a, 1,
               "process %d of job %llu ended, for %d ms nobody said whether its memory is free; it "
               "counts as free now",
               (int)t->memory.dead[i].pid, (unsigned long long)t->id.job_id, a->answer_ms);
        drop(a, t, i);
    }
    uint64_t until = t->memory.crowd_heard_ns + answer_ns(a);
    if (t->memory.ncrowd && until <= due->now)
        forget_crowd(a, t);
    else if (t->memory.ncrowd && until < due->next)
        due->next = until;
    publish(t);
}

int dead_sweep(struct arbiter *a, uint64_t now)
{
    struct due due = {.now = now, .next = QP_NEVER};
    if (!a->ndead)
        return -1;
    each(a, let_go, &due);
    return due.next == QP_NEVER ? -1 : (int)((due.next - now) / QP_MS) + 1;
}
