/* SPDX-License-Identifier: Apache-2.0
 *
 * A control of the benchmarks: preloaded beside the shim, it claims again and again that everything which this process
 * submitted is finished. A long kernel then seems to cost nothing. What the job writes is a hint; shares measured in the
 * trace must show whether anybody believed it.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "qgpu_abi.h"

#define EACH_NS 50000

/* The job page of this process, found as any program could: by its name in the list of mappings. */
static struct qg_job_page *find_page(void)
{
    char line[512];
    struct qg_job_page *page = NULL;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && !page && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (!strstr(line, " rw-s ") || sscanf(line, "%lx-%lx", &start, &end) != 2 ||
            end - start < sizeof(struct qg_job_page))
            continue;
        struct qg_job_page *there = (struct qg_job_page *)start;
        if (strstr(line, "/memfd:") && there->magic == QG_MAGIC && there->nslots == QG_MAX_PROCS)
            page = there;
    }
    if (maps)
        fclose(maps);
    return page;
}

static void lie(struct qg_proc *proc)
{
    for (unsigned i = 0; i < QG_MARKERS; i++) {
        uint32_t submitted = __atomic_load_n(&proc->markers[i].submitted, __ATOMIC_RELAXED);
        __atomic_store_n(&proc->markers[i].done, submitted, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&proc->unmarked, 0, __ATOMIC_RELAXED);
}

static void *liar(void *unused)
{
    const struct timespec pause = {0, EACH_NS};
    struct qg_job_page *page = NULL;
    struct qg_proc *own = NULL;
    for (;;) {
        nanosleep(&pause, NULL);
        page = page ? page : find_page();
        for (unsigned i = 0; page && !own && i < QG_MAX_PROCS; i++)
            if (page->procs[i].pid == (uint32_t)getpid())
                own = &page->procs[i];
        if (own)
            lie(own);
    }
    return unused;
}

__attribute__((constructor)) static void start(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, liar, NULL) == 0)
        pthread_detach(thread);
}
