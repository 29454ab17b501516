/* SPDX-License-Identifier: Apache-2.0
 *
 * One card: its real-time thread, and the step that samples, decides and moves gates.
 */
#ifndef QGPU_CARD_H
#define QGPU_CARD_H

#include "model/model.h"

#define CARD_GROUP      8u       /* cards that one wake-up serves at most */
#define CARD_STAGGER_NS 60000ull /* between the ticks of two cards */

/* card_thread.c. Everything below needs card->lock unless it says otherwise */
struct card *card_create(struct arbiter *a, const char *uuid, int *err); /* takes no lock */
void card_stop(struct card *card);                                       /* takes no lock */
int card_add(struct card *card, struct tenant *t);
void card_remove(struct card *card, struct tenant *t);
void card_watch_bell(struct card *card, struct tenant *t, bool on);
void card_fresh_bell(struct card *card, struct tenant *t, int fd); /* takes fd for its own */

/* step.c */
void card_step(struct card *card, uint64_t now);
void card_tick(struct card *card, uint64_t now); /* quietly, where that does */

/* quiet.c */
/* a tick is due: true if a look at who works was all it needed */
bool quiet_tick(struct card *card, uint64_t now);
/* before anything changes: the books of the ticks left out */
void quiet_catch_up(struct card *card);
/* a step is over: who is looked at until the next */
void quiet_after(struct card *card, uint64_t due_ns, uint64_t now);

#endif
