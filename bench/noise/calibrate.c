/* SPDX-License-Identifier: Apache-2.0
 *
 * What this machine takes for two things that every program does: a call through the PLT with an
 * atomic add (in ns), and a wake-up by a timer (in ns of processor time). Benchmarks judge their
 * absolute figures as multiples of these, measured at the same time.
 *
 * usage: calibrate [SECONDS]   (default: until standard input ends)
 *
 * Prints one JSON object: the median of all samples, and half of their interquartile range. One
 * sample is taken in any case; on a machine whose processors others hold it takes seconds.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "calibrate.h"

#define WAKES       50    /* wake-ups of one sample, a millisecond apart */
#define MAX_SAMPLES 20000 /* samples kept: more than the longest scenario takes */
#define PRIORITY    10    /* of SCHED_FIFO, below the arbiter: ordinary threads do not delay it */

static volatile int told_to_end;

static void *await_end(void *unused)
{
    char c;
    while (read(STDIN_FILENO, &c, 1) > 0)
        ;
    told_to_end = 1;
    return unused;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* Processor time of this thread for one wake-up: the system call, the timer, the way back.
 * `whole`: the sample is not broken off (then: 0). */
static double wake_ns(int whole)
{
    uint64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID), due = now_ns();
    for (int i = 0; i < WAKES; i++) {
        if (told_to_end && !whole)
            return 0;
        due += 1000000;
        struct timespec t = {.tv_sec = (time_t)(due / 1000000000u),
                             .tv_nsec = (long)(due % 1000000000u)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
            ;
    }
    return (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - before) / WAKES;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_unit(const char *name, double *samples, int n, const char *end)
{
    qsort(samples, (size_t)n, sizeof *samples, by_value);
    printf("\"%s\": %.3f, \"%s_spread\": %.3f%s", name, samples[n / 2], name,
           (samples[n * 3 / 4] - samples[n / 4]) / 2, end);
}

int main(int argc, char **argv)
{
    static double calls[MAX_SAMPLES], wakes[MAX_SAMPLES];
    double seconds = argc > 1 ? atof(argv[1]) : 0;
    if (argc > 1 && !(seconds > 0 && seconds <= 600)) {
        fprintf(stderr, "calibrate: %s seconds were asked for; give more than 0, at most 600\n",
                argv[1]);
        return 2;
    }
    pthread_t reader;
    if (argc == 1 && pthread_create(&reader, NULL, await_end, NULL) != 0)
        return 1;
    struct sched_param p = {.sched_priority = PRIORITY};
    int fifo = sched_setscheduler(0, SCHED_FIFO, &p) == 0, n = 0;
    uint64_t start = now_ns();
    while (n < MAX_SAMPLES) {
        int over = argc > 1 ? (double)(now_ns() - start) >= seconds * 1e9 : told_to_end;
        if (over && n > 0)
            break;
        calls[n] = qb_unit_ns(now_ns);
        wakes[n] = wake_ns(n == 0);
        n += wakes[n] > 0;
    }
    printf("{");
    print_unit("call_ns", calls, n, ", ");
    print_unit("wake_ns", wakes, n, ", ");
    printf("\"samples\": %d, \"policy\": \"%s\"}\n", n, fifo ? "SCHED_FIFO" : "refused");
    return 0;
}
