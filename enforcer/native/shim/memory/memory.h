/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission under the job's cap, and the allocation table behind it.
 */
#ifndef QG_MEMORY_H
#define QG_MEMORY_H

#include "base/allocation_hash.h"
#include "process/process.h"

/* Reserves size bytes on a card (NULL: a card that was not granted). True: the caller allocates and
 * then calls qg_charge or qg_unreserve. False: refused, with one message to the user. */
bool qg_reserve(struct qg_card *card, uint64_t size);
/* The same for something that the message calls otherwise than an allocation. */
bool qg_reserve_for(struct qg_card *card, uint64_t size, const char *what);
void qg_unreserve(struct qg_card *card, uint64_t size);

/* The same in two steps: one attempt without a message and without trimming, and the refusal. */
bool qg_reserve_now(struct qg_card *card, uint64_t size);
void qg_refuse(struct qg_card *card, uint64_t size);
void qg_refuse_for(struct qg_card *card, uint64_t size, const char *what);

/* Turns a reservation of reserved bytes into an entry of size bytes. */
void qg_charge(struct qg_card *card, uint64_t reserved, enum qg_kind kind, uint64_t key,
               uint64_t owner, uint64_t size);

/* The same for an entry that the caller made. One of the same key is replaced. */
void qg_charge_entry(uint64_t reserved, const struct qg_entry *entry);

/* Sets the size of an entry that grows and shrinks. It is made if it is missing, and removed at
 * size 0. */
void qg_set_charge(struct qg_card *card, uint64_t reserved, enum qg_kind kind, uint64_t key,
                   uint64_t size);

/* An entry that holds no bytes of its own: a piece of a pool, an executable graph. */
void qg_record(struct qg_card *card, enum qg_kind kind, uint64_t key, uint64_t owner,
               uint64_t size);
bool qg_find_entry(enum qg_kind kind, uint64_t key, struct qg_entry *out);
/* the entry of this key as it is; if there is none, this one is recorded */
void qg_find_or_record(struct qg_entry *entry);

/* The pool of these pieces was destroyed, but they live: it stays charged until the last of them is
 * freed. */
void qg_pieces_orphaned(const struct qg_entry *pool);
void qg_piece_freed(const struct qg_entry *piece);

/* Detaches an entry before the driver frees it, since another thread may get its address at once.
 * Afterwards either qg_commit (it was freed) or qg_reattach (the driver refused). */
bool qg_detach(enum qg_kind kind, uint64_t key, struct qg_entry *out);
void qg_commit(const struct qg_entry *entry);
void qg_reattach(const struct qg_entry *entry);

/* All entries of a kind that have this number in refs have ended. */
void qg_commit_all(enum qg_kind kind, uint32_t refs);

/* Physical handles (cuMemCreate): counted references and mappings. */
void qg_handle_retain(uint64_t handle);
void qg_handle_release(uint64_t handle);
/* like qg_detach, if its next release is the last */
bool qg_handle_last(uint64_t handle, struct qg_entry *out);
void qg_handle_map(uint64_t handle, uint64_t address, uint64_t size);
void qg_handle_unmap(uint64_t address, uint64_t size);

/* Memory of another process behind a handle. share: its place in ipc.h; 0: its maker is not of this
 * job. Then this process is charged as soon as a mapping shows the size. grows: false if the cap
 * refuses that. */
void qg_handle_foreign(struct qg_card *card, uint64_t handle, uint16_t share);
bool qg_handle_grows(uint64_t handle, uint64_t size);

/* The handle is a multicast object: it uses no card itself, but memory bound to it lives as long.
 */
void qg_handle_multicast(uint64_t handle);

/* Uses of a handle by a user: an array, a multicast object or an endpoint. untie returns the length
 * of the use, 0 if there is none. */
void qg_handle_tie(uint64_t handle, uint64_t user, uint64_t place, uint64_t span);
uint64_t qg_handle_untie(uint64_t user, uint64_t place);
void qg_handle_free_ties(uint64_t user);

/* Adds `change` to the openings of an entry; out: the entry afterwards. The last closing removes
 * it. */
bool qg_reopen(enum qg_kind kind, uint64_t key, int change, struct qg_entry *out);

/* An entry of this process is exported, under this name (0: none) and by this descriptor (-1:
 * none); ipc.h. */
void qg_share_this(enum qg_kind kind, uint64_t key, uint64_t name, int fd);
/* an entry for what others of the job made */
void qg_set_share(enum qg_kind kind, uint64_t key, uint16_t share);

/* Bytes that the job may hold on the card, and bytes that it holds. */
uint64_t qg_cap(struct qg_card *card);
uint64_t qg_job_used(struct qg_card *card);

void qg_memory_after_fork(void);
/* publishes pages and what is held */
void qg_memory_adopt(struct qg_card *card, struct qg_pages *pages);
uint64_t qg_memory_used(struct qg_card *card);
/* before it is destroyed: its entries get a temporary owner */
void qg_memory_context_ends(CUcontext context);
void qg_memory_context_stays(CUcontext context); /* the driver refused */
void qg_memory_context_gone(CUcontext context);  /* uncharges the entries of the temporary owner */

#endif
