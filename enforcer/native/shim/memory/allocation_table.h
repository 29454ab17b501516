/* SPDX-License-Identifier: Apache-2.0
 *
 * What the memory files share among themselves: one lock for the ledger and the cards' numbers.
 */
#ifndef QG_ALLOCATION_TABLE_H
#define QG_ALLOCATION_TABLE_H

#include "memory/memory.h"

extern pthread_mutex_t qg_books_lock;

void qg_books_after_fork(void);

/* The rest under the lock. publish: copies the card's own numbers into its slot, so that a page
 * swap cannot lose a change. */
void qg_publish(struct qg_card *card);
void qg_take_on(struct qg_card *card, uint64_t size);
void qg_give_back(struct qg_card *card, uint64_t size);

#endif
