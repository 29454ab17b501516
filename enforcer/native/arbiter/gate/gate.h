/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores gates, and reports preemption to the other cards of a job. Needs the card's lock unless a
 * comment says otherwise.
 */
#ifndef QGPU_GATE_H
#define QGPU_GATE_H

#include "model/model.h"

/* events per card until the main thread writes them; a power of two. Chosen, not measured */
#define AR_TRACE_EVENTS 16384u

struct trace_ring {
    struct qg_gate_event events[AR_TRACE_EVENTS];
    /* head: written with the card's lock; tail: written by the main thread */
    uint64_t head, tail, dropped;
};

/* gates.c */
void gates_apply(struct card *card);
void gate_store(struct card *card, struct tenant *t, uint32_t flags);
void gates_heartbeat(struct card *card, uint64_t now);
/* cap, window and lease as the job sees them */
void gates_settings(struct tenant *t, uint64_t now);

/* gang.c: jobs across cards. The first two: main thread; the others: with the card's lock */
struct gang *gang_get(uint64_t job_id);
void gang_put(struct arbiter *a, struct tenant *t);
void gang_enter(struct tenant *t);   /* its card counts for the job from now on */
void gang_report(struct card *card); /* right after a decision */

/* trace.c */
int trace_open(const char *path);
void trace_put(struct trace_ring *ring, const struct qg_gate_event *event);
void trace_drain(struct arbiter *a);

#endif
