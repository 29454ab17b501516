/* SPDX-License-Identifier: Apache-2.0
 *
 * A call that a signal leaves by siglongjmp, as programs with a time limit do:
 *
 *     if (!sigsetjmp(leave_to, 1)) {
 *         leave_after_ms(50);
 *         ... the call ...
 *         leave_never();
 *     }
 *
 * Only a wait is left. On a busy machine the time may be over before the call waits; a jump from
 * there could leave a lock taken, with any driver. So the signal comes again each millisecond until
 * it interrupts a system call that sleeps.
 */
#ifndef QG_TEST_LEAVE_H
#define QG_TEST_LEAVE_H

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

static sigjmp_buf leave_to;

static inline void leave_never(void)
{
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
}

/* A handler without SA_RESTART sees what the interrupted system call will return. */
static void leave_a_wait(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info;
    if ((long)((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] != -EINTR)
        return;
    leave_never();
    siglongjmp(leave_to, 1);
}

static inline void leave_after_ms(long ms)
{
    struct sigaction how = {.sa_sigaction = leave_a_wait, .sa_flags = SA_SIGINFO};
    sigaction(SIGALRM, &how, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 1000}, {ms / 1000, ms % 1000 * 1000}}, NULL);
}

#endif
