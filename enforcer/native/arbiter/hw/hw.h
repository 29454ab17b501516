/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption, as the rest of the arbiter sees it (docs/specs/hardware.md). Its own sources
 * share hw_parts.h. With HW=0 the arbiter is built with absent.c instead of them.
 */
#ifndef QGPU_HW_H
#define QGPU_HW_H

#include "model/model.h"

/* With the card's lock: */
/* right after gates were moved: stops or continues the groups behind them */
void hw_review(struct card *card, uint64_t now);
/* are all channel groups of that process stopped? */
bool hw_held(const struct tenant *t, uint32_t slot);
/* the in-flight window in us that weights need, 0 = weights do not divide this class */
uint32_t hw_window(const struct tenant *t);
/* has work behind the tenant's closed gate to be noticed? */
bool hw_watches(const struct tenant *t);
/* a process made progress although its groups are stopped */
void hw_escaped(const struct tenant *t);

/* Main thread, without the card's lock: */
void hw_process_left(struct arbiter *a, const struct tenant *t, uint32_t slot);
void hw_connection_ended(struct arbiter *a, const struct tenant *t, uint32_t slot);
void hw_tenant_revoked(struct arbiter *a, const struct tenant *t);
void hw_tenant_new(struct card *card, uint32_t index);
void hw_tenant_changed(const struct tenant *t); /* its share may be another now */
/* May a control device come with the message in buf? Then *device says which. */
bool hw_control_of(const struct arbiter *a, const void *buf, size_t cap,
                   struct qg_ctl_hardware *device);
void hw_attend(struct arbiter *a, struct key *key); /* the worker notified the main thread */
void hw_finish(struct arbiter *a);                  /* continues all groups as the arbiter ends */

/* The same; in serve/hw_message.c and serve/hw_control.c, as they answer messages: */
/* Where it keeps *fd, it sets it to -1. */
void hw_groups(struct arbiter *a, struct conn *c, const void *buf, size_t len, int *fd);
void hw_acted(struct arbiter *a, struct conn *c, const void *buf, size_t len);
int hw_settings(struct arbiter *a, const void *buf); /* 0 or an errno */
bool hw_report(struct arbiter *a, struct conn *c);   /* false: the asker does not read */

#endif
