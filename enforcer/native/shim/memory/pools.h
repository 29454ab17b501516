/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that the driver keeps for later: pools of cuMemAllocAsync, and the memory of graphs. All
 * reserved bytes are charged, whether the program uses them or not.
 */
#ifndef QG_POOLS_H
#define QG_POOLS_H

#include "memory/memory.h"
#include "memory/place.h"

void qg_pools_after_fork(void);

/* A pool that the program made, or (met) one that it asked for and that may be known.
 * QG_PLACE_CARD: on this card, NULL if it was not granted; QG_PLACE_NONE: on that of the context
 * that first takes memory out of it. */
void qg_pool_made(CUmemoryPool pool, enum qg_place place, struct qg_card *card);
void qg_pool_met(CUmemoryPool pool, enum qg_place place, struct qg_card *card);

/* Around the driver's call that destroys it, since another thread may be given its handle before
 * that returns. Its pieces live on. NULL: nothing is known of it. */
struct qg_pool;
struct qg_pool *qg_pool_destroying(CUmemoryPool handle);
void qg_pool_destroyed(struct qg_pool *pool, bool destroyed);

/* Host memory is not charged. card: the card that is charged, or NULL: then the pool gives no
 * memory. */
bool qg_pool_in_host(CUmemoryPool pool);
struct qg_card *qg_pool_card(CUmemoryPool pool);

/* The pool that cuMemAllocAsync uses on a card; NULL: the driver does not say. changed: the program
 * set another one. */
CUmemoryPool qg_pool_current(struct qg_card *card);
void qg_pool_changed(void);

/* False: this driver does not report what it has reserved; then each allocation is charged by
 * itself. */
bool qg_pool_reports_size(CUmemoryPool pool);

bool qg_pool_lost(CUmemoryPool pool); /* the driver knows of no such pool */

/* Asks the driver and corrects the charge; reserved bytes of an admission end with it. Returns the
 * growth. */
uint64_t qg_pool_poll(CUmemoryPool pool, struct qg_card *card, uint64_t reserved);
uint64_t qg_graphs_poll(struct qg_card *card, uint64_t reserved);

/* True: a pool has size unused bytes. */
bool qg_pool_spare(CUmemoryPool pool, uint64_t size);
bool qg_graphs_spare(struct qg_card *card, uint64_t size);

/* Least bytes of one growth of a pool, as observed so far. */
uint64_t qg_pool_rounded(uint64_t size);

/* Trims all pools of this process on the card; true if that freed memory. */
bool qg_pools_trim(struct qg_card *card);

/* poll: after a wait for work, when the driver may have given memory back by itself. stale: an
 * allocation was freed, so the next poll asks. */
void qg_pools_stale(void);
void qg_pools_poll(void);

#endif
