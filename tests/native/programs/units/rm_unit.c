/* SPDX-License-Identifier: Apache-2.0
 *
 * The shim's table of the driver's objects, alone: orders on stdin, answers on stdout
 * (test_shim_groups_table.py). `race` lets threads make, free and look at once, with a handler that
 * does the same on the same threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "groups/rm.h"

static unsigned number(char **rest)
{
    return (unsigned)strtoul(*rest, rest, 0);
}

/* One line per device: its handles, then groups with engines, then channels with their groups; all
 * sorted by the reader. */
static void view(void)
{
    struct qg_rm_snapshot v;
    for (unsigned at = 0; qg_rm_next(&at, &v);) {
        printf("%u %u %u %d %u |", v.reported.client, v.reported.device, v.reported.subdevice, v.fd,
               v.reported.flags);
        for (uint32_t i = 0; i < v.reported.ngroups; i++)
            printf(" %u:%u", v.reported.groups[i].handle, v.reported.groups[i].engine);
        printf(" |");
        for (uint32_t i = 0; i < v.reported.nchannels; i++)
            printf(" %u:%u", v.reported.channels[i].handle, v.reported.channels[i].group);
        printf("\n");
    }
    printf(".\n");
}

static void borrow(void)
{
    struct qg_rm_snapshot v;
    for (unsigned at = 0; qg_rm_next(&at, &v);) {
        int fd = qg_rm_borrow(&v);
        printf("%u %s\n", v.reported.device, fd < 0 ? "lost" : "have");
        if (fd < 0)
            qg_rm_unreachable(&v);
        else
            close(fd);
    }
    printf(".\n");
}

#define THREADS 6

static void busy(uint32_t client, unsigned times)
{
    struct qg_rm_snapshot v;
    for (unsigned i = 0; i < times; i++) {
        uint32_t group = 1000 + i % 50, channel = 2000 + i % 50;
        qg_rm_allocated(0, client, 10, group, RM_CLASS_GROUP, 1);
        qg_rm_allocated(0, client, group, channel, 0xc86f, 0);
        qg_rm_scheduled(0, client, group);
        unsigned at = 0;
        if (i % 16 == 0)
            qg_rm_next(&at, &v);
        qg_rm_freed(client, group, qg_rm_freeing(client, group));
        if (qg_rm_freeing(client, channel))
            abort(); /* a channel outlived its group */
    }
}

static uint32_t client_of_thread(pthread_t *threads)
{
    for (uint32_t i = 0; i < THREADS; i++)
        if (pthread_equal(threads[i], pthread_self()))
            return 100 + i;
    return 99;
}

static pthread_t threads[THREADS];
static pthread_barrier_t begin;

static void handler(int signal)
{
    (void)signal;
    int saved = errno; /* as ioctl() does */
    uint32_t client = client_of_thread(threads) + 50;
    qg_rm_allocated(0, client, 10, 3000, RM_CLASS_GROUP, 1);
    qg_rm_freed(client, 3000, qg_rm_freeing(client, 3000));
    errno = saved;
}

static void *racer(void *times)
{
    pthread_barrier_wait(&begin);
    busy(client_of_thread(threads), (unsigned)(uintptr_t)times);
    return NULL;
}

static void race(unsigned times)
{
    for (uint32_t i = 0; i < THREADS; i++) {
        qg_rm_allocated(0, 0, 0, 100 + i, RM_CLASS_ROOT_CLIENT, 0);
        qg_rm_allocated(0, 100 + i, 100 + i, 10, RM_CLASS_DEVICE, 0);
        qg_rm_allocated(0, 0, 0, 150 + i, RM_CLASS_ROOT_CLIENT, 0);
        qg_rm_allocated(0, 150 + i, 150 + i, 10, RM_CLASS_DEVICE, 0);
    }
    signal(SIGUSR1, handler);
    pthread_barrier_init(&begin, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, racer, (void *)(uintptr_t)times);
    pthread_barrier_wait(&begin);
    for (unsigned i = 0; i < times / 4; i++)
        pthread_kill(threads[i % THREADS], SIGUSR1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    view();
}

int main(void)
{
    char line[256];
    while (fgets(line, sizeof(line), stdin)) {
        char word[16];
        int used = 0;
        unsigned a[6] = {0};
        if (sscanf(line, "%15s%n", word, &used) != 1)
            continue;
        char *rest = line + used;
        for (int i = 0; i < 6; i++)
            a[i] = number(&rest);
        if (!strcmp(word, "alloc"))
            qg_rm_allocated((int)a[0], a[1], a[2], a[3], a[4], a[5]);
        else if (!strcmp(word, "dup"))
            qg_rm_duplicated((int)a[0], a[1], a[2], a[3], a[4], a[5]);
        else if (!strcmp(word, "schedule"))
            qg_rm_scheduled((int)a[0], a[1], a[2]);
        else if (!strcmp(word, "free"))
            qg_rm_freed(a[0], a[1], qg_rm_freeing(a[0], a[1]));
        else if (!strcmp(word, "freeing"))
            printf("%u\n", qg_rm_freeing(a[0], a[1]));
        else if (!strcmp(word, "freed"))
            qg_rm_freed(a[0], a[1], a[2]);
        else if (!strcmp(word, "notfreed"))
            qg_rm_not_freed(a[0], a[1], a[2]);
        else if (!strcmp(word, "odd"))
            qg_rm_not_understood();
        else if (!strcmp(word, "used"))
            qg_rm_used((int)a[0], a[1]);
        else if (!strcmp(word, "open"))
            printf("%d\n", open("/dev/null", O_RDWR | O_CLOEXEC));
        else if (!strcmp(word, "pipe"))
            printf("%d\n", memfd_create("other", MFD_CLOEXEC));
        else if (!strcmp(word, "dup2"))
            dup2((int)a[0], (int)a[1]);
        else if (!strcmp(word, "close"))
            close((int)a[0]);
        else if (!strcmp(word, "changes"))
            printf("%u\n", qg_rm_changes());
        else if (!strcmp(word, "view"))
            view();
        else if (!strcmp(word, "borrow"))
            borrow();
        else if (!strcmp(word, "race"))
            race(a[0]);
        else if (!strcmp(word, "fork")) {
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                view();
                fflush(stdout);
                _exit(0);
            }
            waitpid(child, NULL, 0);
        }
        fflush(stdout);
    }
    return 0;
}
