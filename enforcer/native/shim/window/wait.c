/* SPDX-License-Identifier: Apache-2.0
 *
 * Sleeps of a thread that waits for the end of work (wait.h).
 */
#include "window/wait.h"

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* 1/n: Polls for an unknown end are this part of the time that the work has run apart. So they miss
 * it by that part at most. Evidence: none. */
#define POLL_PARTS 16u

uint64_t qg_wait_ns(uint64_t ran_ns, uint64_t least_ns, uint64_t due_ns)
{
    uint64_t next_ns = due_ns && due_ns < least_ns ? due_ns : least_ns,
             sleep_ns = next_ns > ran_ns ? next_ns - ran_ns : ran_ns / POLL_PARTS;
    if (due_ns > ran_ns && sleep_ns > due_ns - ran_ns)
        sleep_ns = due_ns - ran_ns;
    if (sleep_ns < QG_SHORTEST_SLEEP_NS)
        return QG_SHORTEST_SLEEP_NS;
    return sleep_ns < QG_LONGEST_SLEEP_NS ? sleep_ns : QG_LONGEST_SLEEP_NS;
}

/* System calls by number, since the functions of libc are cancellation points. */
void qg_wait_sleep(uint64_t sleep_ns, const uint32_t *word, uint32_t seen)
{
    struct timespec sleep = {0, (long)sleep_ns};
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    if (word)
        syscall(SYS_futex, word, FUTEX_WAIT, seen, &sleep, NULL, 0);
    else
        syscall(SYS_nanosleep, &sleep, NULL);
    if (slack > 0) /* the program's own setting */
        prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
}
