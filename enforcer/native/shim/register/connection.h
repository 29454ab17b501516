/* SPDX-License-Identifier: Apache-2.0
 *
 * Connecting to the arbiter and receiving its answers.
 */
#ifndef QG_CONNECTION_H
#define QG_CONNECTION_H

#include <stdbool.h>

#include "process/pages.h"

/* Answer of qg_arbiter_receive() for a message that is no answer. */
#define QG_UNREQUESTED (-2)

int qg_arbiter_connect(void); /* the descriptor, or -errno; -EPERM: the listener is not root */
bool qg_wait_readable(int fd, int timeout_ms);

/* Receives one answer and its descriptors (exactly QG_PAGE_FDS, or none). Returns the number of
 * descriptors, -1, or QG_UNREQUESTED: it was an order about channel groups, which may come before
 * the answer. */
int qg_arbiter_receive(int sock, struct qg_registered *answer, int fds[QG_PAGE_FDS]);
void qg_close_all(int *fds, int count); /* those that are not -1 */

#endif
