/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the sources of this folder alone.
 */
#ifndef QGPU_OBSERVE_PARTS_H
#define QGPU_OBSERVE_PARTS_H

#include "observe/observe.h"

void sample_set_window(struct tenant *t); /* window.c: writes it into the gate page */

static inline uint64_t at_most(uint64_t v, uint64_t most)
{
    return v < most ? v : most;
}

#endif
