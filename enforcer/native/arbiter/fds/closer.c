/* SPDX-License-Identifier: Apache-2.0
 *
 * Closing what porters passed on (porter.c), somewhere else: small memory files, and control
 * devices, whose last close may keep the driver busy for as long as it takes to give back what hung
 * on it. Helpers do it, more of them while some are stuck, so that the thread that serves everybody
 * never waits.
 */
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include "base/base.h"
#include "fds/fds.h"
#include "policy/policy.h"
#include "qg_time.h"

enum { MAX_FD = 65536, MAX_HELPERS = 64, STUCK_MS = 20, REVIEW_MS = 50 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    int next[MAX_FD]; /* a list through the numbers themselves: it cannot be full */
    int first, last;
    uint32_t waiting, idle, nhelpers;
    uint64_t since_ns[MAX_HELPERS]; /* of each helper; 0 = not closing anything */
} closer = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER, .first = -1, .last = -1};

static int take(void)
{
    int fd = closer.first;
    closer.first = closer.next[fd];
    if (closer.first < 0)
        closer.last = -1;
    closer.waiting--;
    return fd;
}

static void *helper_main(void *arg)
{
    size_t self = (size_t)arg;
    pthread_mutex_lock(&closer.lock);
    for (;;) {
        while (closer.first < 0) {
            closer.idle++;
            pthread_cond_wait(&closer.more, &closer.lock);
            closer.idle--;
        }
        int fd = take();
        closer.since_ns[self] = qg_now_ns();
        pthread_mutex_unlock(&closer.lock);
        close(fd); /* interrupted or not, it is gone */
        pthread_mutex_lock(&closer.lock);
        closer.since_ns[self] = 0;
    }
    return NULL;
}

/* Signals stay with the main thread's signalfd. */
static bool add_helper(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    size_t self = closer.nhelpers;
    if (self == MAX_HELPERS)
        return false;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN > 65536 ? (size_t)PTHREAD_STACK_MIN : 65536);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&thread, &attr, helper_main, (void *)self);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (!err)
        closer.nhelpers++;
    return !err;
}

bool closer_start(void)
{
    pthread_mutex_lock(&closer.lock);
    bool ok = add_helper();
    pthread_mutex_unlock(&closer.lock);
    return ok;
}

void closer_close(int fd)
{
    pthread_mutex_lock(&closer.lock);
    if (fd >= MAX_FD || !closer.nhelpers) {
        pthread_mutex_unlock(&closer.lock);
        close(fd); /* beyond our own limit of descriptors: never in practice */
        return;
    }
    closer.next[fd] = -1;
    if (closer.last >= 0)
        closer.next[closer.last] = fd;
    else
        closer.first = fd;
    closer.last = fd;
    closer.waiting++;
    if (closer.idle)
        pthread_cond_signal(&closer.more);
    pthread_mutex_unlock(&closer.lock);
}

int closer_review(uint64_t now)
{
    pthread_mutex_lock(&closer.lock);
    uint32_t stuck = 0, busy = 0;
    for (uint32_t i = 0; i < closer.nhelpers; i++) {
        uint64_t since = closer.since_ns[i];
        busy += since != 0;
        stuck += since && now >= since + STUCK_MS * QP_MS;
    }
    if (closer.waiting && stuck == closer.nhelpers)
        add_helper();
    bool again = closer.waiting || busy;
    pthread_mutex_unlock(&closer.lock);
    return again ? REVIEW_MS : -1;
}
