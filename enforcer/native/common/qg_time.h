/* SPDX-License-Identifier: Apache-2.0
 *
 * The one clock of the enforcer: CLOCK_MONOTONIC in nanoseconds.
 */
#ifndef QG_TIME_H
#define QG_TIME_H

#include <stdint.h>
#include <time.h>

static inline uint64_t qg_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

#endif
