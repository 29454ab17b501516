/* SPDX-License-Identifier: Apache-2.0
 *
 * The units that benchmarks put beside absolute figures. A machine that is twice as slow is so for
 * the unit, too: the ratio of both tells of the code.
 */
#ifndef QB_CALIBRATE_H
#define QB_CALIBRATE_H

#include <gnu/libc-version.h>
#include <stdint.h>

#define QB_UNITS 2000 /* of one sample */

/* Nanoseconds by this clock of a call through the PLT and an atomic add. The function called is of
 * another library and returns the address of a constant. */
static inline double qb_unit_ns(uint64_t (*clock_ns)(void))
{
    uint64_t counter = 0; /* of its own: threads must not meet at it */
    uint64_t start = clock_ns();
    for (int i = 0; i < QB_UNITS; i++) {
        gnu_get_libc_version();
        __atomic_fetch_add(&counter, 1, __ATOMIC_SEQ_CST);
    }
    return (double)(clock_ns() - start) / QB_UNITS;
}

#endif
