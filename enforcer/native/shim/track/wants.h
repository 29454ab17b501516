/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes that threads of this process wait for, because the driver refused them.
 */
#ifndef QG_WANTS_H
#define QG_WANTS_H

#include "process/process.h"

/* This thread waits for that many bytes of the card. Repeated at each poll: a want without a poll
 * for a second is taken for left. */
void qg_want(struct qg_card *card, uint64_t size);
void qg_want_over(void);

uint64_t qg_wants_of(const struct qg_card *card); /* of all threads */
void qg_wants_reap(void);                         /* by the helper thread */
void qg_want_release(void);                       /* the thread ends */
void qg_wants_after_fork(void);

#endif
