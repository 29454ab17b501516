/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant that lies about being busy: preloaded beside the shim, it claims from its first launch
 * on that work of this process is on the card that never ends. It submits none.
 */
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "own_page.h"

#define EACH_NS 50000
#define AHEAD   1000u

static bool launched(const struct qg_proc *own)
{
    uint64_t sum = __atomic_load_n(&own->launches, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < QG_LANES; i++)
        sum += __atomic_load_n(&own->lanes[i].launches, __ATOMIC_RELAXED);
    return sum > 0;
}

static void *poser(void *unused)
{
    const struct timespec pause = {0, EACH_NS};
    struct qg_proc *own = NULL;
    for (;;) {
        nanosleep(&pause, NULL);
        own = own ? own : own_slot();
        if (!own || !launched(own))
            continue;
        __atomic_store_n(&own->fences[QG_FENCES - 1].submitted, AHEAD, __ATOMIC_RELAXED);
    }
    return unused;
}

__attribute__((constructor)) static void start(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, poser, NULL) == 0)
        pthread_detach(thread);
}
