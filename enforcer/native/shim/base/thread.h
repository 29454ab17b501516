/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread of our own, with all signals blocked, and the block itself.
 */
#ifndef QG_THREAD_H
#define QG_THREAD_H

#include <stdbool.h>
#include <stdint.h>

bool qg_thread_start(void *(*body)(void *));

/* Around a lock in a wait of the program. A handler may jump out of such a wait, and asynchronous
 * cancellation may end the thread there. Either would leave the lock held for ever. */
void qg_signals_block(uint64_t *before);
void qg_signals_restore(const uint64_t *before);

#endif
