/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of ours while a capture of the program is open.
 */
#ifndef QG_RELAX_H
#define QG_RELAX_H

#include <stdbool.h>

#include <cuda.h>

/* Around driver calls of ours that a capture of another thread would otherwise forbid, or be
 * spoiled by. */
bool qg_relax(CUstreamCaptureMode *mode);
void qg_unrelax(bool relaxed, CUstreamCaptureMode *mode);

#endif
