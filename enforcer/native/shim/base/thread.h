/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread of our own, with all signals blocked.
 */
#ifndef QG_THREAD_H
#define QG_THREAD_H

#include <stdbool.h>

bool qg_thread_start(void *(*body)(void *));

#endif
