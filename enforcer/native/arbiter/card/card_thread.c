/* SPDX-License-Identifier: Apache-2.0
 *
 * One card: its real-time thread, its doorbells and its timer.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/base.h"
#include "card/card.h"
#include "gate/gate.h"
#include "hw/hw.h"
#include "model/model.h"
#include "observe/observe.h"
#include "policy/policy.h"
#include "qg_time.h"

/* mark: Key of the timer in epoll events. A bell_key is smaller. Evidence: bound. */
#define KEY_TIMER UINT64_MAX
/* mark: The same of the eventfd by which other threads wake this one. Evidence: bound. */
#define KEY_COMMAND (UINT64_MAX - 1)
/* ns: More than STORM_RINGS rings of one doorbell in it are a storm. Evidence: none. */
#define STORM_WINDOW_NS (10 * QP_MS)
/* count: An honest tenant rings less often: once for each value of its gate. Evidence: attack
 * (test_arbiter_hostile.py). */
#define STORM_RINGS 64u
/* ns: A doorbell in a storm is muted this long. Ticks sample its tenant meanwhile. Evidence: none.
 */
#define MUTE_NS (50 * QP_MS)
/* ns: After this time the leader of the group is late, and the card ticks by itself. Evidence:
 * none. */
#define LEADER_LATE_NS (8 * QP_MS)

/* count: One wake-up takes no more events. Further ones wake the thread again. Evidence: bound. */
#define MAX_EVENTS 64
/* bytes: The thread's stack: the arrays of a step take a few KiB. Evidence: bound. */
#define STACK_BYTES (256 * 1024)
/* ms: The lease until qgpud has sent the card's settings: the default of enforcer.lease. Evidence:
 * protocol (gres/config/enforcer.py). */
#define FIRST_LEASE_MS 10000

/* EPOLLOUT shows whether the doorbell has room. A full one has none and can ring no more. It comes
 * with the event and costs no call of its own. */
#define BELL_EVENTS (EPOLLIN | EPOLLOUT | EPOLLET)

static uint64_t bell_key(const struct tenant *t)
{
    return (uint64_t)t->gen << 16 | t->index;
}

void card_watch_bell(struct card *card, struct tenant *t, bool on)
{
    struct epoll_event ev = {.events = on ? BELL_EVENTS : 0, .data.u64 = bell_key(t)};
    epoll_ctl(card->epfd, EPOLL_CTL_MOD, t->bell_fd, &ev);
    t->bell.muted = !on;
}

/* A doorbell asks for a sample. One in a storm is muted, and ticks sample its tenant
 * instead. So is one that a job filled completely, until it is replaced: a ring cannot
 * be written to it any more. */
static void ring(struct card *card, const struct epoll_event *ev, uint64_t woken, uint64_t now)
{
    uint32_t index = (uint32_t)(ev->data.u64 & 0xffff);
    struct tenant *t = index < QP_MAX_TENANTS ? card->tenants[index] : NULL;
    if (!t || bell_key(t) != ev->data.u64)
        return;
    if (ev->events & EPOLLIN) { /* else the event only says that the doorbell has room */
        t->bell.rung = true;
        t->bell.bell_ns = woken;
        sample_bell(t, now);
    }
    if (!(ev->events & EPOLLOUT)) {
        t->bell.jammed = true;
        card_watch_bell(card, t, false);
        return;
    }
    if (now - t->bell.storm_from_ns > STORM_WINDOW_NS) {
        t->bell.storm_from_ns = now;
        t->bell.storm_rings = 0;
    }
    if (++t->bell.storm_rings <= STORM_RINGS)
        return;
    t->bell.muted_until_ns = now + MUTE_NS;
    card_watch_bell(card, t, false);
}

/* Does another card do this card's ticks? In a group of cards the first that ticks leads and does
 * the ticks of the others, unless its own ticks are further apart. */
static bool is_led(const struct card *card)
{
    for (uint32_t i = card->number / CARD_GROUP * CARD_GROUP; i < card->number; i++) {
        const struct card *other = card->arbiter->cards[i];
        if (!__atomic_load_n(&other->ticking, __ATOMIC_RELAXED))
            continue;
        if (__atomic_load_n(&other->tick_ns, __ATOMIC_RELAXED) <= card->tick_ns)
            return true;
    }
    return false;
}

static void set_timer(struct card *card, uint64_t want)
{
    struct itimerspec at = {0};
    if (card->armed_ns == want)
        return;
    if (want != QP_NEVER) {
        at.it_value.tv_sec = (time_t)(want / 1000000000ull);
        at.it_value.tv_nsec = (long)(want % 1000000000ull);
    }
    timerfd_settime(card->timerfd, TFD_TIMER_ABSTIME, &at, NULL);
    card->armed_ns = want;
}

/* A card that is led needs its own timer only in case its leader is late, so the timer is seldom
 * set. */
static void arm(struct card *card)
{
    uint64_t want = card->wake_ns;
    if (card->ticking && is_led(card)) {
        if (card->armed_ns >= want + LEADER_LATE_NS / 4 && card->armed_ns <= want + LEADER_LATE_NS)
            return;
        want += LEADER_LATE_NS;
    }
    set_timer(card, want);
}

/* The same by the card's own thread before it sleeps. It returns until when to sleep, so that
 * mostly no timer is set. An earlier timer that another thread set is moved. */
static uint64_t arm_own(struct card *card)
{
    if (!wait_has_deadline() || (card->ticking && is_led(card)) ||
        (card->armed_ns && card->armed_ns < card->wake_ns)) {
        arm(card);
        return QP_NEVER;
    }
    return card->wake_ns;
}

/* Does the due ticks of the group. It never holds two locks, and never waits for the lock of
 * another card. Returns until when to sleep. */
static uint64_t tick_group(struct card *card, uint64_t now)
{
    uint32_t first = card->number / CARD_GROUP * CARD_GROUP,
             cards = __atomic_load_n(&card->arbiter->ncards, __ATOMIC_ACQUIRE);
    uint64_t soon = now + CARD_GROUP * CARD_STAGGER_NS;
    for (uint32_t i = first; i < cards && i < first + CARD_GROUP; i++) {
        struct card *other = card->arbiter->cards[i];
        if (other == card || !__atomic_load_n(&other->ticking, __ATOMIC_RELAXED))
            continue;
        if (pthread_mutex_trylock(&other->lock) != 0)
            continue;
        if (other->ticking && other->wake_ns <= soon)
            card_tick(other, qg_now_ns());
        arm(other);
        pthread_mutex_unlock(&other->lock);
    }
    pthread_mutex_lock(&card->lock);
    uint64_t until = arm_own(card); /* its leader may have stopped ticking */
    pthread_mutex_unlock(&card->lock);
    return until;
}

/* All descriptors are watched edge-triggered, so timer and command need no read: their only purpose
 * is to wake the thread. */
static void take_event(struct card *card, const struct epoll_event *ev, uint64_t woken,
                       uint64_t now)
{
    if (ev->data.u64 == KEY_TIMER)
        card->armed_ns = 0;
    else if (ev->data.u64 != KEY_COMMAND)
        ring(card, ev, woken, now);
}

static void *card_main(void *arg)
{
    struct card *card = arg;
    struct epoll_event events[MAX_EVENTS];
    bool quit = false;
    uint64_t until = QP_NEVER, beat_before = QP_NEVER;
    /* a thread without real-time scheduling would wake up to 50 us late */
    prctl(PR_SET_TIMERSLACK, 1ul);
    while (!quit) {
        int n = wait_until(card->epfd, events, MAX_EVENTS, until);
        uint64_t woken = qg_now_ns();
        pthread_mutex_lock(&card->lock);
        /* other threads may have taken steps meanwhile, with later times */
        uint64_t now = qg_now_ns();
        bool ticked = card->ticking && now >= card->wake_ns;
        bool alone = ticked; /* only the timer woke the thread */
        for (int i = 0; i < n; i++) {
            take_event(card, &events[i], woken, now);
            alone &= events[i].data.u64 == KEY_TIMER;
        }
        if (alone)
            card_tick(card, now);
        else if (n > 0 || now >= card->wake_ns)
            card_step(card, now); /* else another thread did this card's tick */
        until = arm_own(card);
        quit = card->quit;
        uint64_t beat = card->ticking ? card->tick_ns : QP_NEVER;
        bool resigned = beat > beat_before; /* the group may need another leader */
        beat_before = beat;
        pthread_mutex_unlock(&card->lock);
        if (ticked || resigned)
            until = tick_group(card, now);
    }
    return NULL;
}

/* Real-time scheduling if the kernel allows it. The log and `qgpu doctor` say what was obtained. */
static int start_thread(struct arbiter *a, struct card *card)
{
    pthread_attr_t attr;
    struct sched_param param = {.sched_priority = a->rt_priority};
    int err = EPERM;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    if (a->rt_priority > 0) {
        pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
        pthread_attr_setschedpolicy(&attr, SCHED_FIFO);
        pthread_attr_setschedparam(&attr, &param);
        err = pthread_create(&card->thread, &attr, card_main, card);
        pthread_attr_setinheritsched(&attr, PTHREAD_INHERIT_SCHED);
    }
    if (!err) {
        ar_log(a, 2, "card %u (%s): thread runs with policy SCHED_FIFO %d", card->number,
               card->uuid, a->rt_priority);
    } else {
        err = pthread_create(&card->thread, &attr, card_main, card);
        ar_log(
            a, a->rt_priority ? 1 : 2,
            "card %u (%s): thread runs with policy SCHED_OTHER; gates close late on a loaded node",
            card->number, card->uuid);
    }
    pthread_attr_destroy(&attr);
    return -err;
}

static int watch(int epfd, int fd, uint64_t key)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.u64 = key};
    return epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev);
}

static void card_free(struct card *card)
{
    if (card->epfd >= 0)
        close(card->epfd);
    if (card->timerfd >= 0)
        close(card->timerfd);
    if (card->eventfd >= 0)
        close(card->eventfd);
    free(card->trace);
    free(card);
}

struct card *card_create(struct arbiter *a, const char *uuid, int *err)
{
    pthread_mutexattr_t attr;
    struct card *card = a->ncards < AR_MAX_CARDS ? calloc(1, sizeof(*card)) : NULL;
    *err = -ENOSPC;
    if (!card)
        return NULL;
    memcpy(card->uuid, uuid, QG_UUID_LEN);
    card->number = a->ncards;
    card->arbiter = a;
    card->lease_ms = FIRST_LEASE_MS;
    qp_init(&card->policy);
    card->wake_ns = card->armed_ns = QP_NEVER;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&card->lock, &attr);
    card->epfd = epoll_create1(EPOLL_CLOEXEC);
    card->timerfd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    card->eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (a->trace_fd >= 0)
        card->trace = calloc(1, sizeof(*card->trace));
    if (card->epfd < 0 || watch(card->epfd, card->timerfd, KEY_TIMER) ||
        watch(card->epfd, card->eventfd, KEY_COMMAND) || (*err = start_thread(a, card)) != 0) {
        card_free(card);
        return NULL;
    }
    __atomic_store_n(&a->cards[a->ncards], card, __ATOMIC_RELEASE);
    __atomic_store_n(&a->ncards, a->ncards + 1, __ATOMIC_RELEASE);
    return card;
}

void card_stop(struct card *card)
{
    pthread_mutex_lock(&card->lock);
    card->quit = true;
    pthread_mutex_unlock(&card->lock);
    card_kick(card);
    pthread_join(card->thread, NULL);
}

static int add_bell(struct card *card, struct tenant *t)
{
    struct epoll_event ev = {.events = BELL_EVENTS, .data.u64 = bell_key(t)};
    return epoll_ctl(card->epfd, EPOLL_CTL_ADD, t->bell_fd, &ev) == 0 ? 0 : -errno;
}

void card_fresh_bell(struct card *card, struct tenant *t, int fd)
{
    int old = t->bell_fd;
    t->bell_fd = fd;
    if (add_bell(card, t) != 0) {
        t->bell_fd = old;
        old = fd;
    } else {
        /* the job may keep its copy open for ever */
        epoll_ctl(card->epfd, EPOLL_CTL_DEL, old, NULL);
        t->bell.muted = t->bell.jammed = false;
    }
    close(old);
}

int card_add(struct card *card, struct tenant *t)
{
    uint32_t i = 0;
    while (i < QP_MAX_TENANTS && card->tenants[i])
        i++;
    if (i == QP_MAX_TENANTS)
        return -ENOSPC;
    t->card = card;
    t->index = i;
    t->gen = ++card->next_gen;
    int err = add_bell(card, t);
    if (err)
        return err;
    qp_forget(&card->policy, i);
    hw_tenant_new(card, i);
    card->tenants[i] = t;
    if (card->policy.ntenants <= i)
        card->policy.ntenants = i + 1;
    gang_enter(t);
    return 0;
}

void card_remove(struct card *card, struct tenant *t)
{
    /* the job may keep its copy of the eventfd open for ever */
    epoll_ctl(card->epfd, EPOLL_CTL_DEL, t->bell_fd, NULL);
    card->tenants[t->index] = NULL;
    qp_forget(&card->policy, t->index);
    while (card->policy.ntenants && !card->tenants[card->policy.ntenants - 1])
        card->policy.ntenants--;
}
