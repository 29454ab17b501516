/* SPDX-License-Identifier: Apache-2.0
 *
 * The in-flight window: a bound on the estimated time of unfinished work on a card.
 */
#ifndef QG_WINDOW_H
#define QG_WINDOW_H

#include "track/streams.h"

/* A submission, as its estimate needs it. */
struct qg_work {
    const void *function; /* CUfunction or CUgraphExec; NULL for a copy */
    uint64_t bytes;       /* of a copy */
    /* launches that it represents: itself, and those that passed since the last poll */
    uint32_t times;
};

/* Waits until the work fits into the window, and books it. False: the gate closed meanwhile, so the
 * caller reads it again. */
bool qg_window_enter(struct qg_stream *stream, struct qg_pages *pages, const struct qg_work *work);

/* This thread waited for room, and qg_proc.queued may still count it. */
extern __thread bool qg_window_queued __attribute__((tls_model("initial-exec")));

/* Starts the budget of work let through beside offline. Before the ring of a launch that finds
 * QG_GATE_HOLD: the first one after a pause. */
void qg_window_hold_begin(struct qg_card *card, const struct qg_pages *pages);

/* At a closed gate: ns to sleep until the work of this process may have ended (0: it has). */
uint64_t qg_window_drain_ns(struct qg_card *card);

/* Forgets the estimates of a function or graph; NULL: of all. */
void qg_window_forget(const void *function);

void qg_window_after_fork(void);
void qg_window_context_gone(CUcontext context);

/* The slow half of qg_leave in window mode. */
void qg_window_leave(struct qg_stream *stream, CUresult result);
void qg_window_skip_polls(struct qg_seen *seen);
/* this thread must still call qg_window_leave() */
extern __thread bool qg_window_open __attribute__((tls_model("initial-exec")));

#endif
