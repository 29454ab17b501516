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
void sample_behind(struct tenant *t, uint64_t now);
void sample_counters(struct tenant *t);
bool sample_launched_since(const struct tenant *t);
void sample_bell(struct tenant *t, uint64_t now);            /* its doorbell was rung */
void sample_turn(struct tenant *t, bool open, uint64_t now); /* its gate was opened or closed */

/* inputs.c */
void sample_classify(struct tenant *t, uint64_t now);

/* window.c */
uint32_t sample_window(const struct tenant *t);
/* sets windows anew when the first neighbour came, or the last one went */
void sample_lonely(struct card *card);

/* books.c */
void account(struct card *card, uint64_t now);

#endif
