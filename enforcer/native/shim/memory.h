/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission under the job's cap, and the ledger behind it.
 */
#ifndef QG_MEMORY_H
#define QG_MEMORY_H

#include "ledger.h"
#include "shim.h"

/* Asks for size bytes on a card (NULL: a card that was not granted). True: they are reserved; the caller allocates
 * and then says qg_charge or qg_unreserve. False: refused, and said so once. */
bool qg_reserve(struct qg_card *card, uint64_t size);
void qg_unreserve(struct qg_card *card, uint64_t size);

/* Turns a reservation of reserved bytes into an entry of size bytes. */
void qg_charge(struct qg_card *card, uint64_t reserved, enum qg_kind kind, uint64_t key, uint64_t owner,
               uint64_t size);

/* Takes an entry out before the driver frees it (its address may come back at once in another thread); afterwards
 * either qg_settle (freed) or qg_restore (the driver refused). */
bool qg_take(enum qg_kind kind, uint64_t key, struct qg_entry *out);
void qg_settle(const struct qg_entry *entry);
void qg_restore(const struct qg_entry *entry);

/* Physical handles (cuMemCreate): counted references and mappings. */
void qg_handle_retain(uint64_t handle);
void qg_handle_release(uint64_t handle);
bool qg_handle_last(uint64_t handle, struct qg_entry *out); /* like qg_take, if its next release is its end */
void qg_handle_map(uint64_t handle, uint64_t address, uint64_t size);
void qg_handle_unmap(uint64_t address, uint64_t size);

/* Bytes that the job may hold on the card, and bytes that it holds. */
uint64_t qg_cap(struct qg_card *card);
uint64_t qg_job_used(struct qg_card *card);

#endif
