/* SPDX-License-Identifier: Apache-2.0
 *
 * One card: its real-time thread, and the step that samples, decides and moves gates.
 */
#ifndef QGPU_CARD_H
#define QGPU_CARD_H

#include "model/model.h"

/* count: One wake-up serves at most this many cards: the last one ticks late. Evidence: none. */
#define CARD_GROUP 8u
/* ns: Ticks of two cards are this far apart, so that one thread does them one by one. Evidence:
 * none. */
#define CARD_STAGGER_NS 60000ull

/* card_thread.c. Everything below needs card->lock unless it says otherwise */
struct card *card_create(struct arbiter *a, const char *uuid, int *err); /* takes no lock */
void card_stop(struct card *card);                                       /* takes no lock */
int card_add(struct card *card, struct tenant *t);
void card_remove(struct card *card, struct tenant *t);
void card_watch_bell(struct card *card, struct tenant *t, bool on);
void card_fresh_bell(struct card *card, struct tenant *t, int fd); /* closes fd later */

/* step.c */
void card_step(struct card *card, uint64_t now);
void card_tick(struct card *card, uint64_t now); /* an idle tick, if that is enough */

/* idle_tick.c */
/* a tick is due: does it as an idle tick and returns true, if no tenant's state changed */
bool idle_tick(struct card *card, uint64_t now);
/* before anything changes: accounts for the idle ticks since the last decision */
void idle_tick_catch_up(struct card *card);
/* after a step: lists the tenants that idle ticks sample */
void idle_tick_prepare(struct card *card, uint64_t due_ns, uint64_t now);

#endif
