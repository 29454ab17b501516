/* SPDX-License-Identifier: Apache-2.0
 *
 * Closes the descriptors that brokers passed on (fds/broker_child.c): small memory files and the
 * driver's control device. The driver frees all that belongs to a control device at its last close,
 * which may take long. Helper threads close them, so that the main thread never waits. Where all
 * helpers are stuck, one more is started.
 */
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include "base/base.h"
#include "fds/fds.h"
#include "policy/policy.h"
#include "qg_time.h"

enum {
    MAX_FD = 65536,       /* descriptors; main.c sets this limit for the process */
    MAX_HELPERS = 64,     /* threads; a bound on stuck calls of the driver; chosen, not measured */
    HELPER_STUCK_MS = 20, /* one close that takes longer is stuck; chosen, not measured */
    REVIEW_MS = 50        /* between two checks for stuck helpers; chosen, not measured */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    int next[MAX_FD]; /* linked list indexed by descriptor, so that it can never be full */
    int first, last;
    uint32_t waiting;               /* descriptors in the list */
    uint32_t idle, nhelpers;        /* helpers that wait for work; all helpers */
    uint64_t since_ns[MAX_HELPERS]; /* when each helper began its close, 0 = it closes none */
} close_queue = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER, .first = -1, .last = -1};

static int take(void)
{
    int fd = close_queue.first;
    close_queue.first = close_queue.next[fd];
    if (close_queue.first < 0)
        close_queue.last = -1;
    close_queue.waiting--;
    return fd;
}

static void *close_helper_main(void *arg)
{
    size_t self = (size_t)arg;
    pthread_mutex_lock(&close_queue.lock);
    for (;;) {
        while (close_queue.first < 0) {
            close_queue.idle++;
            pthread_cond_wait(&close_queue.more, &close_queue.lock);
            close_queue.idle--;
        }
        int fd = take();
        close_queue.since_ns[self] = qg_now_ns();
        pthread_mutex_unlock(&close_queue.lock);
        close(fd); /* Linux frees the descriptor also where a signal interrupts this */
        pthread_mutex_lock(&close_queue.lock);
        close_queue.since_ns[self] = 0;
    }
    return NULL;
}

/* Blocks all signals in the new thread: the main thread takes them from its signalfd. */
static bool add_close_helper(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    size_t self = close_queue.nhelpers;
    if (self == MAX_HELPERS)
        return false;
    pthread_attr_init(&attr);
    /* 64 KiB, or the least that is allowed: a helper calls close() only */
    pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN > 65536 ? (size_t)PTHREAD_STACK_MIN : 65536);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&thread, &attr, close_helper_main, (void *)self);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (!err)
        close_queue.nhelpers++;
    return !err;
}

bool close_helper_start(void)
{
    pthread_mutex_lock(&close_queue.lock);
    bool ok = add_close_helper();
    pthread_mutex_unlock(&close_queue.lock);
    return ok;
}

void close_helper_close(int fd)
{
    pthread_mutex_lock(&close_queue.lock);
    if (fd >= MAX_FD || !close_queue.nhelpers) {
        pthread_mutex_unlock(&close_queue.lock);
        close(fd); /* above the process's limit of descriptors, which cannot happen in practice */
        return;
    }
    close_queue.next[fd] = -1;
    if (close_queue.last >= 0)
        close_queue.next[close_queue.last] = fd;
    else
        close_queue.first = fd;
    close_queue.last = fd;
    close_queue.waiting++;
    if (close_queue.idle)
        pthread_cond_signal(&close_queue.more);
    pthread_mutex_unlock(&close_queue.lock);
}

int close_helper_review(uint64_t now)
{
    pthread_mutex_lock(&close_queue.lock);
    uint32_t stuck = 0, busy = 0;
    for (uint32_t i = 0; i < close_queue.nhelpers; i++) {
        uint64_t since = close_queue.since_ns[i];
        busy += since != 0;
        stuck += since && now >= since + HELPER_STUCK_MS * QP_MS;
    }
    if (close_queue.waiting && stuck == close_queue.nhelpers)
        add_close_helper();
    bool again = close_queue.waiting || busy;
    pthread_mutex_unlock(&close_queue.lock);
    return again ? REVIEW_MS : -1;
}
