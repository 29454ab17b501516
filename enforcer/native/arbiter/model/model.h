/* SPDX-License-Identifier: Apache-2.0
 *
 * The objects that the parts of the arbiter share. One main thread owns sockets, processes and the
 * life of every object. One real-time thread per card samples job pages and moves gates.
 * card->lock guards everything of a card, is held for microseconds, and inherits priority, so that
 * the main thread cannot hold up a card.
 */
#ifndef QGPU_MODEL_H
#define QGPU_MODEL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "policy/policy.h"
#include "qgpu_abi.h"

#define AR_MAX_PROC_CARDS QG_MAX_CARDS
/* processes of one tenant that died and are told apart until NVML lets go of them */
#define AR_MAX_DEAD    QG_MAX_PROCS
#define AR_MAX_WATCHED 8u /* tenants of one card that are looked at in a tick without a decision */
#define AR_MAX_BYTES   (1ull << 48) /* of one process on one card; more is garbage */

struct user;
struct job;
struct hw;
struct porter;
struct trace_ring;
struct card;
struct tenant;

enum conn_kind { CONN_TENANT = 1, CONN_CONTROL = 2 };

/* One accepted connection. */
struct conn {
    struct key key; /* first */
    struct conn *next;
    enum conn_kind kind;
    uint64_t id; /* no other ever has it */
    int fd, pidfd;
    pid_t pid;
    uid_t uid;
    struct user *user; /* CONN_TENANT: whose it is; NULL when it is dead */
    uint32_t nslots;   /* so many slots were taken over it; registered: at least one */
    bool registered, dead;
    bool lent;             /* a porter takes its next message */
    struct porter *porter; /* who does; NULL: none has been found yet */
    bool watches;          /* CONN_CONTROL: receives QG_CTL_DIED */
    /* the same: so many deaths, in order; of later ones it hears when its socket has room */
    uint64_t told;
    uint64_t opened_ns;
    uint64_t since_ns, bucket_ns;
    uint32_t bucket;
};

/* A process that registered, alive until its pidfd says otherwise. */
struct proc {
    struct key key; /* first */
    struct proc *next;
    pid_t pid;
    bool dead; /* freed at the end of the pass: events may still name it */
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
    struct proc *proc;  /* NULL = free */
    struct conn *conn;  /* over which it registered, NULL after that ended */
    uint64_t lost_ns;   /* atomic: when it ended, 0 = it has not: written without the card's lock */
    uint64_t launches;  /* highest value seen */
    uint64_t denied;    /* the same for mem_denied */
    uint64_t mem_used;  /* as last read, range-checked */
    uint64_t worked_ns; /* when it last showed work */
    uint64_t turn_ns;   /* when it last went on after it had stood at the gate */
    /* its groups stand still since then (0 = they do not), and what they had reached by then */
    uint64_t held_ns, reached;
};

/* A process that ended, and what it held. The memory counts until NVML does not list the process
 * any more. */
struct dead {
    pid_t pid;
    uid_t uid;
    uint64_t bytes, died_ns;
    uint64_t order;    /* the how-manieth death of this arbiter's life */
    uint64_t heard_ns; /* its death, or the last word since then that NVML lists it */
};

/* What a tenant is and may do. The main thread alone writes it; with card->lock what the card's
 * thread reads. */
struct tenant_identity {
    uint64_t job_id;
    uid_t uid;
    uint32_t job_class, share;
    uint64_t mem_cap;
    bool free;      /* isolation was none when the job started: its gate stays open */
    bool confirmed; /* named since the last QG_CTL_HELLO */
    bool expected;  /* an online tenant that should come back after a restart */
    bool revoked;   /* the job ended; processes that still live stay closed */
};

/* Charged beside the slots (tenant/dead.c). Of the main thread alone, without a lock. */
struct tenant_memory {
    struct dead dead[AR_MAX_DEAD];
    uint32_t ndead;
    uint64_t crowd, crowd_heard_ns; /* bytes of dead processes that the list had no room for */
    uint32_t ncrowd;                /* so many of them */
    uint64_t overhead;              /* contexts and modules, as qgpud read them from NVML */
};

/* Its doorbell. The card's thread writes it, and the main thread when it replaces the doorbell;
 * both with card->lock. */
struct tenant_bell {
    bool rung, muted;
    bool deaf; /* somebody filled it: nothing rings any more until it is replaced */
    /* its gate was told to ring since the last look for launches that slipped past */
    bool notified;
    uint64_t bell_ns; /* when the ring in progress was seen; 0 = none */
    uint64_t storm_from_ns, muted_until_ns;
    uint32_t storm_rings;
};

/* What its job page showed (observe/sample.c). The card's thread writes it, and the main thread
 * when a process joins or leaves; both with card->lock. */
struct tenant_sample {
    /* has work that hardware keeps from going on: it wants the card, and is not on it */
    bool frozen;
    bool launched, ran, pending, unmarked, standing, queued, doubted, stuck, busy;
    /* only launches since the last look keep it busy, all of them marked and done: about to be
     * idle */
    bool ending;
    bool ended; /* the same, also where the look before said so already */
    uint64_t signature, progress_ns, opened_ns, looked_ns, full_ns;
    /* the last look that found a sign of life: a launch, progress, somebody at the gate */
    uint64_t moved_ns;
    uint64_t longest_ns; /* it was silent for so long with work unfinished, and moved again */
    uint64_t counted_ns; /* the last look that found a launch */
    uint64_t at_work_ns; /* it had work on the card then, at the last look that tells */
    /* ... and since then none; 0 = it has some, QP_NEVER = nobody can tell when that ended */
    uint64_t ended_ns;
    /* how long what is in flight is to take, by the shim's word and within bounds */
    uint64_t expected_ns;
    uint64_t discredit_until_ns, discredit_ns;
    /* open gate and somebody stood there: sum, and since when (0 = not now) */
    uint64_t unused_ns, unused_from_ns;
    uint32_t working;       /* processes with work now, which divide the window */
    uint32_t more_contexts; /* of its processes, beside one each */
};

/* What is booked on it (observe/books.c), with card->lock: by the card's thread, and by the main
 * thread where it takes a step in its place. The totals never fall. */
struct tenant_books {
    double load; /* 0..1, was it on the card at the last sample */
    uint64_t service_seen;
    uint32_t stood; /* gate word at the last booking, and what else held then */
    bool wished, took_turns, estimated, suspended;

    /* totals, monotone */
    uint64_t launches, mem_denied, mem_used, mem_peak;
    uint64_t busy_ns, closed_preempted_ns, closed_share_ns, closed_suspended_ns, preemptions,
        close_max_ns, granted_ns;
    uint64_t held_ns;
    uint32_t close_hist[QG_CLOSE_BUCKETS];
};

/* The main thread writes the members that stand here themselves, with card->lock. */
struct tenant {
    struct card *card;
    uint32_t index; /* in card->tenants and card->policy.tenant */
    uint32_t gen;   /* tells doorbell events of a former tenant of this index */
    struct tenant_identity id;
    int gate_fd, job_fd, bell_fd;
    struct qg_gate_page *gate;
    struct qg_job_page *job;
    uint32_t nprocs, hi; /* live slots; one past the highest */
    struct slot slots[QG_MAX_PROCS];
    struct job *together; /* what this job's tenants on all cards know of each other */
    struct tenant_memory memory;
    struct tenant_bell bell;
    struct tenant_sample sample;
    struct tenant_books books;
};

/* All cards of one job (gate/together.c). */
struct job {
    struct job *next;
    uint64_t id;
    uint32_t tenants;
    uint64_t cards, preempted; /* atomic; bit = number of the card */
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
    uint64_t booked_ns; /* accounted until then */
    uint64_t armed_ns;  /* what the timer is set to */
    uint64_t wake_ns;   /* when card_step wants to run again */
    /* wake_ns is a tick: nothing happens then that could not happen a little earlier */
    bool ticking;
    uint64_t tick_ns; /* from one tick to the next */
    uint64_t hard_ns; /* be here exactly then */
    /* no tick before it needs a decision while those who work go on working (quiet.c) */
    uint64_t due_ns;
    uint64_t loud_ns;  /* from then on a tick takes one all the same */
    uint64_t quiet_ns; /* the last tick that took none; 0 = the last did */
    uint32_t nwatched; /* who is looked at then */
    uint16_t watched[AR_MAX_WATCHED];
    uint64_t beat_ns; /* last heartbeat */
    /* gates were told to ring without a barrier: look for launches once more then; 0 = no */
    uint64_t settle_ns;
    uint64_t returned_ns; /* when the last online tenant came back after a restart; 0 = none did */
    /* an online tenant lives here or is expected: what is in flight is bounded for its sake */
    bool awaits_online;
    /* one tenant lives here and no online one is expected: its window may be large */
    bool lone;
    /* no second online tenant lives here or is expected: nobody waits for the end of an online
     * one */
    bool lone_online;
    bool barrier; /* a gate that was open has just been told to ring */
    const struct arbiter *arbiter;
    struct tenant *tenants[QP_MAX_TENANTS];
    struct qp_card policy;
    struct trace_ring *trace; /* NULL = not traced */
    struct hw *hw;            /* NULL = hardware preemption was never on */
};

/* model.c */
struct card *card_find(const struct arbiter *a, const char *uuid);
struct tenant *tenant_find(const struct card *card, uint64_t job_id);
void card_kick(struct card *card);               /* wakes its thread; takes no lock */
uint64_t dead_extra(const struct tenant *t);     /* charged beside its live slots */
bool together_suspended(const struct tenant *t); /* preempted on another card? */

static inline uint64_t job_bit(const struct card *card)
{
    return 1ull << card->number;
}

#endif
