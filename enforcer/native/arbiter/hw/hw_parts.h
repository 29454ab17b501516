/* SPDX-License-Identifier: Apache-2.0
 *
 * What the sources of hardware preemption share (docs/specs/hardware.md). Per card there is a list
 * of records, a word per tenant, and a worker. A record is what one process reported of one client
 * of the driver: its channel groups. The word says whether the tenant's groups shall be stopped;
 * the worker makes it so. The card's thread only stores words and wakes the worker. The main thread
 * adds and removes records. Only the worker calls the driver; when the driver does not answer, the
 * worker is abandoned.
 */
#ifndef QGPU_HW_PARTS_H
#define QGPU_HW_PARTS_H

#include "hw/hw.h"
#include "qg_rm.h"

/* Records: of one process on one card, of one tenant, and of all cards. The arbiter's limit of
 * 65536 descriptors has room for two of each of the last. Chosen, not measured. */
#define HW_CLIENTS        4u
#define HW_TENANT_RECORDS 256u
#ifndef HW_RECORDS /* a test fills a smaller table */
#define HW_RECORDS 8192u
#endif
/* An answer of the driver or of a shim that takes longer than 1 s will not come. Chosen, not
 * measured: no real driver was tried. */
#define HW_LIMIT_NS (1000 * QP_MS)
/* The first answer of a shim may take 5 s. Its process may still be starting, and no tenant waits
 * for it. Chosen, not measured. */
#define HW_FIRST_NS (5000 * QP_MS)
/* If a handle does not exist, the process is probably destroying it; it reports its groups anew
 * within 250 ms. Chosen, not measured. */
#define HW_EXPLAIN_NS (250 * QP_MS)
/* Workers of one card that hang in the driver; with that many, hardware preemption of the card is
 * off. Chosen, not measured. */
#define HW_MAX_HUNG 8u
/* Calls of one tenant that hang; after that many its other groups are not tried. Chosen, not
 * measured. */
#define HW_TENANT_HANGS 2u
/* Self-tests for the messages of one tenant, at once and per second in the long run. They keep one
 * tenant's messages from occupying the worker. Chosen, not measured. */
#define HW_TESTS            64u
#define HW_TESTS_PER_SECOND 20u
/* Times that a tenant may continue its groups by itself during one stop. After that its gate alone
 * stops it. Chosen, not measured. */
#define HW_MAX_ESCAPES 16u
/* Time slice in us that stops a group in practice: the shortest that can be set. */
#define HW_SHORTEST_US 1u
/* Time slice in us for a group that had the shortest one when it was reported. An earlier arbiter
 * stopped it, so its own slice is unknown. Chosen, not measured. */
#define HW_DEFAULT_US 1024u

enum hw_part { HW_GRAPHICS, HW_REST, HW_PARTS };
enum hw_stage {
    HW_FRESH,   /* reported, not yet checked */
    HW_ASKED,   /* the shim was asked to try whether it can act on its groups */
    HW_USABLE,  /* checked; the worker keeps it as its tenant's word says */
    HW_SUSPECT, /* a handle did not exist: the process may be about to report why */
    HW_LEAVING, /* to be continued, then removed */
    HW_GONE     /* removed from the list */
};

/* What a process reported of one client of the driver on this card. `reported` never changes. What
 * the worker found out follows it. Other threads read that only with the lock, when the record is
 * usable. */
struct hw_record {
    struct hw_record *next;
    struct hw_record *former; /* the record that this one replaced; its groups may be stopped */
    struct hw_record *past;   /* the same, while the worker continues what is left of it */
    uint32_t refs;            /* of the list, of a worker that acts on it, of its replacement */
    enum hw_stage stage;
    uint32_t tenant, slot;
    pid_t pid;
    uid_t uid;        /* of the peer of sock */
    int fd, sock;     /* the control device; the connection, for orders to the shim. -1 = none */
    bool tested;      /* it was usable at least once */
    bool acknowledge; /* with HW_LEAVING: the process waits for a message when it is continued */
    bool stopped;     /* some of its groups were stopped and not continued since */
    uint32_t actor, method; /* enum qg_hw_actor, enum qg_hw_method; method 0: not chosen yet */
    uint32_t wanted_method; /* that of the settings when it was reported */
    uint32_t done;          /* one bit per part: stopped as the word `doing` says */
    uint64_t doing;         /* the tenant's word that the worker is carrying out */
    uint64_t applied;       /* the last word that was carried out in full */
    uint64_t serial;        /* of the last order to the shim, 0 = it was answered */
    uint64_t due_ns;        /* when an answer or an explanation must have come */
    uint64_t slice_us;      /* time slice set on all its groups, 0 = each has its own */
    uint32_t status, step, methods;
    struct qg_groups reported, part[HW_PARTS];
    uint64_t had_us[QG_MAX_GROUPS]; /* own slices of the groups, in the order of `reported` */
};

struct hw_tenant {
    /* written by the card's thread, read by the worker, atomically */
    uint64_t word;     /* serial << 1 | 1 if its groups shall be stopped */
    uint64_t since_ns; /* when its gate was closed, or when work behind the gate was noticed */
    uint32_t escapes;  /* times that it continued its groups by itself in this stop */
    /* written by the worker, read by the card's thread, atomically */
    uint32_t known;             /* records except those that leave */
    uint32_t usable;            /* those of them in stage HW_USABLE */
    uint32_t sliced;            /* 1 if all of these have the tenant's time slice */
    uint8_t held[QG_MAX_PROCS]; /* per slot: all its groups are stopped */
    /* with hw->lock */
    uint32_t nrecords, hangs, tests;
    uint64_t tests_ns;
    bool failed;   /* no hardware preemption: its gate alone stops it */
    bool unlogged; /* the main thread still has to log why it failed */
    char why[128];
    uint64_t job_id;
    uint32_t share, job_class;
    uint32_t last_status, actor, method;
    uint64_t booked; /* the last word that the counters below include */
    uint64_t stopped_from_ns;
    uint64_t stops, continues, failures, stopped_ns, stop_max_ns;
    uint32_t stop_hist[QG_CLOSE_BUCKETS];
};

struct hw {
    struct key key; /* must be the first member */
    struct card *card;
    struct qg_ctl_hardware settings;
    /* These wake the main thread: it has something to do; a call of the driver takes too long. */
    int notify_fd, timer_fd;
    uint32_t bell; /* futex of the worker */
    /* Both atomic. on 0: no new stops. weights: the period of time slices in us, 0 = tenants take
     * turns. */
    uint32_t on, weights;
    pthread_mutex_t lock; /* below card->lock; never held during a call of the driver */
    pthread_t thread;
    bool running, quit;
    uint32_t gen;  /* of the current worker; any other one hangs or is about to end */
    uint32_t hung; /* workers that hang in the driver */
    uint64_t serial;
    struct hw_record *current; /* the record of the call of the driver in progress; its begin */
    uint64_t since_ns;
    struct hw_record *records, *garbage;
    /* The tenant whose records are checked next. Tenants alternate, so that one with many messages
     * delays no other. */
    uint32_t next_test;
    struct hw_tenant tenant[QP_MAX_TENANTS];
};

#define HW_LOAD(word)         __atomic_load_n(&(word), __ATOMIC_ACQUIRE)
#define HW_STORE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELEASE)

/* hw_record.c: all with hw->lock */
struct hw_record *hw_record_create(struct hw *hw, struct tenant *t, uint32_t slot,
                                   const struct qg_groups *reported);
struct hw_record *hw_record_find(const struct hw *hw, const struct tenant *t, uint32_t slot,
                                 const struct qg_groups *reported);
uint32_t hw_record_count(const struct hw *hw, uint32_t tenant, uint32_t slot);
/* Removes it from the list. The list's reference is the caller's then. */
void hw_record_unlink(struct hw *hw, struct hw_record *r);
void hw_record_put(struct hw *hw, struct hw_record *r);
/* Removes it, after its groups were continued where they may be stopped. */
void hw_record_leave(struct hw *hw, struct hw_record *r);
/* The nearest record in its chain of `former` that was ever usable, NULL = none. */
struct hw_record *hw_former(const struct hw_record *r);
void hw_fail(struct hw *hw, uint32_t tenant, uint32_t status, const char *why);
/* Counts the tenant's usable and stopped records, and updates its counters of stops. */
void hw_review_tenant(struct hw *hw, uint32_t tenant);
uint32_t hw_record_total(void); /* of all cards */

/* hw_tenant.c */
bool hw_groups_sane(const struct qg_groups *m);
/* The next two with hw->lock. */
void hw_copy_identity(struct hw_tenant *ht, const struct tenant *t);
void hw_forget_all(struct hw *hw);

/* hw_bell.c */
void hw_ring(struct hw *hw);   /* wakes the worker; takes no lock */
void hw_notify(struct hw *hw); /* wakes the main thread; takes no lock */

/* hw_watch.c */
bool hw_worker_start(struct arbiter *a, struct hw *hw); /* with hw->lock */
/* Frees removed records. Main thread, without hw->lock. */
void hw_reap(struct hw *hw);

/* hw_worker.c */
void *hw_worker(void *arg); /* of a struct hw_thread, which it frees */
struct hw_thread {
    struct hw *hw;
    uint32_t gen;
};
/* Unlocks hw->lock for a call of the driver on this record. */
void hw_begin(struct hw *hw, struct hw_record *r);
/* Locks it again. If the worker was abandoned meanwhile, this ends its thread instead. */
void hw_end(struct hw *hw, uint32_t gen, struct hw_record *r);

/* hw_selftest.c: without hw->lock */
enum hw_verdict { HW_MORE, HW_PASSED, HW_VANISHED, HW_UNABLE, HW_LIED };
enum hw_verdict hw_test(const struct card *card, struct hw_record *r, const char **why);
bool hw_vanished(uint32_t status);

/* hw_act.c: without hw->lock */
uint32_t hw_stop(const struct hw_record *r, enum hw_part part);
uint32_t hw_resume(const struct hw_record *r);
/* Undoes all that was done to its groups, as far as the driver allows. */
uint32_t hw_continue(const struct hw_record *r);
uint32_t hw_slice(const struct hw_record *r, uint64_t us); /* 0: to each group its own */

/* hw_shim.c: with hw->lock */
bool hw_ask(struct hw *hw, struct hw_record *r, uint32_t action, uint32_t method, uint64_t value);
/* Orders the shim to undo what was done to its groups. */
void hw_ask_undo(struct hw *hw, struct hw_record *r);
void hw_ask_test(struct hw *hw, struct hw_record *r);
bool hw_acknowledge(int sock, const char *uuid, uint32_t client);

/* hw_slices.c: with hw->lock */
/* The time slice that the tenant's groups shall have, 0 = each its own. */
uint64_t hw_slice_of(const struct hw *hw, uint32_t tenant);

#endif
