/* SPDX-License-Identifier: Apache-2.0
 *
 * A context takes memory of its card, so it is admitted before it is made.
 */
#ifndef QG_MEMORY_CONTEXTS_H
#define QG_MEMORY_CONTEXTS_H

#include "process/process.h"

/* Around a call that may make a context. */
struct qg_making {
    struct qg_card *card; /* NULL: nothing is counted */
    uint64_t bytes;       /* that are reserved for it */
    CUdevice primary;     /* whose making is locked, -1: none */
};

/* Reserves what a context costs. False: there is no room, or the process is not registered. */
bool qg_context_begins(CUdevice device, struct qg_making *making);
/* The same for a call that makes the primary context where there is none. */
bool qg_primary_begins(CUdevice device, struct qg_making *making);
/* context: NULL, the call failed */
void qg_context_made(const struct qg_making *making, CUcontext context);

/* Gives back what was reserved above the cost that is known by now. True: that was something. */
bool qg_contexts_settle(struct qg_card *card);
void qg_contexts_poll(void); /* the same for all cards; by the helper thread */

#endif
