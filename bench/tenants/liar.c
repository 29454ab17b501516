/* SPDX-License-Identifier: Apache-2.0
 *
 * A control of the benchmarks: preloaded beside the shim, it claims again and again that everything
 * which this process submitted is finished. A long kernel then seems to cost nothing. What the job
 * writes is a hint; shares measured in the trace show whether the arbiter believed it.
 */
#include <pthread.h>
#include <time.h>

#include "own_page.h"

#define EACH_NS 50000

static void lie(struct qg_proc *proc)
{
    for (unsigned i = 0; i < QG_FENCES; i++) {
        uint32_t submitted = __atomic_load_n(&proc->fences[i].submitted, __ATOMIC_RELAXED);
        __atomic_store_n(&proc->fences[i].done, submitted, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&proc->unfenced, 0, __ATOMIC_RELAXED);
}

static void *liar(void *unused)
{
    const struct timespec pause = {0, EACH_NS};
    struct qg_proc *own = NULL;
    for (;;) {
        nanosleep(&pause, NULL);
        own = own ? own : own_slot();
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
