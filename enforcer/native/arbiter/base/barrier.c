/* SPDX-License-Identifier: Apache-2.0
 *
 * The arbiter's half of launches without a locked instruction. A shim stores its launch counter and
 * then reads the gate word with nothing but a compiler barrier in between; membarrier(2) on our
 * side makes the two orders agree: whoever read the word before we changed it, has its counter
 * visible to us afterwards.
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
