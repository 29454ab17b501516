/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a thread that waits for room in the window sleeps until the next poll.
 */
#ifndef QG_WAIT_H
#define QG_WAIT_H

#include <stdbool.h>
#include <stdint.h>

/* ns: A thread that waits for room sleeps this long at least; below it, polling is as cheap.
 * Evidence: none. */
#define QG_SHORTEST_SLEEP_NS 20000u
/* ns: It sleeps no longer than this, since the gate may close meanwhile. Evidence: protocol
 * (enforcer/native/arbiter/observe/sample.c). */
#define QG_LONGEST_SLEEP_NS 1000000u

/* The running work has run for ran_ns and takes least_ns at least. At due_ns of its running time
 * there will be room (0: not known). Nothing changes before either of them. After that the end of
 * the work is met with an error of a 16th of its time. */
uint64_t qg_wait_ns(uint64_t ran_ns, uint64_t least_ns, uint64_t due_ns);

/* Sleeps for sleep_ns, with the least timer slack: the usual 50 us would more than double a short
 * sleep. word: not NULL: a change of it from `seen` ends the sleep. */
void qg_wait_sleep(uint64_t sleep_ns, const uint32_t *word, uint32_t seen);

#endif
