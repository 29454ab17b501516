/* SPDX-License-Identifier: Apache-2.0
 *
 * Green contexts: parts of a primary context, which owns their memory and ends them. They are used
 * like contexts of their own.
 */
#ifndef QG_GREEN_H
#define QG_GREEN_H

#include "process/process.h"

struct qg_green {
    CUgreenCtx handle;
    CUcontext context, primary;
    CUdevice device;
    struct qg_green *next;
};

/* The context that owns the allocations of this one and ends them: the primary context of a green
 * one, otherwise itself. */
extern unsigned qg_greens; /* atomic: green contexts that live */
CUcontext qg_green_owner(CUcontext context);
static inline CUcontext qg_context_owner(CUcontext context)
{
    return QG_LIKELY(!__atomic_load_n(&qg_greens, __ATOMIC_RELAXED)) ? context
                                                                     : qg_green_owner(context);
}

/* As which CUcontext a green context goes; NULL: not known. */
CUcontext qg_green_context(CUgreenCtx green);

void qg_green_add(const struct qg_green *made);

/* Finds the green context of this handle, or without a handle one of this primary context. remove:
 * also takes it off the list. */
bool qg_green_find(CUgreenCtx handle, CUcontext primary, bool over, struct qg_green *out);

void qg_greens_after_fork(void);

#endif
