/* SPDX-License-Identifier: Apache-2.0
 *
 * What the job pages show. Everything needs the card's lock.
 */
#ifndef QGPU_OBSERVE_H
#define QGPU_OBSERVE_H

#include "model/model.h"

/* sample.c: reads job pages */
void sample_quick(struct tenant *t, uint64_t now);
void sample_full(struct tenant *t, uint64_t now);
void sample_after_close(struct tenant *t, uint64_t now);
void sample_counters(struct tenant *t);
bool sample_launched_since(const struct tenant *t);
void sample_bell(struct tenant *t, uint64_t now); /* its doorbell was rung */
/* its gate was opened or closed */
void sample_gate_moved(struct tenant *t, bool open, uint64_t now);

/* inputs.c */
void sample_classify(struct tenant *t, uint64_t now);

/* window.c */
uint32_t sample_window(const struct tenant *t);
/* sets all windows of the card again when its first neighbour came or its last one left */
void sample_review_windows(struct card *card);

/* accounts.c */
void account(struct card *card, uint64_t now);

#endif
