/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of hardware preemption share (docs/specs/hardware.md). Per card: a record of what
 * each process has below one client of the driver, a word per tenant that says whether its groups
 * shall stand still, and a worker that makes it so. The card's thread only stores words and rings;
 * the main thread adds and removes records; the worker alone speaks to the driver, and is given up
 * when the driver does not answer.
 */
#ifndef QGPU_HW_PARTS_H
#define QGPU_HW_PARTS_H

#include "hw/hw.h"
#include "qg_rm.h"

/* of one process on one card: clients of the driver, or devices below one */
#define HW_CLIENTS        4u
#define HW_TENANT_RECORDS 256u
#define HW_RECORDS        8192u /* of all cards */
/* an answer of the driver, or of a shim, takes no longer, or never comes */
#define HW_LIMIT_NS (1000 * QP_MS)
#define HW_FIRST_NS (5000 * QP_MS) /* the first answer of a shim: nobody waits for that one */
/* a handle that vanished is explained by then: the process tells its groups anew */
#define HW_EXPLAIN_NS (250 * QP_MS)
/* workers of one card that hang in the driver; then it is left alone */
#define HW_MAX_HUNG     8u
#define HW_TENANT_HANGS 2u  /* of one tenant; the rest of its groups is not even tried any more */
#define HW_TESTS        64u /* checks of one tenant's messages at once, and per second: */
#define HW_TESTS_PER_SECOND 20u
/* a tenant that continues its own groups so often in one stop is left to its gate */
#define HW_MAX_ESCAPES 16u
#define HW_SHORTEST_US 1u
/* a slice that short was set by a predecessor of ours; nobody knows what was before */
#define HW_DEFAULT_US 1024u

enum hw_part { HW_GRAPHICS, HW_REST, HW_PARTS };
enum hw_stage {
    HW_FRESH,   /* told, to be checked */
    HW_ASKED,   /* the shim was asked to try whether it can act */
    HW_USABLE,  /* checked; it follows its tenant's word */
    HW_SUSPECT, /* a handle was not there: the process may be about to say why */
    HW_LEAVING, /* to be continued and forgotten */
    HW_GONE     /* in no list any more */
};

/* What a process told of one client of the driver on this card. `told` never changes; what the
 * worker found out stands below it and is read by others only with the lock, when the record is
 * usable. */
struct hw_record {
    struct hw_record *next;
    struct hw_record *former; /* whose place it took: groups of it may stand still (hw_former) */
    struct hw_record *past;   /* the same, while the worker settles it */
    uint32_t refs;            /* the list, a worker at work, the record that took its place */
    enum hw_stage stage;
    uint32_t tenant, slot;
    pid_t pid;
    uid_t uid;        /* at the other end of sock */
    int fd, sock;     /* the control device; the connection, to write to the shim. -1 = none */
    bool tested;      /* it was usable at least once */
    bool acknowledge; /* LEAVING: the process waits for the word that it is done */
    bool stopped;     /* something of it was stopped, and not continued since */
    uint32_t actor, method; /* enum qg_hw_actor, enum qg_hw_method; method 0: not known yet */
    uint32_t asked;         /* the method of the settings under which it was told */
    uint32_t done;          /* bit per part: stopped for the word `doing` */
    uint64_t doing, applied;
    /* of what the shim was asked last; until when an answer or an explanation must come */
    uint64_t serial, due_ns;
    uint64_t slice_us; /* set on all its groups; 0 = what each had */
    uint32_t status, step, methods;
    struct qg_groups reported, part[HW_PARTS];
    uint64_t had_us[QG_MAX_GROUPS]; /* slices, in the order of told */
};

struct hw_tenant {
    /* the card's thread writes, the worker reads, atomically */
    uint64_t word;     /* serial << 1 | 1 if its groups shall stand still */
    uint64_t since_ns; /* when its gate was closed, or when work was seen behind it */
    uint32_t escapes;  /* in this stop */
    /* the worker writes, the card's thread reads, atomically */
    uint32_t known, usable, sliced; /* known: records that are not on their way out */
    uint8_t held[QG_MAX_PROCS];     /* per slot: all its groups stand still */
    /* hw->lock */
    uint32_t nrecords, hangs, tests;
    uint64_t tests_ns;
    bool failed, unsaid; /* unsaid: the main thread has to log why */
    char why[128];
    uint64_t job_id;
    uint32_t share, job_class;
    uint32_t last_status, actor, method;
    uint64_t booked, stopped_from_ns;
    uint64_t stops, continues, failures, stopped_ns, stop_max_ns;
    uint32_t stop_hist[QG_CLOSE_BUCKETS];
};

struct hw {
    struct key key; /* first */
    struct card *card;
    struct qg_ctl_hardware settings;
    /* to the main thread: something to do; a call of the driver takes too long */
    int notify_fd, timer_fd;
    uint32_t bell;        /* futex of the worker */
    uint32_t on, weights; /* atomic; on 0: no new stops; weights: the period in us, 0 = turns */
    pthread_mutex_t lock; /* below card->lock; never held during a call of the driver */
    pthread_t thread;
    bool running, quit;
    uint32_t gen; /* of the worker that counts; others hang, or are about to end */
    uint32_t hung;
    uint64_t serial;
    struct hw_record *current; /* what the worker is at, and since when */
    uint64_t since_ns;
    struct hw_record *records, *garbage;
    /* whose records are checked next: one tenant's many messages keep no other waiting */
    uint32_t next_test;
    struct hw_tenant tenant[QP_MAX_TENANTS];
};

#define HW_LOAD(word)         __atomic_load_n(&(word), __ATOMIC_ACQUIRE)
#define HW_STORE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELEASE)

/* hw_record.c: all with the lock */
struct hw_record *hw_record_create(struct hw *hw, struct tenant *t, uint32_t slot,
                                   const struct qg_groups *reported);
struct hw_record *hw_record_find(const struct hw *hw, const struct tenant *t, uint32_t slot,
                                 const struct qg_groups *reported);
uint32_t hw_record_count(const struct hw *hw, uint32_t tenant, uint32_t slot);
/* out of the list; its reference goes with it */
void hw_record_unlink(struct hw *hw, struct hw_record *r);
void hw_record_put(struct hw *hw, struct hw_record *r);
/* forgotten, after it was continued if need be */
void hw_record_leave(struct hw *hw, struct hw_record *r);
/* the nearest one that was in use, NULL = none */
struct hw_record *hw_former(const struct hw_record *r);
void hw_fail(struct hw *hw, uint32_t tenant, uint32_t status, const char *why);
/* counts what is usable and held, books what is settled */
void hw_review_tenant(struct hw *hw, uint32_t tenant);
uint32_t hw_record_total(void);

/* hw_tenant.c */
bool hw_groups_sane(const struct qg_groups *m);
/* the next two with the lock */
void hw_learn(struct hw_tenant *ht, const struct tenant *t);
void hw_forget_all(struct hw *hw);

/* hw_bell.c */
void hw_ring(struct hw *hw);   /* the worker shall look; takes no lock */
void hw_notify(struct hw *hw); /* the main thread shall look; takes no lock */

/* hw_watch.c */
bool hw_worker_start(struct arbiter *a, struct hw *hw); /* with the lock */
void hw_reap(struct hw *hw);                            /* main thread, without the lock */

/* hw_worker.c */
void *hw_worker(void *arg); /* of a struct hw_thread, which it frees */
struct hw_thread {
    struct hw *hw;
    uint32_t gen;
};
/* lets go of the lock for a call of the driver */
void hw_begin(struct hw *hw, struct hw_record *r);
/* takes it again; ends a thread that was given up */
void hw_end(struct hw *hw, uint32_t gen, struct hw_record *r);

/* hw_selftest.c: without the lock */
enum hw_verdict { HW_MORE, HW_PASSED, HW_VANISHED, HW_UNABLE, HW_LIED };
enum hw_verdict hw_test(const struct card *card, struct hw_record *r, const char **why);
bool hw_vanished(uint32_t status);

/* hw_act.c: without the lock */
uint32_t hw_stop(const struct hw_record *r, enum hw_part part);
uint32_t hw_resume(const struct hw_record *r);
/* all that was done to it is undone, as far as that goes */
uint32_t hw_continue(const struct hw_record *r);
uint32_t hw_slice(const struct hw_record *r, uint64_t us); /* 0: what each group had */

/* hw_shim.c: with the lock */
bool hw_ask(struct hw *hw, struct hw_record *r, uint32_t action, uint32_t method, uint64_t value);
void hw_ask_back(struct hw *hw, struct hw_record *r); /* to undo what was done to its groups */
void hw_ask_test(struct hw *hw, struct hw_record *r);
bool hw_acknowledge(int sock, const char *uuid, uint32_t client);

/* hw_slices.c: with the lock */
/* that its groups shall have; 0 = what they had */
uint64_t hw_slice_of(const struct hw *hw, uint32_t tenant);

#endif
