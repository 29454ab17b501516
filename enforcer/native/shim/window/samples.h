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

/* window.c: guards the window, the estimates and the samples. Never held across a call of the
 * driver. */
extern pthread_mutex_t qg_window_lock;
extern struct qg_functions qg_functions;
extern uint64_t qg_bypassed_ns; /* when a starvation bypass last let a launch through */

/* ns: Without progress at a full window for this long a launch passes, as the running kernel may
 * wait for it. A kernel that did ends as soon after it. Evidence: attack (test_shim_bypass.py). */
#define QG_STUCK_NS 2000000u

struct qg_sample;

/* Records the start before a launch. NULL: sample some other time. The driver is called, so without
 * locks, as in the next two. */
struct qg_sample *qg_sample_start(const struct qg_stream *stream, struct qg_pages *pages,
                                  const void *function);
/* right after the launch */
void qg_sample_end(struct qg_sample *sample, const struct qg_stream *stream);
/* learns from all samples of this context whose end was reached */
void qg_samples_collect(CUcontext context);

/* a started sample without a launch; this and the next one under the lock */
void qg_sample_drop(struct qg_sample *sample);
/* samples under way belong to the former function; NULL: of all functions */
void qg_samples_forget(const void *function);

void qg_samples_context_gone(CUcontext context); /* its events died with it */
void qg_samples_after_fork(void);

#endif
