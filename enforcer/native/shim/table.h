/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of streams, for the two files that work on it: streams.c keeps it, observe.c walks over it.
 */
#ifndef QG_TABLE_H
#define QG_TABLE_H

#include "streams.h"

extern pthread_mutex_t qg_table_lock; /* of all that follows; a stream's lock is taken under it, never the reverse */
extern uint64_t qg_marker_taken[QG_MAX_CARDS];                      /* bit per marker index */
extern struct qg_stream *qg_marker_owner[QG_MAX_CARDS][QG_MARKERS]; /* NULL where the bit is not set */
extern struct qg_stream *qg_homeless[QG_MAX_CARDS];                 /* streams with work and without an index */
extern unsigned qg_homeless_count;                                  /* atomic: on all lists */

#endif
