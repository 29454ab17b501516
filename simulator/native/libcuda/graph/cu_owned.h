/* SPDX-License-Identifier: Apache-2.0
 *
 * References to user objects that a graph or an executable graph owns.
 */
#ifndef QGPU_SIM_CU_OWNED_H
#define QGPU_SIM_CU_OWNED_H

#include "cu.h"

struct cu_owned; /* a list; NULL: none */

/* Adds the same references to another list. */
CUresult cu_owned_copy(struct cu_owned **to, const struct cu_owned *from);

/* Gives all back, and empties the list. after: when everything is done that was submitted to this
 * stream so far; NULL: at once. */
void cu_owned_release(struct cu_owned **owned, CUstream after);

#endif
