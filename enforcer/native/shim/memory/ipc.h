/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that processes of a job share (IPC handles, shareable handles) is charged once. It is
 * charged to its maker. If the maker releases it while others use it, one of those is charged.
 */
#ifndef QG_SHARES_H
#define QG_SHARES_H

#include "process/process.h"

/* All but name_of_file, known, tick and poll are called under qg_allocation_lock
 * (allocation_table.h). */

void qg_shares_after_fork(void);

/* Publishes memory of this process that others may keep. Returns its place here (place: the one
 * that it has already), or 0 if there is no room. The name is written into the job page (0: no
 * importer could know it). If the page is full, importers are charged too. */
uint16_t qg_share_publish(struct qg_card *card, uint16_t place, uint64_t name, uint64_t size);

/* Records a descriptor that the program got for it and that keeps the memory while it is open. */
void qg_share_sent(uint16_t place, int fd);

/* True: it is still used, so the bytes stay charged. */
bool qg_share_release(struct qg_card *card, uint16_t share);

/* The name of the memory that a character device stands for, if a process of the job exported it;
 * otherwise 0. Without the lock. */
uint64_t qg_share_name_of_file(struct qg_card *card, int fd);

/* This process opens memory of that name. Returns its place if a process of the job made it,
 * otherwise 0. */
uint16_t qg_share_known(struct qg_card *card, uint64_t name);

/* Uncharges memory without users (true: there was some), and takes over memory that a dead process
 * left to this one. */
bool qg_shares_tick(struct qg_card *card);
void qg_shares_poll(void); /* the same for all cards; by the helper thread, four times a second */

/* The pages of the card are new: the rows of shared memory must be written there. fresh: the slot
 * is new to this process too. */
void qg_shares_adopt(struct qg_card *card, bool fresh);

/* A name for bytes: of an IPC handle, of a file. Never 0. */
uint64_t qg_share_name(const void *bytes, unsigned long size);

#endif
