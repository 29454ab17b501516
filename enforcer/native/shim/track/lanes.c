/* SPDX-License-Identifier: Apache-2.0
 *
 * Launch counters that cost no locked instruction. Each of the first threads that launch owns a
 * lane of the process's slot. It counts there with a plain store. All other threads share the last
 * lane. A plain store may become visible after the gate word was read. So this process asks the
 * kernel for the arbiter's membarrier(2). The arbiter issues it after it changed the gate word and
 * before it reads the lanes. Where the kernel refuses, launches are counted with one atomic
 * counter.
 */
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "track/streams.h"

/* mark: The lane of all threads that found no lane of their own. Evidence: protocol (qgpu_abi.h).
 */
#define SHARED_LANE ((int)QG_LANES - 1)

static uint32_t lanes_taken; /* atomic: bit per lane but the shared one */

void qg_lanes_after_fork(void)
{
    __atomic_store_n(&lanes_taken, 0, __ATOMIC_RELAXED);
    qg_lanes_unusable();
    qg_thread.lane = 0;
    qg_thread.counted = false;
}

int qg_lane_mine(void)
{
    if (qg_thread.lane)
        return qg_thread.lane;
    uint32_t taken = __atomic_load_n(&lanes_taken, __ATOMIC_RELAXED);
    int lane;
    do {
        lane = __builtin_ctz(~taken);
        if (lane >= SHARED_LANE)
            /* asked for again with the next stream: a thread may have ended by then */
            return SHARED_LANE + 1;
    } while (!__atomic_compare_exchange_n(&lanes_taken, &taken, taken | 1u << lane, false,
                                          __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    qg_this_thread(); /* so that it is given back */
    return qg_thread.lane = lane + 1;
}

void qg_lane_release(void)
{
    if (qg_thread.lane)
        __atomic_fetch_and(&lanes_taken, ~(1u << (qg_thread.lane - 1)), __ATOMIC_RELEASE);
    qg_thread.lane = 0;
}
