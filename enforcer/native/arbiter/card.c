/* SPDX-License-Identifier: Apache-2.0
 *
 * One card: its real-time thread, its doorbells, its timer, and the step that samples, decides and moves gates.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "arbiter.h"
#include "qg_time.h"

#define KEY_TIMER UINT64_MAX
#define KEY_COMMAND (UINT64_MAX - 1)
#define STORM_WINDOW_NS (10 * QP_MS) /* more than STORM_RINGS in it: a storm */
#define STORM_RINGS 64u
#define MUTE_NS (50 * QP_MS)
#define MAX_REDO 3

static uint64_t bell_key(const struct tenant *t) { return (uint64_t)t->gen << 16 | t->index; }

void card_watch_bell(struct card *card, struct tenant *t, bool on) {
    struct epoll_event ev = {.events = on ? EPOLLIN | EPOLLET : 0, .data.u64 = bell_key(t)};
    epoll_ctl(card->epfd, EPOLL_CTL_MOD, t->bell_fd, &ev);
    t->muted = !on;
}

/* Doorbells are only a reason to look. One that never stops is muted and looked at by the tick instead. */
static void ring(struct card *card, uint64_t key, uint64_t now) {
    uint32_t index = (uint32_t)(key & 0xffff);
    struct tenant *t = index < QP_MAX_TENANTS ? card->tenants[index] : NULL;
    if (!t || bell_key(t) != key) return;
    t->rung = true;
    t->bell_ns = now;
    if (now - t->storm_from_ns > STORM_WINDOW_NS) {
        t->storm_from_ns = now;
        t->storm_rings = 0;
    }
    if (++t->storm_rings <= STORM_RINGS) return;
    t->muted_until_ns = now + MUTE_NS;
    card_watch_bell(card, t, false);
}

/* Muted tenants are looked at each millisecond until their doorbell counts again; doubted ones when the doubt ends. */
static uint64_t look_at_odd_ones(struct card *card, uint64_t now) {
    uint64_t wake = QP_NEVER;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        if (t && t->doubted && t->discredit_until_ns < wake) wake = t->discredit_until_ns;
        if (!t || !t->muted) continue;
        t->rung = true;
        if (now >= t->muted_until_ns) {
            t->storm_rings = 0;
            t->storm_from_ns = now;
            card_watch_bell(card, t, true);
        } else if (now + QP_TICK_NS < wake) {
            wake = now + QP_TICK_NS;
        }
    }
    return wake;
}

static bool polled(const struct tenant *t) {
    return t->nprocs && (t->busy || t->doubted || !(t->gate->flags & (QG_GATE_NOTIFY | QG_GATE_CLOSED)));
}

/* First only what rang, so that a gate closes before anything else is read. */
static bool sample_rung(struct card *card, uint64_t now) {
    bool any = false;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        if (!t || !t->rung) continue;
        sample_quick(t, now);
        any = true;
    }
    return any;
}

static void sample_polled(struct card *card, uint64_t now) {
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        if (!t) continue;
        bool look = t->rung || polled(t) || t->pending || t->unmarked || t->launched;
        if (t->nprocs && look) sample_full(t, now);
        else sample_classify(t, now);
        t->rung = false;
        t->bell_ns = 0;
    }
}

/* Launches that slipped past a gate word while it changed make their tenant busy after all. */
static bool slipped_past(struct card *card, uint64_t now) {
    bool any = false;
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        struct tenant *t = card->tenants[i];
        if (!t || !t->nprocs || t->busy || !(t->gate->flags & QG_GATE_NOTIFY)) continue;
        if (!sample_launched_since(t)) continue;
        sample_quick(t, now);
        any = true;
    }
    return any;
}

static void decide(struct card *card, uint64_t now) {
    for (int i = 0; i < MAX_REDO; i++) {
        qp_decide(&card->policy, now);
        gates_apply(card, now);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (!slipped_past(card, now)) return;
    }
    card->policy.wake_ns = now + QP_DRAIN_POLL_NS; /* still moving: look again soon rather than now */
}

static bool anybody(const struct card *card) {
    for (uint32_t i = 0; i < card->policy.ntenants; i++) {
        if (card->tenants[i]) return true;
    }
    return false;
}

void card_step(struct card *card, uint64_t now) {
    if (card->policy.last_ns > now) now = card->policy.last_ns;
    uint64_t odd = look_at_odd_ones(card, now);
    if (sample_rung(card, now)) decide(card, now);
    sample_polled(card, now);
    decide(card, now);
    account(card, now);
    card->wake_ns = card->policy.wake_ns < odd ? card->policy.wake_ns : odd;
    if (card->wake_ns <= now) card->wake_ns = now + QP_TICK_NS;
    uint64_t beat = now + (uint64_t)card->lease_ms * QP_MS / 4;
    if (anybody(card) && beat < card->wake_ns) card->wake_ns = beat;
}

static void arm(struct card *card) {
    if (card->armed_ns == card->wake_ns) return;
    struct itimerspec at = {0};
    if (card->wake_ns != QP_NEVER) {
        at.it_value.tv_sec = (time_t)(card->wake_ns / 1000000000ull);
        at.it_value.tv_nsec = (long)(card->wake_ns % 1000000000ull);
    }
    timerfd_settime(card->timerfd, TFD_TIMER_ABSTIME, &at, NULL);
    card->armed_ns = card->wake_ns;
}

static void take_event(struct card *card, uint64_t key, uint64_t now) {
    uint64_t count;
    if (key == KEY_TIMER) {
        if (read(card->timerfd, &count, sizeof(count)) < 0) return; /* already taken */
        card->armed_ns = 0;
    } else if (key == KEY_COMMAND) {
        if (read(card->eventfd, &count, sizeof(count)) < 0) return;
    } else {
        ring(card, key, now);
    }
}

static void *card_main(void *arg) {
    struct card *card = arg;
    struct epoll_event events[64];
    bool quit = false;
    while (!quit) {
        int n = epoll_wait(card->epfd, events, 64, -1);
        uint64_t now = qg_now_ns();
        pthread_mutex_lock(&card->lock);
        for (int i = 0; i < n; i++) take_event(card, events[i].data.u64, now);
        card_step(card, now);
        arm(card);
        quit = card->quit;
        pthread_mutex_unlock(&card->lock);
    }
    return NULL;
}

void card_kick(struct card *card) {
    uint64_t one = 1;
    if (write(card->eventfd, &one, sizeof(one)) < 0) return; /* full: it is awake already */
}

/* Real time where the kernel allows it; what was obtained is said once, and by `qgpu doctor`. */
static int start_thread(struct arbiter *a, struct card *card) {
    pthread_attr_t attr;
    struct sched_param param = {.sched_priority = a->rt_priority};
    int err = EPERM;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 * 1024);
    if (a->rt_priority > 0) {
        pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
        pthread_attr_setschedpolicy(&attr, SCHED_FIFO);
        pthread_attr_setschedparam(&attr, &param);
        err = pthread_create(&card->thread, &attr, card_main, card);
        pthread_attr_setinheritsched(&attr, PTHREAD_INHERIT_SCHED);
    }
    if (!err) {
        ar_log(a, 2, "card %u (%s): thread runs with policy SCHED_FIFO %d", card->number, card->uuid, a->rt_priority);
    } else {
        err = pthread_create(&card->thread, &attr, card_main, card);
        ar_log(a, a->rt_priority ? 1 : 2, "card %u (%s): thread runs with policy SCHED_OTHER; gates close late on a loaded node",
               card->number, card->uuid);
    }
    pthread_attr_destroy(&attr);
    return -err;
}

static int watch(int epfd, int fd, uint64_t key) {
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = key};
    return epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev);
}

static void card_free(struct card *card) {
    if (card->epfd >= 0) close(card->epfd);
    if (card->timerfd >= 0) close(card->timerfd);
    if (card->eventfd >= 0) close(card->eventfd);
    free(card->trace);
    free(card);
}

struct card *card_create(struct arbiter *a, const char *uuid, int *err) {
    pthread_mutexattr_t attr;
    struct card *card = a->ncards < AR_MAX_CARDS ? calloc(1, sizeof(*card)) : NULL;
    *err = -ENOSPC;
    if (!card) return NULL;
    memcpy(card->uuid, uuid, QG_UUID_LEN);
    card->number = a->ncards;
    card->lease_ms = 10000;
    qp_init(&card->policy);
    card->wake_ns = card->armed_ns = QP_NEVER;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&card->lock, &attr);
    card->epfd = epoll_create1(EPOLL_CLOEXEC);
    card->timerfd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    card->eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (a->trace_fd >= 0) card->trace = calloc(1, sizeof(*card->trace));
    if (card->epfd < 0 || watch(card->epfd, card->timerfd, KEY_TIMER) || watch(card->epfd, card->eventfd, KEY_COMMAND) ||
        (*err = start_thread(a, card)) != 0) {
        card_free(card);
        return NULL;
    }
    a->cards[a->ncards++] = card;
    return card;
}

void card_stop(struct card *card) {
    pthread_mutex_lock(&card->lock);
    card->quit = true;
    pthread_mutex_unlock(&card->lock);
    card_kick(card);
    pthread_join(card->thread, NULL);
}

int card_add(struct card *card, struct tenant *t) {
    uint32_t i = 0;
    while (i < QP_MAX_TENANTS && card->tenants[i]) i++;
    if (i == QP_MAX_TENANTS) return -ENOSPC;
    t->card = card;
    t->index = i;
    t->gen = ++card->next_gen;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.u64 = bell_key(t)};
    if (epoll_ctl(card->epfd, EPOLL_CTL_ADD, t->bell_fd, &ev) != 0) return -errno;
    qp_forget(&card->policy, i);
    card->tenants[i] = t;
    if (card->policy.ntenants <= i) card->policy.ntenants = i + 1;
    return 0;
}

void card_remove(struct card *card, struct tenant *t) {
    epoll_ctl(card->epfd, EPOLL_CTL_DEL, t->bell_fd, NULL); /* a job may keep the eventfd open for ever */
    card->tenants[t->index] = NULL;
    qp_forget(&card->policy, t->index);
    while (card->policy.ntenants && !card->tenants[card->policy.ntenants - 1]) card->policy.ntenants--;
}
