/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands of the probe for allocations that wait for room: in many threads, left by siglongjmp,
 * while the program forks or ends.
 */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "../leave.h"
#include "probe.h"

#define THREADS 512

static pthread_t all[THREADS];
static long started;
static unsigned got, refused; /* atomic */

static void *allocate(void *size)
{
    CUdeviceptr pointer;
    CALL(cuCtxSetCurrent)(contexts[0]);
    int result = CALL(cuMemAlloc_v2)(&pointer, (size_t)(uintptr_t)size);
    __atomic_fetch_add(result ? &refused : &got, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* allocs COUNT SIZE: each in a thread of its own; nobody waits for them */
static int begin(long count, long size)
{
    for (long i = 0; i < count; i++, started++)
        if (started == THREADS ||
            pthread_create(&all[started], NULL, allocate, (void *)(uintptr_t)size))
            return 1;
    return 0;
}

static int join(void)
{
    for (; started; started--)
        pthread_join(all[started - 1], NULL);
    return (int)refused;
}

static int with_timeout(long size, long ms)
{
    CUdeviceptr pointer;
    if (sigsetjmp(leave_to, 1))
        return 1;
    leave_after_ms(ms);
    int result = CALL(cuMemAlloc_v2)(&pointer, (size_t)size);
    leave_never();
    return -result;
}

int room_command(char **w)
{
    if (!strcmp(w[0], "allocs"))
        return begin(arg(w, 1), arg(w, 2));
    if (!strcmp(w[0], "allocs_got"))
        return (int)__atomic_load_n(&got, __ATOMIC_SEQ_CST);
    if (!strcmp(w[0], "allocs_join")) /* waits; how many were refused */
        return join();
    if (!strcmp(w[0], "alloc_timeout")) /* alloc_timeout SIZE MS */
        return with_timeout(arg(w, 1), arg(w, 2));
    return NOT_MINE;
}
