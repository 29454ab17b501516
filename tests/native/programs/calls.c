/* SPDX-License-Identifier: Apache-2.0
 *
 * ioctl(2) as any program uses it, to be run with and without the shim before libc: the answers
 * must be the same (test_shim_groups_calls.py). `cost` times it against the bare system call. Built
 * as a library too, whose constructor calls before the shim's has run.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "qgpu_rm.h"

static int tell(const char *name, int result, int error, int value)
{
    printf("%s %d %d %d\n", name, result, error, value);
    return 0;
}

static void ask(const char *name, int fd, unsigned long request, void *argument, int *value)
{
    errno = 77;
    int result = ioctl(fd, request, argument);
    int error = errno;
    tell(name, result, error, value ? *value : 0);
}

#ifdef EARLY
/* more than a small stack (test_shim_groups.py) */
__attribute__((visibility("default"))) __thread char large[160 * 1024];

__attribute__((constructor)) static void early(void)
{
    int ends[2], waiting = -1;
    if (pipe(ends) || write(ends[1], "abc", 3) != 3)
        abort();
    ask("early", ends[0], FIONREAD, &waiting, &waiting);
    ask("early_driver", ends[0], RM_CONTROL, NULL, NULL);
    fflush(stdout);
}
#else

static int ends[2];
static volatile sig_atomic_t handled;

static void handler(int number)
{
    struct rm_free gone = {.client = 1, .object = 1};
    int saved = errno, waiting;
    (void)number;
    ioctl(ends[0], FIONREAD, &waiting);
    ioctl(ends[0], RM_FREE, &gone);
    handled++;
    errno = saved;
}

static void storm(void)
{
    struct itimerval each = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    struct rm_alloc64 wrong = {.class_id = RM_CLASS_GROUP};
    int bad = 0, waiting = 0;
    signal(SIGALRM, handler);
    setitimer(ITIMER_REAL, &each, NULL);
    for (int i = 0; i < 1000000 && handled < 1000; i++) {
        errno = 77;
        bad += ioctl(ends[0], FIONREAD, &waiting) != 0 || waiting != 3 || errno != 77;
        bad += ioctl(ends[0], RM_ALLOC64, &wrong) != -1 || errno != ENOTTY;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    tell("storm", handled >= 1000, 0, bad);
}

static void in_vfork(void)
{
    int waiting = -1, status;
    pid_t child = vfork();
    if (child == 0)
        _exit(ioctl(ends[0], FIONREAD, &waiting) == 0 && waiting == 3 ? 5 : 6);
    waitpid(child, &status, 0);
    tell("vfork", WEXITSTATUS(status), 0, waiting);
}

static double ns_of(int way, unsigned long request)
{
    struct timespec a, b;
    int waiting;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < 20000; i++)
        way ? (void)ioctl(ends[0], request, &waiting)
            : (void)syscall(SYS_ioctl, ends[0], request, &waiting);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / 20000;
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

#define PAIRS 51
static void cost(const char *name, unsigned long request)
{
    double more[PAIRS];
    for (int i = 0; i < PAIRS; i++)
        more[i] = ns_of(1, request) - ns_of(0, request);
    qsort(more, PAIRS, sizeof(*more), order);
    printf("%s %.1f\n", name, more[PAIRS / 2]);
}

int main(int argc, char **argv)
{
    int waiting = -1;
    struct termios terminal;
    struct rm_alloc alloc = {.class_id = RM_CLASS_ROOT_CLIENT};
    struct rm_free gone = {.client = 1, .object = 1};
    if (pipe(ends) || write(ends[1], "abc", 3) != 3)
        return 1;
    if (argc > 1 && !strcmp(argv[1], "cost")) {
        cost("ioctl_overhead_ns", FIONREAD);
        /* refused by the pipe, so that only the way there counts */
        cost("ioctl_driver_overhead_ns", RM_CONTROL);
        return 0;
    }
    ask("answers", ends[0], FIONREAD, &waiting, &waiting);
    ask("bad_descriptor", -1, FIONREAD, &waiting, NULL);
    ask("bad_pointer", ends[0], FIONREAD, (void *)1, NULL);
    ask("no_terminal", ends[0], TCGETS, &terminal, NULL);
    ask("no_argument", ends[0], FIOCLEX, NULL, NULL);
    ask("driver_alloc", ends[0], RM_ALLOC, &alloc, NULL);
    ask("driver_free", ends[0], RM_FREE, &gone, NULL);
    ask("driver_null", ends[0], RM_ALLOC, NULL, NULL);
    ask("driver_wild", -1, RM_CONTROL, (void *)1, NULL);
    ask("wild_free", ends[0], RM_FREE, (void *)1, NULL);
    ask("wild_free_closed", -1, RM_FREE, (void *)-16, NULL);
    ask("wild_envelope", ends[0], _IOC(_IOC_READ | _IOC_WRITE, RM_MAGIC, 211, 16), (void *)1, NULL);
    ask("wild_in_envelope", ends[0], _IOC(_IOC_READ | _IOC_WRITE, RM_MAGIC, 211, 16),
        (uint64_t[]){(uint64_t)sizeof(struct rm_free) << 32 | RM_ESC_FREE, 1}, NULL);
    ask("driver_odd_size", ends[0], _IOC(_IOC_READ | _IOC_WRITE, RM_MAGIC, RM_ESC_ALLOC, 99),
        &alloc, NULL);
    ask("signed", ends[0], (unsigned long)(long)(int)RM_CONTROL, NULL, NULL);
    in_vfork();
    storm();
    return 0;
}
#endif
