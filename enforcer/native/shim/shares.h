/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that processes of a job share (IPC handles, shareable handles) is charged once: to its maker, and when the
 * maker has let go of it while others still use it, to whoever is left.
 */
#ifndef QG_SHARES_H
#define QG_SHARES_H

#include "shim.h"

/* All but known, tick and look are called under the lock of the books (books.h). */

void qg_shares_after_fork(void);

/* Writes a name into the job page; its place here, or 0 if there is no room (then importers pay too). */
uint16_t qg_share_publish(struct qg_card *card, uint64_t name, uint64_t size);

/* True: others of the job still use it, the bytes stay charged until they do not. */
bool qg_share_let_go(struct qg_card *card, uint16_t share);

/* This process opens what is called so. Its place if a process of the job made it, else 0. */
uint16_t qg_share_known(struct qg_card *card, uint64_t name);

/* Gives back what nobody uses any more, and takes over what a dead process left to us. */
void qg_shares_tick(struct qg_card *card);
void qg_shares_look(void); /* the same for all cards; by the helper thread, ten times a second */

/* The pages of the card are new: what is shared must stand in them. */
void qg_shares_adopt(struct qg_card *card);

/* A name for bytes: of an IPC handle, of a file. Never 0. */
uint64_t qg_share_name(const void *bytes, unsigned long size);

#endif
