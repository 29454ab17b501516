/* SPDX-License-Identifier: Apache-2.0
 *
 * The link to the arbiter, as the rest of the shim uses it: whether it is there, whether this
 * process may work and hold memory, and waiting for that. register/ makes the link and writes its
 * state.
 */
#ifndef QG_LINK_H
#define QG_LINK_H

#include "process/process.h"

/* ms until a refused card asks again. Chosen, not measured: a refusal rarely changes, but an
 * administrator may repair it. */
#define QG_REFUSED_MS 1000

/* The helper thread of register/ writes all of it, but for `ring`. */
struct qg_link {
    uint32_t changed;    /* atomic, futex: rises with attempted and with each registration */
    bool running;        /* atomic: a helper thread exists in this process */
    bool attempted;      /* atomic: its first round is over */
    bool connected;      /* atomic */
    uint64_t started_ns; /* written before running */
    int sock;            /* the next three are the helper's, and the child's after a fork */
    dev_t dev;
    ino_t ino;
    uint32_t ring; /* atomic: a thread could not ring the doorbell */
    /* atomic: errno of the refusal for this card, until it is registered */
    int refused[QG_MAX_CARDS];
    bool registered[QG_MAX_CARDS]; /* the helper's: on this connection */
    int last;                      /* atomic: result of the last round */
    int unreached; /* atomic: errno of the last attempt to connect; 0: it was reached */
    char why[200]; /* the first refusal in the arbiter's words; written before refused, once */
};
extern struct qg_link qg_link;

/* Starts the helper thread, at most one in a process. */
void qg_link_start(void *(*helper)(void *));
void qg_link_after_fork(void); /* in the child */
void qg_link_changed(void);    /* wakes all that wait for a change */

void qg_link_first(void); /* waits shortly for the helper's first answer */
bool qg_link_connected(void);
void qg_link_wait(struct qg_card *card);           /* until pages are there */
void qg_link_report_refusal(struct qg_card *card); /* once: why this process waits */

/* Waits the same way. Why the process may hold no device memory; NULL: it is registered, so it may.
 */
const char *qg_link_for_memory(struct qg_card *card);

/* Why the arbiter did not register this process on this card; NULL: it did, or gave no clear
 * answer. */
const char *qg_link_refusal(struct qg_card *card);

/* The doorbell cannot be rung: the helper registers again, which rings by itself. */
void qg_ring_by_helper(struct qg_card *card);

#endif
