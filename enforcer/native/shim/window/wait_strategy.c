/* SPDX-License-Identifier: Apache-2.0
 *
 * Wait strategy: how long a thread that waits for room sleeps until the next poll.
 */
#include "window/wait_strategy.h"

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ns by which a sleep ends before the predicted end of work: a thread wakes late */
#define WAKE_EARLY_NS 50000u
/* most ns of one sleep, since the gate may close meanwhile */
#define LONGEST_SLEEP_NS 1000000u
/* ns past the lower estimate without sleep: work of uncertain length often ends there */
#define SOON_NS 60000u
/* near an expected end, polls are 1/64 of the elapsed time apart: bounds the error */
#define EXPECTED_PARTS 64u
/* 1/16: the same for a function of varying duration, once it may have ended */
#define VARIES_PARTS 16u
/* ns after the expected end at which the first poll comes: most work is over then */
#define AFTER_NS 5000u
/* ns of work queued behind what runs, so that a late poll leaves the card no gap */
#define RESERVE_NS 100000u
/* ns added to the estimate of wake-up delay after a wake-up later than estimated */
#define LATE_STEP_NS 1000u
/* steps taken off after an earlier wake-up: a quarter of them then come earlier */
#define LATE_PARTS 3u
/* most ns of that estimate: a longer delay means no free CPU, which polling cannot mend */
#define LATEST_NS 60000u
/* least ns of a sleep; below it, polling is as cheap */
#define SHORTEST_SLEEP_NS 5000u

static unsigned late_ns; /* atomic */

void qg_wait_slept(uint64_t asked_ns, uint64_t took_ns)
{
    unsigned late = __atomic_load_n(&late_ns, __ATOMIC_RELAXED), down = LATE_PARTS * LATE_STEP_NS;
    if (took_ns < asked_ns)
        return; /* a signal */
    if (took_ns - asked_ns > late)
        late = late + LATE_STEP_NS < LATEST_NS ? late + LATE_STEP_NS : LATEST_NS;
    else
        late = late > down ? late - down : 0;
    __atomic_store_n(&late_ns, late, __ATOMIC_RELAXED);
}

/* Sleep that ends exactly in left_ns. A thread wakes late, so it asks to be woken earlier. */
static uint64_t until(uint64_t left_ns)
{
    uint64_t late = __atomic_load_n(&late_ns, __ATOMIC_RELAXED);
    return left_ns > late + SHORTEST_SLEEP_NS ? left_ns - late : 0;
}

uint64_t qg_wait_sleep_ns(const struct qg_poll *at)
{
    uint64_t waited = at->now - at->began, low = at->first_low_ns, high = at->first_ns;
    uint64_t behind = at->inflight.sum_ns - at->inflight.first_ns, sleep_ns = DEFAULT_SLEEP_NS;
    if (waited <= SPIN_NS)
        return 0;
    bool sure = !qg_uncertain(at), exact = at->due > waited && sure;
    if (exact)
        sleep_ns = until(at->due - waited);
    else if (behind >= RESERVE_NS)
        sleep_ns = waited < low              ? until(low - waited + AFTER_NS)
                   : behind / 8 < RESERVE_NS ? behind / 8
                                             : RESERVE_NS;
    else if (waited < low)
        sleep_ns = low - waited > WAKE_EARLY_NS ? low - waited - WAKE_EARLY_NS : 0;
    else if (!sure && waited < low + SOON_NS)
        sleep_ns = 0;
    else if (waited < high)
        sleep_ns = high - waited <= WAKE_EARLY_NS                ? 0
                   : high - waited - WAKE_EARLY_NS < waited / 16 ? high - waited - WAKE_EARLY_NS
                                                                 : waited / 16;
    else if (waited - high > LONGEST_SLEEP_NS)
        sleep_ns = (waited - high) / 16;
    bool varies = at->inflight.first_low_ns < at->inflight.first_ns / 4 * 3 &&
                  waited >= at->inflight.first_low_ns;
    uint64_t most = at->expected ? waited / EXPECTED_PARTS
                    : varies     ? waited / VARIES_PARTS
                                 : sleep_ns;
    if (sleep_ns > most)
        sleep_ns = most;
    if (at->due > waited && sleep_ns > at->due - waited)
        sleep_ns = at->due - waited;
    if (sleep_ns && sleep_ns < DEFAULT_SLEEP_NS && !exact)
        sleep_ns = DEFAULT_SLEEP_NS;
    return sleep_ns < LONGEST_SLEEP_NS ? sleep_ns : LONGEST_SLEEP_NS;
}

int qg_timer_slack_off(void)
{
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    return slack;
}

void qg_timer_slack_restore(int slack)
{
    if (slack > 0)
        prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
}

/* Uses system calls by number, since the functions of libc are cancellation points. The arbiter
 * wakes a held thread, and so does the end of its own work. */
void qg_wait_sleep(const struct qg_poll *at, const uint32_t *word)
{
    struct timespec wait = {0, (long)qg_wait_sleep_ns(at)};
    if ((at->held || at->expired) && !at->inflight.sum_ns)
        wait.tv_nsec = DEFAULT_SLEEP_NS;
    if (at->closed)
        return;
    if (!wait.tv_nsec) {
        __builtin_ia32_pause();
        return;
    }
    int slack = qg_timer_slack_off();
    uint64_t from = qg_now_ns();
    if (at->held)
        syscall(SYS_futex, word, FUTEX_WAIT, at->flags, &wait, NULL, 0);
    else if (syscall(SYS_nanosleep, &wait, NULL) == 0)
        qg_wait_slept((uint64_t)wait.tv_nsec, qg_now_ns() - from);
    qg_timer_slack_restore(slack);
}
