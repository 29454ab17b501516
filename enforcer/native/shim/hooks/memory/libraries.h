/* SPDX-License-Identifier: Apache-2.0
 *
 * Before a launch: the variables of the library whose kernel it is come into the context with it.
 */
#ifndef QG_LIBRARIES_H
#define QG_LIBRARIES_H

#include "memory/modules.h"

/* False: the memory for them was refused. */
bool qg_function_enter(CUfunction function);

static inline bool qg_launch_admitted(CUfunction function)
{
    return QG_LIKELY(!__atomic_load_n(&qg_libraries_large, __ATOMIC_RELAXED)) ||
           qg_function_enter(function);
}

#endif
