/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a tenant: granted, joined by processes, left by them, revoked. Main thread only. Each
 * function holds the card's lock while it changes something. It takes a new decision before it
 * unlocks. So a process never sees a gate from before the change.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"
#include "card/card.h"
#include "fds/fds.h"
#include "gate/gate.h"
#include "hw/hw.h"
#include "model/model.h"
#include "observe/observe.h"
#include "peer/peer.h"
#include "policy/policy.h"
#include "tenant/tenant.h"
#include "qg_msg.h"
#include "qg_seal.h"
#include "qg_time.h"

/* Recovery goes on for 250 ms after the last online tenant is back. A shim that lost its arbiter
 * tries to register each 100 ms. It reports its work only after that: two tries, and some room. */
#define RETURN_NS (250 * QP_MS)

/* A connection younger than 1 s may be of the job's NVML library. That ends with its answer. The
 * shim of the same process then registers again later. Chosen, not measured. */
#define PROBE_CONN_NS (1000 * QP_MS)

static void tenant_free(struct arbiter *a, struct tenant *t)
{
    reaped_forget(a, t);
    gang_put(a, t);
    if (t->gate)
        munmap(t->gate, QG_PAGE);
    if (t->page)
        munmap(t->page, sizeof(*t->page));
    if (t->gate_fd >= 0)
        close(t->gate_fd);
    if (t->job_fd >= 0)
        close(t->job_fd);
    if (t->bell_fd >= 0)
        close(t->bell_fd);
    free(t);
}

/* The job can write this page. A process that joins gets a correct header, whatever another process
 * of the job did to it. */
static void write_job_header(struct tenant *t)
{
    t->page->magic = QG_MAGIC;
    t->page->version = QG_ABI_VERSION;
    t->page->size = sizeof(*t->page);
    t->page->nslots = QG_MAX_PROCS;
}

static void write_headers(struct tenant *t)
{
    t->gate->magic = QG_MAGIC;
    t->gate->version = QG_ABI_VERSION;
    t->gate->size = sizeof(*t->gate);
    t->gate->job_id = t->id.job_id;
    write_job_header(t);
    /* until the first decision: online may launch, offline may not */
    t->gate->flags = QG_GATE_TRACK;
    if (t->id.job_class == QG_CLASS_OFFLINE)
        t->gate->flags |= QG_GATE_CLOSED | QG_GATE_WHY_SHARE;
    t->gate->heartbeat_ns = qg_now_ns();
}

/* A job may punch holes into a memory file. Readers of its page wait for that, the card's thread
 * too. A BPF array has no holes. It is an option: a real driver may not be able to register one for
 * the GPU's fences. */
static int create_job_page(struct arbiter *a, struct tenant *t)
{
    void *page = NULL;
    int err = -ENOSYS;
    if (a->job_array)
        err = qg_kept_create("qgpu_job", sizeof(*t->page), &t->job_fd, &page);
    if (err && a->job_array) {
        ar_log(a, 1,
               "no BPF array for job pages (%s; it takes Linux 5.5 and CAP_BPF): memory files "
               "serve, but a hostile job "
               "can delay its card's gates with them",
               strerror(-err));
        a->job_array = false;
    }
    if (err)
        err = qg_shared_create("qgpu-job", sizeof(*t->page), 0, &t->job_fd, &page);
    t->page = page;
    return err;
}

static struct tenant *tenant_create(struct arbiter *a, const struct qg_ctl_grant *g, int *err)
{
    struct tenant *t = calloc(1, sizeof(*t));
    void *gate = NULL;
    *err = -ENOMEM;
    if (!t)
        return NULL;
    t->gate_fd = t->job_fd = t->bell_fd = -1;
    t->id.job_id = g->job_id;
    t->id.job_class = g->job_class;
    memcpy(t->id.home, g->home, sizeof(t->id.home));
    t->usage.granted_ns = qg_now_ns();
    *err = qg_shared_create("qgpu-gate", QG_PAGE, 1, &t->gate_fd, &gate);
    t->gate = gate;
    t->gang = gang_get(g->job_id);
    if (!t->gang)
        *err = -ENOMEM;
    if (!*err)
        *err = create_job_page(a, t);
    if (!*err) {
        t->bell_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (t->bell_fd < 0)
            *err = -errno;
    }
    if (*err) {
        tenant_free(a, t);
        return NULL;
    }
    write_headers(t);
    return t;
}

static void tenant_update(struct tenant *t, const struct qg_ctl_grant *g)
{
    t->id.uid = g->uid;
    t->id.job_class = g->job_class;
    t->id.share = g->share;
    t->id.mem_cap = g->mem_cap;
    t->id.ungoverned = g->flags & QG_GRANT_UNGOVERNED;
    t->id.held = g->flags & QG_GRANT_HELD;
    t->id.confirmed = true;
    t->id.revoked = false;
    uint64_t context = g->mem_context < AR_MAX_BYTES ? g->mem_context : AR_MAX_BYTES;
    __atomic_store_n(&t->gate->mem_context, context, __ATOMIC_RELEASE);
    gates_settings(t, qg_now_ns());
}

/* Decides with the change in place. The card's thread then only has to set its timer. */
static void step_and_unlock(struct card *card)
{
    card_step(card, qg_now_ns());
    pthread_mutex_unlock(&card->lock);
    card_kick(card);
}

/* Forgets the process in a slot, but not the process itself. */
static void leave_slot(struct proc *p, const struct tenant *t)
{
    for (uint32_t i = 0; i < p->nslots; i++) {
        if (p->slots[i].tenant != t)
            continue;
        p->slots[i] = p->slots[--p->nslots];
        return;
    }
}

static void clear_slot(struct arbiter *a, struct tenant *t, uint32_t slot);

/* Lets a revoked tenant go although processes of it live. The gate in the page that they keep stays
 * closed. They register again. */
static void send_away(struct arbiter *a, struct tenant *t)
{
    for (uint32_t i = 0, left = t->nprocs; left; i++) {
        struct conn *c = t->slots[i].conn;
        if (!t->slots[i].proc)
            continue;
        wants_left(a, t, i);
        leave_slot(t->slots[i].proc, t);
        left--;
        hw_process_left(a, t, i);
        clear_slot(a, t, i); /* the last one frees the tenant */
        if (c)
            conn_close(a, c);
    }
}

/* Its processes hear that their job has no grant. */
static void evict(struct arbiter *a, struct tenant *t)
{
    ar_log(a, 1, "job %llu ended on %s; its %u processes make room there for another job",
           (unsigned long long)t->id.job_id, t->card->uuid, t->nprocs);
    send_away(a, t);
}

static uint32_t revoked_of(const struct card *card, uid_t uid)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < QP_MAX_TENANTS; i++)
        n += card->tenants[i] && card->tenants[i]->id.revoked && card->tenants[i]->id.uid == uid;
    return n;
}

/* A new job needs a place on a card that has none: the user with most revoked tenants loses the
 * oldest of them. A grant that stands never makes room. */
static void make_room(struct arbiter *a, const struct card *card)
{
    struct tenant *found = NULL;
    uint32_t most = 0;
    for (uint32_t i = 0; i < QP_MAX_TENANTS; i++) {
        struct tenant *t = card->tenants[i];
        if (!t)
            return;
        uint32_t n = t->id.revoked ? revoked_of(card, t->id.uid) : 0;
        if (n > most || (n && n == most && t->gen < found->gen)) {
            most = n;
            found = t;
        }
    }
    if (found)
        evict(a, found);
}

/* While two tenants of a job have one name, which is while it moves, both must be held: a process
 * may be on either. A tenant never changes its name. */
static bool names_fit(const struct arbiter *a, const struct card *card, const struct tenant *t,
                      const struct qg_ctl_grant *g)
{
    const char *name = g->home[0] ? g->home : g->uuid;
    if (t && strncmp(t->id.home, g->home, QG_UUID_LEN) != 0)
        return false;
    return g->flags & QG_GRANT_HELD || !tenant_twin(a, g->job_id, name, card, true);
}

int tenant_grant(struct arbiter *a, const struct qg_ctl_grant *g)
{
    struct card *card = card_find(a, g->uuid);
    if (!card)
        return -ENODEV;
    struct tenant *t = tenant_find(card, g->job_id), *fresh = NULL;
    int err = 0;
    if (t && t->id.revoked &&
        (t->id.uid != g->uid || strncmp(t->id.home, g->home, QG_UUID_LEN) != 0)) {
        evict(a, t); /* Slurm's job numbers began anew: processes of the former job live */
        t = NULL;
    }
    if (t && t->id.uid != g->uid)
        return -EEXIST; /* a job never changes its user */
    if (!names_fit(a, card, t, g))
        return -EINVAL;
    if (!t)
        make_room(a, card);
    if (!t && !(t = fresh = tenant_create(a, g, &err)))
        return err;
    pthread_mutex_lock(&card->lock);
    if (fresh && (err = card_add(card, fresh)) != 0) {
        pthread_mutex_unlock(&card->lock);
        fresh->card = NULL;
        tenant_free(a, fresh);
        return err;
    }
    if (fresh || t->id.revoked)
        wants_reset(t, card->waits);
    if (fresh && !a->ever_synced) {
        t->id.expected = g->job_class == QG_CLASS_ONLINE;
        card->policy.recovery_until_ns = t->usage.granted_ns + (uint64_t)card->grace_ms * QP_MS;
    }
    tenant_update(t, g);
    step_and_unlock(card);
    users_changed();
    hw_tenant_changed(t);
    return 0;
}

static void tenant_end(struct arbiter *a, struct tenant *t)
{
    struct card *card = t->card;
    pthread_mutex_lock(&card->lock);
    card_remove(card, t);
    /* Processes may keep the page for long, and must not find its heartbeat too old. */
    if (t->id.left)
        __atomic_store_n(&t->gate->heartbeat_ns, QG_BEAT_LEFT, __ATOMIC_RELEASE);
    step_and_unlock(card);
    tenant_free(a, t);
}

void tenant_vacate(struct arbiter *a, struct tenant *t)
{
    struct card *card = t->card;
    users_changed();
    ar_log(a, 2, "job %llu left %s; its %u processes there register again",
           (unsigned long long)t->id.job_id, card->uuid, t->nprocs);
    pthread_mutex_lock(&card->lock);
    t->id.revoked = t->id.left = true;
    step_and_unlock(card);
    if (t->nprocs)
        send_away(a, t);
    else
        tenant_end(a, t);
}

void tenant_revoke(struct arbiter *a, struct tenant *t)
{
    struct card *card = t->card;
    if (tenant_twin(a, t->id.job_id, tenant_name(t), card, false)) {
        tenant_vacate(a, t);
        return;
    }
    users_changed();
    if (t->nprocs == 0) {
        tenant_end(a, t);
        return;
    }
    ar_log(a, 1, "job %llu ended on %s, but %u of its processes live; their gate stays closed",
           (unsigned long long)t->id.job_id, card->uuid, t->nprocs);
    pthread_mutex_lock(&card->lock);
    t->id.revoked = true;
    wants_reset(t, false);
    sample_classify(t, qg_now_ns());
    step_and_unlock(card);
    hw_tenant_revoked(a, t);
}

/* Recovery: after a restart offline waits for the list of grants. Then it waits until the online
 * tenants on it are back, and for RETURN_NS. When a process registers, the arbiter does not know
 * yet whether its job has work. */
void recovery_review(struct card *card, bool list_complete)
{
    if (!card->policy.recovery_until_ns || !list_complete)
        return;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        const struct tenant *t = card->tenants[i];
        if (t && t->id.expected && !t->nprocs && !t->id.revoked)
            return;
    }
    uint64_t until = card->returned_ns ? card->returned_ns + RETURN_NS : 0;
    if (until < card->policy.recovery_until_ns)
        card->policy.recovery_until_ns = until;
}

/* The slot this process already has, else a free one, else none. */
static int choose_slot(const struct tenant *t, const struct proc *p)
{
    int chosen = -ENOSPC;
    for (uint32_t i = 0; i < QG_MAX_PROCS; i++) {
        if (t->slots[i].proc == p)
            return (int)i;
        if (!t->slots[i].proc && chosen < 0)
            chosen = (int)i;
    }
    return chosen;
}

static void take_slot(struct tenant *t, uint32_t i, struct proc *p, struct conn *c,
                      uint64_t mem_used)
{
    struct qg_proc *page = &t->page->procs[i];
    struct slot *s = &t->slots[i];
    bool fresh = !s->proc;
    if (fresh) {
        memset(page, 0, sizeof(*page));
        memset(s, 0, sizeof(*s));
        t->nprocs++;
        if (t->hi <= i)
            t->hi = i + 1;
    } else if (s->conn != c) {
        /* The process closed its connection or runs another program now. Its old fences say
         * nothing any more. */
        memset(page->fences, 0, sizeof(page->fences));
        __atomic_store_n(&page->unfenced, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&page->mem_pending, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&page->mem_contexts, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&page->made, 0, __ATOMIC_RELAXED);
    }
    s->proc = p;
    if (s->conn != c) {
        if (s->conn)
            conn_drop_slot(s->conn);
        conn_add_slot(c);
    }
    s->conn = c;
    __atomic_store_n(&s->lost_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&page->mem_used, mem_used, __ATOMIC_RELAXED);
    __atomic_store_n(&page->pid, (uint32_t)p->pid, __ATOMIC_RELEASE);
}

int tenant_join(struct arbiter *a, struct tenant *t, struct proc *p, struct conn *c,
                uint64_t mem_used, uint32_t *slot)
{
    int at = choose_slot(t, p);
    if (at < 0)
        return at;
    /* a new connection, while the end of the old one was not noticed yet */
    bool moved = t->slots[at].proc == p && t->slots[at].conn && t->slots[at].conn != c;
    /* Two copies of the shim in one process would write one slot. Each would hide what the other
     * holds. */
    if (moved && conn_alive(t->slots[at].conn))
        return qg_now_ns() - t->slots[at].conn->opened_ns < PROBE_CONN_NS ? -EAGAIN : -EBUSY;
    if (t->slots[at].proc != p) {
        if (p->nslots == AR_MAX_PROC_CARDS)
            return -E2BIG;
        p->slots[p->nslots].tenant = t;
        p->slots[p->nslots++].slot = (uint32_t)at;
    }
    int bell = t->nprocs ? -1 : eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_lock(&t->card->lock);
    /* Earlier processes of the job may have made the doorbell blocking and full; a ring would never
     * return. They may also have left numbers in free slots, which shims add up. */
    if (bell >= 0)
        card_fresh_bell(t->card, t, bell);
    if (!t->nprocs)
        memset(t->page, 0, sizeof(*t->page));
    write_job_header(t);
    take_slot(t, (uint32_t)at, p, c, mem_used);
    t->sample.progress_ns = qg_now_ns(); /* work from before may still run on the card */
    if (t->id.expected)
        t->card->returned_ns = t->sample.progress_ns;
    t->id.expected = false;
    recovery_review(t->card, a->ever_synced);
    t->bell.rung = true; /* makes this step sample its page */
    step_and_unlock(t->card);
    *slot = (uint32_t)at;
    if (moved)
        hw_connection_ended(a, t, *slot);
    return 0;
}

/* Counts an allocation in progress as well: the driver may have made it before the process died. */
static uint64_t bytes_held(const struct tenant *t, uint32_t slot)
{
    uint64_t pending = __atomic_load_n(&t->page->procs[slot].mem_pending, __ATOMIC_RELAXED);
    return t->slots[slot].mem_used + (pending < AR_MAX_BYTES ? pending : AR_MAX_BYTES);
}

void tenant_leave(struct arbiter *a, struct tenant *t, uint32_t slot)
{
    struct card *card = t->card;
    hw_process_left(a, t, slot); /* first: its control device here keeps its memory on the card */
    pthread_mutex_lock(&card->lock);
    sample_counters(t);
    sample_full(t, qg_now_ns());
    pthread_mutex_unlock(&card->lock);
    wants_left(a, t, slot);
    /* before its slot is cleared, so that its memory never looks free in between */
    reaped_add(a, t, t->slots[slot].proc->pid, t->slots[slot].proc->uid, bytes_held(t, slot));
    clear_slot(a, t, slot);
}

static void clear_slot(struct arbiter *a, struct tenant *t, uint32_t slot)
{
    struct card *card = t->card;
    if (t->slots[slot].conn)
        conn_drop_slot(t->slots[slot].conn);
    pthread_mutex_lock(&card->lock);
    /* Of a job that moves, each process counts by its old slot until all are on the new page. */
    if (!t->id.left)
        memset(&t->page->procs[slot], 0, sizeof(t->page->procs[slot]));
    memset(&t->slots[slot], 0, sizeof(t->slots[slot]));
    t->nprocs--;
    while (t->hi && !t->slots[t->hi - 1].proc)
        t->hi--;
    if (!t->nprocs)
        t->sample.launched = t->sample.ran = t->sample.pending = t->sample.unfenced =
            t->sample.at_gate = t->sample.queued = t->sample.busy = false;
    sample_full(t, qg_now_ns());
    step_and_unlock(card);
    if (t->id.revoked && !t->nprocs)
        tenant_end(a, t);
}
