/* SPDX-License-Identifier: Apache-2.0
 *
 * What every part uses: the arbiter itself, its log, its loop, waiting.
 */
#ifndef QGPU_BASE_H
#define QGPU_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define AR_MAX_CARDS 64u /* of one node; struct gang has one bit for each in a 64-bit word */

struct card;
struct proc;
struct conn;
struct epoll_event;

/* What a descriptor in the main thread's epoll set belongs to. The epoll key is a struct key. It is
 * the first member of the struct that owns the descriptor. */
enum key_kind {
    KEY_REGISTER = 1,
    KEY_CONTROL,
    KEY_SIGNAL,
    KEY_CONN,
    KEY_PROC,
    KEY_HARDWARE,
    KEY_BROKER,
    KEY_WANTS
};
struct key {
    enum key_kind kind;
};

struct arbiter {
    const char *run_dir;
    int level;       /* 0 error, 1 warning, 2 info, 3 debug */
    int rt_priority; /* SCHED_FIFO priority of the cards' threads, 0 = no real time */
    /* Time without a report of qgpud on a reaped process after which its memory counts as free. */
    int answer_ms;
    /* Job pages are made as BPF arrays: the option asked for it and the kernel has not refused. */
    bool job_array;
    /* Hang timeout: fences without progress for this time mean hung work, or a false report. */
    int hang_s;
    uid_t owner; /* effective uid: root, or in tests the user who runs them */
    uint64_t boot_id, start_ns;
    bool synced; /* the list of grants that qgpud began with its last HELLO is complete */
    /* A connection has asked for deaths since the start: some qgpud will say when memory is
     * free. */
    bool watched;
    /* A first complete list of grants came. Before, a granted job may have run before the start. */
    bool ever_synced;
    int epfd, register_fd, control_fd, signal_fd, trace_fd, lock_fd;
    int wants_fd; /* eventfd by which threads of cards wake the main one (tenant/wants.c) */
    struct card *cards[AR_MAX_CARDS];
    uint32_t ncards;
    struct proc *procs;
    struct conn *conns;
    uint32_t nconns;  /* connections to enforcer.sock */
    uint32_t nreaped; /* listed reaped processes of all tenants, an overflow counted as one */
    uint64_t deaths;  /* order number of the last death that was listed */
};

/* loop.c: 0 or a negative errno */
int ar_watch(const struct arbiter *a, int fd, struct key *key);
/* Changes what is watched for on a watched descriptor: with `on`, also that it can be written. */
int ar_watch_room(const struct arbiter *a, int fd, struct key *key, bool on);

/* log.c */
void ar_log(const struct arbiter *a, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* May a user who holds `mine` of a table's places take one more? `all` of `most` are taken. Nobody
 * may hold more than are free, so the next user finds a place. Every table that users share asks
 * this (docs/specs/limits.md). */
static inline bool ar_may_hold(uint32_t mine, uint32_t all, uint32_t most)
{
    return all < most && mine < most - all;
}

/* Nanoseconds since `then`. A gate may move after a step read `now`; its age is 0 in that step. */
static inline uint64_t ar_since(uint64_t then, uint64_t now)
{
    return now > then ? now - then : 0;
}

/* barrier.c: takes no lock */
bool barrier_probe(void); /* can this kernel make what other processes stored visible to us? */
bool barrier_issue(void); /* makes it visible; false: it cannot, so sample again a moment later */

/* wait.c: takes no lock */
bool wait_has_deadline(void); /* can this kernel's epoll wait sleep with a precision of ns? */
/* Waits for events until `until_ns`, or without a limit (QP_NEVER). Returns how many came. */
int wait_until(int epfd, struct epoll_event *events, int room, uint64_t until_ns);

#endif
