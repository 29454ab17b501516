/* SPDX-License-Identifier: Apache-2.0
 *
 * Samples: pairs of events around launches, from which the durations of functions are learned. Per
 * context, so that a thread asks the driver only about events of the context that it works in, and
 * none takes another's pairs.
 */
#ifndef QG_SAMPLES_H
#define QG_SAMPLES_H

#include "base/estimate.h"
#include "track/streams.h"

/* window.c: of the window's books, of what was learned, and of the samples. Never held across a
 * call of the driver. */
extern pthread_mutex_t qg_window_lock;
extern struct qg_functions qg_functions;
extern unsigned qg_let_through; /* launches that did not fit, because nothing moved */
extern unsigned qg_booked;      /* all that were looked at */

struct qg_sample;

/* Records the start before a launch. NULL: sample some other time. The driver is called, so without
 * locks, as in the next two. */
struct qg_sample *qg_sample_start(const struct qg_stream *stream, struct qg_pages *pages,
                                  const void *function);
/* right after the launch */
void qg_sample_end(struct qg_sample *sample, const struct qg_stream *stream);
/* learns from all of this context whose end was reached; own: the caller has booked a launch,
 * and not submitted it */
void qg_samples_collect(CUcontext context, bool own);

/* it was started, and there was no launch; like the next two under the lock */
void qg_sample_drop(struct qg_sample *sample);
/* what is under way is of what it was before; NULL: of all */
void qg_samples_forget(const void *function);
void qg_samples_after_turn(const struct qg_pages *pages, uint64_t before, uint64_t after);

void qg_samples_context_gone(CUcontext context); /* its events died with it */
void qg_samples_after_fork(void);

#endif
