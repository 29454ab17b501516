/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts as the driver keeps them. A primary context lives as long as it has references. A green
 * one is a part of a primary one: its memory and its end are the primary's. context.c, green.c.
 */
#ifndef QG_CONTEXTS_H
#define QG_CONTEXTS_H

#include "gate/room.h"
#include "process/green.h"

/* A context has ended: forgets all records of it. For a primary context also those of its green
 * ones. */
void qg_context_gone(CUcontext context);
void qg_greens_gone(CUcontext primary);
void qg_primaries_after_fork(void);

/* Around a call that releases a reference to a primary context (all: every reference). */
struct qg_primary_end {
    CUcontext context; /* NULL: there is none */
    unsigned taken;    /* references that were counted, and count again if the call fails */
    bool counted;
};
struct qg_primary_end qg_primary_ending(CUdevice device, bool all);
void qg_primary_ended(CUdevice device, const struct qg_primary_end *end, CUresult result);

/* Before a call that may make a context, or the primary context: waits while the job is held. */
void qg_context_await(CUdevice device, struct qg_room *room);
void qg_primary_await(CUdevice device, struct qg_room *room);

/* After a call that retains a primary context. */
void qg_primary_retained(CUdevice device, bool counted, CUresult result);
CUcontext qg_primary(CUdevice device); /* its handle, while it lives */

#endif
