/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption: wakes the worker of a card, or the main thread. Takes no lock.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hw/hw_parts.h"

void hw_ring(struct hw *hw)
{
    __atomic_fetch_add(&hw->bell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &hw->bell, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void hw_notify(struct hw *hw)
{
    uint64_t one = 1;
    if (write(hw->notify_fd, &one, sizeof(one)) < 0)
        return; /* the eventfd is full, so the main thread will wake up anyway */
}
