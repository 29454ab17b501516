/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves gates, and tells the other cards of a job. Needs the card's lock unless said otherwise.
 */
#ifndef QGPU_GATE_H
#define QGPU_GATE_H

#include "model/model.h"

#define AR_TRACE_EVENTS 16384u /* per card; a power of two */

struct trace_ring {
    struct qg_gate_event events[AR_TRACE_EVENTS];
    uint64_t head, tail, dropped; /* head: card lock holder; tail: main thread */
};

/* gates.c */
void gates_apply(struct card *card);
void gate_store(struct card *card, struct tenant *t, uint32_t flags);
void gates_heartbeat(struct card *card, uint64_t now);
/* cap, window and lease as the job sees them */
void gates_settings(struct tenant *t, uint64_t now);

/* together.c: jobs across cards. The first two: main thread; the others: the card's lock */
struct job *job_get(uint64_t job_id);
void job_put(struct arbiter *a, struct tenant *t);
void together_enter(struct tenant *t); /* it is on its card now */
void together_tell(struct card *card); /* right after a decision */

/* trace.c */
int trace_open(const char *path);
void trace_put(struct trace_ring *ring, const struct qg_gate_event *event);
void trace_drain(struct arbiter *a);

#endif
