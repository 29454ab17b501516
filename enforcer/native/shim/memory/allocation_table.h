/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of memory/ share: one lock for the allocation table and the cards' numbers.
 */
#ifndef QG_ALLOCATION_TABLE_H
#define QG_ALLOCATION_TABLE_H

#include "memory/memory.h"

extern pthread_mutex_t qg_allocation_lock;

void qg_allocations_after_fork(void);
void qg_contexts_after_fork(void);
/* contexts.c, under the lock: a context has ended. */
void qg_context_ended(struct qg_card *card);

/* All of these are called under the lock. qg_publish() copies the card's own numbers into its slot,
 * so that a change of pages cannot lose one. */
void qg_publish(struct qg_card *card);
void qg_add_used(struct qg_card *card, uint64_t size);
void qg_subtract_used(struct qg_card *card, uint64_t size);

#endif
