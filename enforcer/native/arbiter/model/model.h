/* SPDX-License-Identifier: Apache-2.0
 *
 * The objects that the parts of the arbiter share. The main thread owns sockets and processes, and
 * creates and frees every object. One real-time thread per card samples job pages and moves gates.
 * The main thread does so too, after a message that changes a card or tenant, and so does the
 * thread of another card of the group (card_step). card->lock guards a card and its tenants. It is
 * held for microseconds and inherits priority. So the main thread does not delay a card's thread.
 * Exception: a job that punches holes into its page stalls the holder (docs/adr/0019).
 */
#ifndef QGPU_MODEL_H
#define QGPU_MODEL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "policy/policy.h"
#include "qgpu_messages.h"

#define AR_MAX_PROC_CARDS QG_MAX_CARDS /* cards on which one process may hold a slot */
/* Reaped processes that one tenant lists one by one until NVML no longer lists them: as many as it
 * may have live ones, so that all of them may die at once. */
#define AR_MAX_REAPED QG_MAX_PROCS
/* Tenants of one card that an idle tick samples. Chosen, not measured; with more of them every tick
 * takes a decision. */
#define AR_MAX_WATCHED 8u
/* Bytes of one process on one card: 256 TiB, far above any card. A larger number in a job page is
 * garbage and counts as this. */
#define AR_MAX_BYTES (1ull << 48)

struct user;
struct gang;
struct hw;
struct broker;
struct trace_ring;
struct card;
struct tenant;

enum conn_kind { CONN_TENANT = 1, CONN_CONTROL = 2 };

/* One accepted connection. */
struct conn {
    struct key key; /* must be the first member */
    struct conn *next;
    enum conn_kind kind;
    uint64_t id; /* unique in this run of the arbiter */
    int fd, pidfd;
    pid_t pid;
    uid_t uid;
    struct user *user; /* of the peer, only for CONN_TENANT; NULL once the connection is closed */
    uint32_t nslots;   /* slots taken over this connection; a registered one has at least one */
    bool registered;
    bool closed;           /* the struct is freed at the end of the pass: events may name it */
    bool with_broker;      /* a descriptor broker takes its next message */
    struct broker *broker; /* the one that does; NULL: none was chosen yet */
    bool watches;          /* only CONN_CONTROL: it receives QG_CTL_DIED and QG_CTL_WANT */
    /* Order number of the last death that was reported on it. Later ones follow when its socket
     * has room. */
    uint64_t reported;
    uint64_t opened_ns;
    uint64_t since_ns;  /* since when it has been unregistered; asking again renews it */
    uint64_t bucket_ns; /* when messages were last added to the bucket */
    uint32_t bucket;    /* messages that it may still send at once */
};

/* A registered process. It lives until its pidfd reports its end. */
struct proc {
    struct key key; /* must be the first member */
    struct proc *next;
    pid_t pid;
    bool ended; /* the struct is freed at the end of the pass: events may name it */
    int pidfd;
    uid_t uid;
    uint32_t nslots;
    struct {
        struct tenant *tenant;
        uint32_t slot;
    } slots[AR_MAX_PROC_CARDS];
};

/* What the arbiter remembers of a slot; the page itself belongs to the job. */
struct slot {
    struct proc *proc; /* NULL = free */
    struct conn *conn; /* over which it registered; NULL after that connection ended */
    /* when that connection ended, 0 = it has not; atomic, as it is written without the card's
     * lock */
    uint64_t lost_ns;
    uint64_t launches;         /* highest counter that was sampled */
    uint64_t denied;           /* the same of refused allocations */
    uint64_t mem_used;         /* bytes, as last sampled, within AR_MAX_BYTES */
    uint64_t worked_ns;        /* the last sample that found work */
    uint64_t resumed_ns;       /* when one of its threads last left the gate */
    uint64_t stopped_since_ns; /* its channel groups are stopped since then, 0 = they are not */
    uint64_t reached;          /* the progress of its fences at that time */
    /* Bytes that its allocations wait for, within the job's cap; atomic, as the main thread reads
     * it without the card's lock. What qgpud was told, and when: main thread only. */
    uint64_t wanted, told, told_ns;
};

/* Reaped memory: what a process held that ended. It counts until NVML no longer lists the
 * process. */
struct reaped {
    pid_t pid;
    uid_t uid;
    uint64_t bytes, died_ns;
    uint64_t order;     /* number of this death; the first since the arbiter started is 1 */
    uint64_t listed_ns; /* its death, or qgpud's last report since then that NVML lists it */
};

/* What a tenant is and may do. Only the main thread writes it. What the card's thread reads, it
 * writes with card->lock. */
struct tenant_identity {
    uint64_t job_id;
    uid_t uid;
    uint32_t job_class, share;
    /* UUID by which processes of a moved job name this card, or ""; never changes */
    char home[QG_UUID_LEN];
    uint64_t mem_cap;
    bool ungoverned; /* isolation was `none` when the job started: its gate stays open */
    bool held;       /* its memory leaves the card: its gate is closed */
    bool confirmed;  /* qgpud has named this job since its last QG_CTL_HELLO */
    bool expected;   /* online, and its processes should return after the arbiter's restart */
    bool revoked;    /* the job ended; the gate of processes that still live stays closed */
    bool left;       /* revoked, since the job left this card alone: its processes register again */
};

/* Memory that a tenant is charged beside its slots (tenant/reaped.c). Only the main thread uses it,
 * without a lock. */
struct tenant_memory {
    struct reaped reaped[AR_MAX_REAPED];
    uint32_t nreaped;
    uint64_t overflow; /* bytes of reaped processes for which the list had no room */
    uint64_t overflow_listed_ns;
    uint32_t noverflow; /* number of these processes */
    uint64_t overhead;  /* bytes of contexts and modules, which qgpud reads from NVML */
    uint32_t tokens;    /* reports of wanted bytes that may be sent at once */
    uint64_t tokens_ns; /* when some were last added */
};

/* The tenant's doorbell. The card's thread writes it, and the main thread when it replaces the
 * doorbell; both with card->lock. */
struct tenant_bell {
    bool rung, muted;
    bool jammed; /* the job filled the eventfd: nothing can ring until it is replaced */
    /* its gate asked for rings since the last check for launches that passed unnoticed */
    bool notified;
    uint64_t bell_ns; /* when the ring in progress was noticed, 0 = none */
    uint64_t storm_from_ns, muted_until_ns;
    uint32_t storm_rings;
};

/* What samples of its job page showed (observe/sample.c). The card's thread writes it, and the main
 * thread when a process joins or leaves; both with card->lock. */
struct tenant_sample {
    bool frozen; /* has work that hardware preemption stops: it is runnable, but not on the card */
    bool launched; /* its launch counters rose since the last full sample */
    bool ran;      /* it launched, or its fences showed progress, since the last full sample */
    bool pending;  /* it has fences that the GPU has not written yet */
    bool unfenced; /* it has unfenced work */
    bool at_gate;  /* a thread waits at its gate, and that is believed */
    bool queued;   /* a thread waits for room in its window */
    bool doubted;  /* a thread waits at its gate, but did not use the open gate before */
    bool stuck;    /* its reported work shows no progress for too long */
    bool busy;     /* it has work on the card or waits at its gate */
    /* It counts as busy only for launches since the last sample. All of them have fences and are
     * done, so it is about to be idle. */
    bool ending;
    bool ended;           /* the same, also where the sample before found it already */
    uint64_t signature;   /* of all its fences: another one means progress */
    uint64_t progress_ns; /* the last progress */
    uint64_t opened_ns;   /* when its gate was last opened */
    uint64_t sampled_ns;  /* the last sample, and the last one that read all slots: */
    uint64_t full_ns;
    /* the last sample with a sign of life: a launch, progress, or a thread at the gate */
    uint64_t active_ns;
    uint64_t launch_seen_ns; /* the last sample that found a launch */
    uint64_t at_work_ns;     /* the last time at which a sample proves work on the card */
    /* when that work ended; 0 = it has not, QP_NEVER = the time is unknown */
    uint64_t ended_ns;
    /* how long the unfinished work will take, as the shim reports it, within bounds */
    uint64_t expected_ns;
    /* It is doubted until then, and for how long the last time. */
    uint64_t discredit_until_ns, discredit_ns;
    /* The gate was open and a thread still waited there: the sum of such time, and since when (0 =
     * not now). */
    uint64_t unused_ns, unused_from_ns;
    uint32_t working; /* processes with work now, which divide the window */
};

/* What is accounted to a tenant (observe/accounts.c), with card->lock: by the card's thread, and by
 * the main thread where it takes a step in its place. */
struct tenant_usage {
    double load; /* 0..1: how much of the card it used at the last sample */
    uint64_t service_seen;
    uint32_t gate; /* gate word since the last accounting; the next three are of then as well */
    bool wanted, took_quanta, suspended;

    /* totals since the grant; they never fall */
    uint64_t launches, mem_denied, mem_used, mem_peak, mem_refused;
    uint64_t busy_ns, closed_preempted_ns, closed_share_ns, closed_suspended_ns, closed_idle_ns,
        preemptions, close_max_ns, granted_ns;
    uint64_t locked_out_ns; /* online: time in which offline was locked out for it */
    uint32_t close_hist[QG_CLOSE_BUCKETS];
};

/* All processes of one job on one card. The main thread writes those members that are not in a
 * struct of their own, with card->lock. */
struct tenant {
    struct card *card;
    uint32_t index; /* in card->tenants and card->policy.tenant */
    uint32_t gen;   /* makes doorbell events of a former tenant with this index stale */
    struct tenant_identity id;
    int gate_fd, job_fd, bell_fd;
    struct qg_gate_page *gate;
    struct qg_job_page *page;
    uint32_t nprocs, hi; /* live slots; one past the highest */
    struct slot slots[QG_MAX_PROCS];
    struct gang *gang; /* state that the job's tenants on all cards share */
    struct tenant_memory memory;
    struct tenant_bell bell;
    struct tenant_sample sample;
    struct tenant_usage usage;
};

/* One job on all its cards, for gang suspend (gate/gang.c). */
struct gang {
    struct gang *next;
    uint64_t id;
    uint32_t tenants;
    uint64_t cards, preempted; /* atomic; one bit per card, by its number */
};

struct card {
    char uuid[QG_UUID_LEN];
    uint32_t number;
    pthread_t thread;
    pthread_mutex_t lock;
    int epfd, timerfd, eventfd;
    bool quit;
    uint32_t lease_ms, window_us, grace_ms, flags;
    uint32_t next_gen;
    uint64_t accounted_ns; /* usage is accounted up to this time */
    uint64_t armed_ns;     /* time to which the timer is set */
    uint64_t wake_ns;      /* time at which card_step has to run again */
    bool ticking;          /* wake_ns is a periodic tick, which may as well come a little earlier */
    uint64_t tick_ns;      /* from one tick to the next */
    uint64_t hard_ns;      /* wake-up that must be exact */
    /* Before this time no tick needs a decision while the working tenants go on working
     * (idle_tick.c). */
    uint64_t due_ns;
    uint64_t decide_at_ns; /* from this time on a tick decides even if nothing changed */
    uint64_t idle_tick_ns; /* time of the last tick, if that was an idle one; else 0 */
    uint32_t nwatched;     /* tenants that an idle tick samples, by their index: */
    uint16_t watched[AR_MAX_WATCHED];
    uint64_t beat_ns; /* last heartbeat */
    /* Gates asked for rings without a barrier: check once more for launches then, 0 = no need. */
    uint64_t recheck_ns;
    uint64_t returned_ns; /* when the last online tenant returned after a restart, 0 = none did */
    /* An online tenant lives here or is expected. So unfinished offline work is bounded for it. */
    bool awaits_online;
    /* The only tenant, with no online one expected: its window may be large. */
    bool lone;
    /* No second online tenant lives here or is expected. So none waits for an online drain. */
    bool lone_online;
    /* Pauses of this class are lent to others, so little may be in flight when a tenant is back. */
    bool lends[2];
    bool barrier; /* a gate that was open has just begun to ask for rings */
    bool wants;   /* atomic: what some process wants was not told yet (tenant/wants.c) */
    bool waits;   /* allocations of jobs that come wait where the driver refuses; main thread */
    const struct arbiter *arbiter;
    struct tenant *tenants[QP_MAX_TENANTS];
    struct qp_card policy;
    struct trace_ring *trace; /* NULL = no gate trace */
    struct hw *hw;            /* NULL = hardware preemption was never on */
};

/* model.c */
struct card *card_find(const struct arbiter *a, const char *uuid);
struct tenant *tenant_find(const struct card *card, uint64_t job_id);
/* The standing tenant of the job that its processes mean by this UUID: by a home first, since a
 * moved job may have a tenant on the card that is another one's home. NULL: there is none. */
struct tenant *tenant_named(const struct arbiter *a, uint64_t job_id, const char *uuid);
/* The same, on another card than `card`, and only by the name; confirmed: only one that qgpud has
 * named since its last QG_CTL_HELLO. The later one, if there are two. */
struct tenant *tenant_twin(const struct arbiter *a, uint64_t job_id, const char *name,
                           const struct card *card, bool confirmed);
/* the UUID by which the job's processes name the tenant's card */
const char *tenant_name(const struct tenant *t);
void card_kick(struct card *card);     /* wakes its thread; takes no lock */
void wants_changed(struct card *card); /* wakes the main thread, to tell it; takes no lock */
/* bytes that the tenant is charged beside its live slots */
uint64_t reaped_extra(const struct tenant *t);
/* gang suspend: is its job preempted on another card? */
bool gang_suspended(const struct tenant *t);

static inline uint64_t job_bit(const struct card *card)
{
    return 1ull << card->number;
}

#endif
