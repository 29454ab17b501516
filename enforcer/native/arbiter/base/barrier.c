/* SPDX-License-Identifier: Apache-2.0
 *
 * The arbiter's half of a launch path without locked instructions. A shim stores its launch
 * counter, then reads the gate word. Only a compiler barrier is between the two. After a gate word
 * was changed, membarrier(2) orders the two sides: if a shim still read the old word, its counter
 * is visible to us.
 */
#include <errno.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"

static bool usable;

static int membarrier(int command)
{
    return (int)syscall(SYS_membarrier, command, 0, 0);
}

bool barrier_probe(void)
{
    int known = membarrier(MEMBARRIER_CMD_QUERY);
    usable = known > 0 && (known & MEMBARRIER_CMD_GLOBAL_EXPEDITED) &&
             membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0;
    return usable;
}

bool barrier_issue(void)
{
    return usable && membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0;
}
