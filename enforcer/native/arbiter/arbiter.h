/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the arbiter share. One main thread owns sockets, processes and the life of
 * every object; one real-time thread per card samples job pages and moves gates. card->lock guards
 * everything of a card, is held for microseconds, and inherits priority, so that the main thread
 * cannot hold up a card.
 */
#ifndef QGPU_ARBITER_H
#define QGPU_ARBITER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/types.h>

#include "policy.h"
#include "qgpu_abi.h"

#define AR_MAX_CARDS      64u
#define AR_TRACE_EVENTS   16384u /* per card; a power of two */
#define AR_MAX_PROC_CARDS QG_MAX_CARDS
/* processes of one tenant that died and are told apart until NVML lets go of them */
#define AR_MAX_DEAD QG_MAX_PROCS
#ifndef QP_LONE_WINDOW_US
#define QP_LONE_WINDOW_US 20000u /* of a tenant that is alone on a card */
#endif
#define AR_MAX_WATCHED 8u /* tenants of one card that are looked at in a tick without a decision */
#define AR_MAX_BYTES   (1ull << 48) /* of one process on one card; more is garbage */

struct card;
struct tenant;
struct job;
struct hw;
struct porter;

/* epoll keys of the main thread: what kind of thing, and (as its first member) the thing */
enum key_kind {
    KEY_REGISTER = 1,
    KEY_CONTROL,
    KEY_SIGNAL,
    KEY_CONN,
    KEY_PROC,
    KEY_HARDWARE,
    KEY_PORTER
};
struct key {
    enum key_kind kind;
};

enum conn_kind { CONN_TENANT = 1, CONN_CONTROL = 2 };

/* How many registrations may be looked at. */
struct budget {
    uint32_t left;
    uint64_t at_ns;
};

/* Who has connections, or a grant. */
struct user {
    struct user *next;
    uid_t uid;
    uint32_t conns, waiting; /* to enforcer.sock, and those of them that are not registered */
    bool stranger;           /* no grant of his is known on this node */
    bool proven; /* no list of grants came yet, but he showed one that only root can have made */
    struct budget budget;
};

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

struct tenant {
    struct card *card;
    uint32_t index; /* in card->tenants and card->policy.tenant */
    uint32_t gen;   /* tells doorbell events of a former tenant of this index */
    uint64_t job_id;
    uid_t uid;
    uint32_t job_class, share;
    uint64_t mem_cap;
    bool free;      /* isolation was none when the job started: its gate stays open */
    bool confirmed; /* named since the last QG_CTL_HELLO */
    bool expected;  /* an online tenant that should come back after a restart */
    bool revoked;   /* the job ended; processes that still live stay closed */
    int gate_fd, job_fd, bell_fd;
    struct qg_gate_page *gate;
    struct qg_job_page *job;
    uint32_t nprocs, hi; /* live slots; one past the highest */
    struct slot slots[QG_MAX_PROCS];
    struct job *together; /* what this job's tenants on all cards know of each other */

    /* charged beside the slots (dead.c, main thread only) */
    struct dead dead[AR_MAX_DEAD];
    uint32_t ndead;
    uint64_t crowd, crowd_heard_ns; /* bytes of dead processes that the list had no room for */
    uint32_t ncrowd;                /* so many of them */
    uint64_t overhead;              /* contexts and modules, as qgpud read them from NVML */

    /* doorbell */
    bool rung, muted;
    bool deaf; /* somebody filled it: nothing rings any more until it is replaced */
    /* its gate was told to ring since the last look for launches that slipped past */
    bool notified;
    uint64_t bell_ns; /* when the ring in progress was seen; 0 = none */
    uint64_t storm_from_ns, muted_until_ns;
    uint32_t storm_rings;

    /* samples */
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
    double load;            /* 0..1, was it on the card at the last sample */
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

struct trace_ring {
    struct qg_gate_event events[AR_TRACE_EVENTS];
    uint64_t head, tail, dropped; /* head: card lock holder; tail: main thread */
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

struct arbiter {
    const char *run_dir;
    int level;       /* 0 error, 1 warning, 2 info, 3 debug */
    int rt_priority; /* 0 = not asked for */
    /* not a word of qgpud about a dead process for so long: its memory counts as free */
    int answer_ms;
    /* job pages are memory files: asked for, or the kernel refused anything better */
    bool job_file;
    /* markers without any progress for so long: what they stand for is taken for hung, or a lie */
    int hang_s;
    uid_t owner; /* effective uid: root, or the tester */
    uint64_t boot_id, start_ns;
    bool synced; /* a full list of grants was received */
    /* somebody watched deaths since the start: a qgpud that will say when memory is free */
    bool watched;
    bool ever_synced; /* false: this start's first list, its tenants may have lived before */
    int epfd, register_fd, control_fd, signal_fd, trace_fd, lock_fd;
    struct card *cards[AR_MAX_CARDS];
    uint32_t ncards;
    struct proc *procs;
    struct conn *conns;
    uint32_t nconns; /* of tenants and strangers */
    uint32_t ndead;  /* entries in the lists of dead processes of all tenants */
    uint64_t deaths; /* so many were ever put on these lists */
};

/* keys of the two listeners and of the signal descriptor */
extern struct key key_register, key_control, key_signal;
int ar_watch(const struct arbiter *a, int fd, struct key *key); /* main.c */
/* the same descriptor: also when it takes more */
int ar_watch_room(const struct arbiter *a, int fd, struct key *key, bool on);

/* log.c */
void ar_log(const struct arbiter *a, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* card.c: everything below needs card->lock unless it says otherwise */
struct card *card_create(struct arbiter *a, const char *uuid, int *err); /* takes no lock */
void card_stop(struct card *card);                                       /* takes no lock */
void card_kick(struct card *card);
void card_step(struct card *card, uint64_t now);
int card_add(struct card *card, struct tenant *t);
void card_remove(struct card *card, struct tenant *t);
void card_watch_bell(struct card *card, struct tenant *t, bool on);
void card_fresh_bell(struct card *card, struct tenant *t, int fd); /* takes fd for its own */

/* How long ago that was. A gate that moved in this very step is younger than the step, which counts
 * as no time at all. */
static inline uint64_t ar_since(uint64_t then, uint64_t now)
{
    return now > then ? now - then : 0;
}

/* sample.c */
void sample_quick(struct tenant *t, uint64_t now);
void sample_full(struct tenant *t, uint64_t now);
void sample_behind(struct tenant *t, uint64_t now);
void sample_counters(struct tenant *t);
/* sets windows anew when the first neighbour came, or the last one went */
void sample_lonely(struct card *card);
uint32_t sample_window(const struct tenant *t);
void sample_classify(struct tenant *t, uint64_t now);
bool sample_launched_since(const struct tenant *t);
void sample_bell(struct tenant *t, uint64_t now);            /* its doorbell was rung */
void sample_turn(struct tenant *t, bool open, uint64_t now); /* its gate was opened or closed */
void account(struct card *card, uint64_t now);

/* quiet.c */
/* a tick is due: true if a look at who works was all it needed */
bool quiet_tick(struct card *card, uint64_t now);
/* before anything changes: the books of the ticks left out */
void quiet_catch_up(struct card *card);
/* a step is over: who is looked at until the next */
void quiet_after(struct card *card, uint64_t due_ns, uint64_t now);

/* barrier.c: takes no lock */
bool barrier_probe(void); /* can this kernel make what other processes stored visible to us? */
bool barrier_issue(void); /* does it; false: it cannot, look again a moment later */

/* wait.c: takes no lock */
bool wait_has_deadline(void); /* can this kernel sleep in epoll until a moment? */
/* 0: the moment came; QP_NEVER: no moment */
int wait_until(int epfd, struct epoll_event *events, int room, uint64_t until_ns);

/* together.c: jobs across cards. The first two: main thread; the others: the card's lock */
struct job *job_get(uint64_t job_id);
void job_put(struct arbiter *a, struct tenant *t);
void together_enter(struct tenant *t);           /* it is on its card now */
bool together_suspended(const struct tenant *t); /* preempted on another card? */
void together_tell(struct card *card);           /* right after a decision */

/* gates.c */
void gates_apply(struct card *card);
void gate_store(struct card *card, struct tenant *t, uint32_t flags);
void gates_heartbeat(struct card *card, uint64_t now);
/* cap, window and lease as the job sees them */
void gates_settings(struct tenant *t, uint64_t now);

/* tenant.c: main thread only; they take the card's lock themselves */
struct card *card_find(const struct arbiter *a, const char *uuid);
struct tenant *tenant_find(const struct card *card, uint64_t job_id);
int tenant_grant(struct arbiter *a, const struct qg_ctl_grant *g);
void tenant_revoke(struct arbiter *a, struct tenant *t);
void recovery_review(struct card *card, bool list_complete);
int tenant_join(struct arbiter *a, struct tenant *t, struct proc *p, struct conn *c,
                uint64_t mem_used, uint32_t *slot);
void tenant_leave(struct arbiter *a, struct tenant *t, uint32_t slot);

/* dead.c: main thread only */
void dead_add(struct arbiter *a, struct tenant *t, pid_t pid, uid_t uid, uint64_t bytes);
void dead_gone(struct arbiter *a, struct tenant *t, pid_t pid);
void dead_listed(struct tenant *t, pid_t pid);
void dead_forget(struct arbiter *a, struct tenant *t); /* the tenant ends */
void dead_watch(struct arbiter *a, struct conn *c);    /* a new watcher: tell it what it missed */
/* what it has not been told of yet, as far as its socket has room */
void dead_tell(struct arbiter *a, struct conn *c);
uint64_t dead_extra(const struct tenant *t);
void dead_overhead(struct tenant *t, uint64_t bytes);
int dead_sweep(struct arbiter *a, uint64_t now); /* how long to wait at most, ms, -1 = for ever */

/* process.c */
struct proc *proc_get(struct arbiter *a, pid_t pid, uid_t uid, int pidfd, int *err);
void proc_died(struct arbiter *a, struct proc *p);
void proc_conn_closed(struct arbiter *a, const struct conn *c);
void proc_sweep(struct arbiter *a);
bool proc_lives(int pidfd);

/* identify.c: NULL, or a sentence why the process may not act for the job */
const char *identify(const struct arbiter *a, pid_t pid, uid_t uid, uint64_t job_id,
                     uid_t grant_uid, int grant_fd, char *text, size_t cap);

/* conn.c, register.c, control.c */
int listen_open(struct arbiter *a, const char *name, mode_t mode);
void conn_accept(struct arbiter *a, int listener, enum conn_kind kind);
void conn_ready(struct arbiter *a, struct conn *c, uint32_t events);
/* takes fd for its own */
void conn_message(struct arbiter *a, struct conn *c, const void *buf, size_t len, int fd);
/* returns how long to wait at most, ms, -1 = for ever */
int conn_sweep(struct arbiter *a, uint64_t now);
void conn_close(struct arbiter *a, struct conn *c);
bool conn_alive(const struct conn *c);
void conn_hold(struct conn *c);   /* a slot was taken over it */
void conn_let_go(struct conn *c); /* and is not any more */
void register_message(struct arbiter *a, struct conn *c, const void *buf, size_t len, int fd);
bool control_message(struct arbiter *a, struct conn *c, const void *buf, size_t len);

/* users.c: main thread only */
struct user *user_get(const struct arbiter *a, uid_t uid);
void user_forget(uid_t uid); /* unless something of him is still needed */
/* so many more connections of his are not registered */
void user_wait(struct user *u, int change);
void user_prove(struct user *u);
bool user_may_ask(struct user *u, uint64_t now); /* looking a process up costs some file reads */
void users_changed(void);                        /* grants came or went */
void users_review(const struct arbiter *a);      /* so who is a stranger? */
uint32_t users_strangers(void);                  /* connections of all of them */
/* of those who are known and have some that are not registered */
struct user *users_biggest(void);

/* report.c: false when the asker does not read */
bool report_list(struct arbiter *a, struct conn *c, uint32_t of);
bool report_put(struct conn *c, void *message, uint32_t type, size_t size); /* one item of a list */

/* porter.c: main thread only. Descriptors that users sent, and connections in whose queue some may
 * be, are for processes of their own, since close() may wait for those users */
bool porter_start(void);
void porter_finish(void);
/* conn_message() follows, or its end */
void porter_fetch(struct arbiter *a, struct conn *c, const void *peeked, size_t cap);
void porter_ready(struct arbiter *a, struct key *key);
/* a connection: its peer sees the end at once */
void porter_hang_up(const struct arbiter *a, uid_t uid, int sock);
/* a copy of one, which may live on */
void porter_close(const struct arbiter *a, uid_t uid, int sock);
/* how long to wait at most, ms, -1 = for ever */
int porter_review(struct arbiter *a, uint64_t now);

/* closer.c: main thread only. What porters passed on is closed by helpers, since the driver may
 * take its time */
bool closer_start(void);
void closer_close(int fd);
/* one more helper where all are stuck; how long to wait at most, ms, -1 = for ever */
int closer_review(uint64_t now);

/* hardware preemption (hw.h). hw_review.c: the card's lock */
void hw_review(struct card *card, uint64_t now); /* right after gates were moved */
/* all groups of that process stand still */
bool hw_held(const struct tenant *t, uint32_t slot);
/* shares by time slices: what must be in flight for that */
uint32_t hw_window(const struct tenant *t);
/* work behind its closed gate is to be noticed */
bool hw_watches(const struct tenant *t);
void hw_escaped(const struct tenant *t); /* although they do, it made progress */
/* the others: main thread, without the card's lock */
/* may take fd for its own */
void hw_groups(struct arbiter *a, struct conn *c, const void *buf, size_t len, int *fd);
void hw_acted(struct arbiter *a, struct conn *c, const void *buf, size_t len);
void hw_process_left(struct arbiter *a, const struct tenant *t, uint32_t slot);
void hw_connection_ended(struct arbiter *a, const struct tenant *t, uint32_t slot);
void hw_tenant_revoked(struct arbiter *a, const struct tenant *t);
void hw_tenant_new(struct card *card, uint32_t index);
void hw_tenant_changed(const struct tenant *t);      /* its share, perhaps */
int hw_settings(struct arbiter *a, const void *buf); /* 0 or an errno */
bool hw_report(struct arbiter *a, struct conn *c);
/* may one come with this? */
bool hw_control_of(const struct arbiter *a, const void *buf, size_t cap,
                   struct qg_ctl_hardware *device);
void hw_attend(struct arbiter *a, struct key *key);
void hw_finish(struct arbiter *a);

/* trace.c */
int trace_open(const char *path);
void trace_put(struct trace_ring *ring, const struct qg_gate_event *event);
void trace_drain(struct arbiter *a);

#endif
