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

#define AR_MAX_CARDS 64u

struct card;
struct proc;
struct conn;
struct epoll_event;

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

struct arbiter {
    const char *run_dir;
    int level;       /* 0 error, 1 warning, 2 info, 3 debug */
    int rt_priority; /* 0 = not asked for */
    /* not a word of qgpud about a dead process for so long: its memory counts as free */
    int answer_ms;
    /* job pages are BPF arrays: asked for, and the kernel did not refuse yet */
    bool job_array;
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

/* loop.c: 0 or a negative errno */
int ar_watch(const struct arbiter *a, int fd, struct key *key);
/* the same descriptor: also when it takes more */
int ar_watch_room(const struct arbiter *a, int fd, struct key *key, bool on);

/* log.c */
void ar_log(const struct arbiter *a, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* How long ago that was. A gate that moved in this very step is younger than the step, which counts
 * as no time at all. */
static inline uint64_t ar_since(uint64_t then, uint64_t now)
{
    return now > then ? now - then : 0;
}

/* barrier.c: takes no lock */
bool barrier_probe(void); /* can this kernel make what other processes stored visible to us? */
bool barrier_issue(void); /* does it; false: it cannot, look again a moment later */

/* wait.c: takes no lock */
bool wait_has_deadline(void); /* can this kernel sleep in epoll until a moment? */
/* 0: the moment came; QP_NEVER: no moment */
int wait_until(int epfd, struct epoll_event *events, int room, uint64_t until_ns);

#endif
