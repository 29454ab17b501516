/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts as the driver keeps them: primary ones live as long as somebody retains them, green ones
 * are a part of a primary one (its memory, its end). hook_context.c, hook_green.c.
 */
#ifndef QG_CONTEXTS_H
#define QG_CONTEXTS_H

#include "shim.h"

/* The context whose memory this one's allocations are, and whose end is theirs: the primary one of
 * a green one, else itself. */
extern unsigned qg_greens; /* atomic: green contexts that live */
CUcontext qg_green_owner(CUcontext context);
static inline CUcontext qg_context_owner(CUcontext context)
{
    return QG_LIKELY(!__atomic_load_n(&qg_greens, __ATOMIC_RELAXED)) ? context
                                                                     : qg_green_owner(context);
}

/* outside.c. True: the card is not in the grant, so it has neither a gate nor a cap here, and
 * nothing begins on it. */
bool qg_context_refused(CUdevice device);

/* As which CUcontext a green context goes; NULL: not known. */
CUcontext qg_green_context(CUgreenCtx green);

/* A context is over, and all that was kept of it. Of a primary one: its green ones too. */
void qg_context_gone(CUcontext context);
void qg_greens_gone(CUcontext primary);
void qg_greens_after_fork(void);

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
