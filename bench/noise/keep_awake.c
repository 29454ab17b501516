/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps the processors awake: a thread on each one that may be used here, with the policy
 * SCHED_IDLE, so that it runs only where nothing else does. A processor that sleeps wakes late: out
 * of a deep state of its own, or, in a virtual machine, when the host finds time for it again. Runs
 * until its standard input ends.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

static void *spin(void *arg)
{
    struct sched_param none = {0};
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((int)(long)arg, &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0 ||
        sched_setscheduler(0, SCHED_IDLE, &none) != 0)
        return NULL; /* not where it would take anything from others */
    for (;;)
        __builtin_ia32_pause();
}

int main(void)
{
    cpu_set_t all;
    pthread_t thread;
    char c;
    if (sched_getaffinity(0, sizeof(all), &all) != 0) {
        perror("keep-awake: sched_getaffinity");
        return 1;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && pthread_create(&thread, NULL, spin, (void *)(long)cpu) != 0)
            return 1;
    while (read(STDIN_FILENO, &c, 1) > 0)
        ;
    return 0;
}
