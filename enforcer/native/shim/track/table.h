/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of streams, for the files that work on it. streams.c makes the records, stream_ends.c
 * retires them. fence_slots.c assigns fence slots, observe.c visits all. No call of the driver is
 * made under its lock, nor under a stream's lock. Such a call may block until the card advances,
 * and that may depend on the thread that needs the lock.
 */
#ifndef QG_TABLE_H
#define QG_TABLE_H

#include "track/streams.h"

/* of all that follows; a stream's lock is taken under it, never the reverse */
extern pthread_mutex_t qg_table_lock;
/* count: Buckets of the table of streams. Programs have tens of streams. Evidence: bound. */
#define QG_BUCKETS 1024u
extern struct qg_stream *qg_streams[QG_BUCKETS];
extern struct qg_context *qg_contexts;
extern uint64_t qg_fence_slots_taken[QG_MAX_CARDS]; /* bit per fence slot */
/* NULL where the bit is not set */
extern struct qg_stream *qg_fence_slot_owner[QG_MAX_CARDS][QG_FENCES];
/* streams with work and without a fence slot */
extern struct qg_stream *qg_slotless[QG_MAX_CARDS];
extern unsigned qg_slotless_count; /* atomic: on all lists */

/* a living one */
struct qg_stream *qg_find_stream(uint64_t key, CUcontext context, uint64_t thread);
size_t qg_bucket(uint64_t key, CUcontext context, uint64_t thread);
void qg_retire_record(struct qg_stream *stream); /* a dead record, to be used again later */
void qg_streams_thread_gone(uint64_t thread);    /* without the lock, unlike those above */

/* fence_slots.c. The first two under qg_table_lock; qg_fence_slot_release() also under the stream's
 * lock. */
void qg_slotless_remove(struct qg_stream *stream);
void qg_fence_slot_release(struct qg_stream *stream);
void qg_fence_slots_after_fork(void);

#endif
