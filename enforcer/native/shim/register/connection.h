/* SPDX-License-Identifier: Apache-2.0 */
#ifndef QG_CONNECTION_H
#define QG_CONNECTION_H

#include <stdbool.h>

#include "process/pages.h"

#define QG_UNASKED (-2)

int qg_arbiter_connect(void); /* the descriptor, or -errno; -EPERM: who listens is not root */
bool qg_wait_readable(int fd, int timeout_ms);

/* Receives one answer and its descriptors (exactly QG_PAGE_FDS, or none). Number of descriptors,
 * -1, or QG_UNASKED: it was an order about channel groups, of which some may come between. */
int qg_arbiter_answer(int sock, struct qg_registered *answer, int fds[QG_PAGE_FDS]);
void qg_close_all(int *fds, int count); /* those that are not -1 */

#endif
