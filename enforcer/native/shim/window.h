/* SPDX-License-Identifier: Apache-2.0 */
#ifndef QG_WINDOW_H
#define QG_WINDOW_H

#include "gate.h"

/* Waits until the work fits into the window, and books it. False: the gate closed meanwhile, look again. */
bool qg_window_enter(struct qg_stream *stream, struct qg_pages *pages, const struct qg_work *work);

void qg_window_after_fork(void);
void qg_window_context_gone(CUcontext context);

#endif
