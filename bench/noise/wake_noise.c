/* SPDX-License-Identifier: Apache-2.0
 *
 * How noisy is this machine: the time by which a sleeping thread wakes late, once as an ordinary
 * thread and once under SCHED_FIFO, both idle otherwise. Prints one JSON object. Benchmarks put it
 * beside their figures, because a preemption figure cannot be better than the wake-up it is made
 * of.
 *
 * usage: wake-noise [SAMPLES]   (one sample is 1 ms; default 1000 per policy)
 */
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Fills late[] with how late each of n absolute 1 ms sleeps ended, in ns. */
static void sample(int64_t *late, int n)
{
    for (int i = 0; i < n; i++) {
        int64_t due = now_ns() + 1000000;
        struct timespec t = {.tv_sec = due / 1000000000LL, .tv_nsec = due % 1000000000LL};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
            ;
        late[i] = now_ns() - due;
    }
    qsort(late, (size_t)n, sizeof *late, by_value);
}

static void print_policy(const char *name, const int64_t *late, int n, const char *end)
{
    printf("\"%s_p50_us\": %.1f, \"%s_p99_us\": %.1f, \"%s_max_us\": %.1f%s", name,
           (double)late[n / 2] / 1e3, name, (double)late[n * 99 / 100] / 1e3, name,
           (double)late[n - 1] / 1e3, end);
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 1000;
    if (n < 10 || n > 100000) {
        fprintf(stderr, "wake-noise: %s samples were asked for; give 10 to 100000\n", argv[1]);
        return 2;
    }
    int64_t *late = calloc((size_t)n, sizeof *late);
    if (!late)
        return 1;
    sample(late, n);
    printf("{");
    print_policy("ordinary", late, n, ", ");
    struct sched_param p = {.sched_priority = 10};
    int fifo = sched_setscheduler(0, SCHED_FIFO, &p) == 0;
    sample(late, n);
    print_policy("realtime", late, n, ", ");
    printf("\"realtime_policy\": \"%s\"}\n", fifo ? "SCHED_FIFO" : "refused");
    free(late);
    return 0;
}
