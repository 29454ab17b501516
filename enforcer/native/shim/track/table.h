/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of streams, for the files that work on it: streams.c keeps it, stream_ends.c empties
 * it, fence_slots.c deals out marker indices, observe.c walks over it. No call of the driver is
 * made under its lock, nor under a stream's: either may block until the card gets on, and who then
 * needs the lock may be the one on whom that depends.
 */
#ifndef QG_TABLE_H
#define QG_TABLE_H

#include "track/streams.h"

/* of all that follows; a stream's lock is taken under it, never the reverse */
extern pthread_mutex_t qg_table_lock;
#define QG_BUCKETS 1024u
extern struct qg_stream *qg_streams[QG_BUCKETS];
extern struct qg_context *qg_contexts;
extern uint64_t qg_marker_taken[QG_MAX_CARDS]; /* bit per marker index */
/* NULL where the bit is not set */
extern struct qg_stream *qg_marker_owner[QG_MAX_CARDS][QG_MARKERS];
/* streams with work and without an index */
extern struct qg_stream *qg_homeless[QG_MAX_CARDS];
extern unsigned qg_homeless_count; /* atomic: on all lists */

/* a living one */
struct qg_stream *qg_find_stream(uint64_t key, CUcontext context, uint64_t thread);
size_t qg_bucket(uint64_t key, CUcontext context, uint64_t thread);
void qg_show_contexts(struct qg_card *card);
void qg_lay_to_rest(struct qg_stream *stream); /* a dead record, to be used again some time */
void qg_streams_thread_gone(uint64_t thread);  /* without the lock, unlike those above */

/* fence_slots.c; the first two under qg_table_lock, qg_release_marker() under the stream's as well.
 */
void qg_homeless_remove(struct qg_stream *stream);
void qg_release_marker(struct qg_stream *stream);
void qg_indices_after_fork(void);

#endif
