/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts as the driver keeps them. A primary context lives as long as it has references. A green
 * one is a part of a primary one: its memory and its end are the primary's. context.c, green.c.
 */
#ifndef QG_CONTEXTS_H
#define QG_CONTEXTS_H

#include "process/green.h"

/* A context is over, and all that was kept of it. Of a primary one: its green ones too. */
void qg_context_gone(CUcontext context);
void qg_greens_gone(CUcontext primary);
void qg_primaries_after_fork(void);

/* Around a call that gives back a reference to a primary context (all: every one). */
struct qg_primary_end {
    CUcontext context; /* NULL: there is none */
    unsigned taken;    /* references that were counted, and count again if the call fails */
    bool counted;
};
struct qg_primary_end qg_primary_ending(CUdevice device, bool all);
void qg_primary_ended(CUdevice device, const struct qg_primary_end *end, CUresult result);

/* Around a call that retains it. */
void qg_primary_retained(CUdevice device, bool counted, CUresult result);
CUcontext qg_primary(CUdevice device); /* its handle, while it lives */

#endif
