/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption, as all others see it (docs/specs/hardware.md). What its own sources share
 * is in hw_parts.h. An arbiter built with HW=0 has absent.c in their place.
 */
#ifndef QGPU_HW_H
#define QGPU_HW_H

#include "model/model.h"

/* with the card's lock */
void hw_review(struct card *card, uint64_t now); /* right after gates were moved */
/* all groups of that process stand still */
bool hw_held(const struct tenant *t, uint32_t slot);
/* shares by time slices: what must be in flight for that */
uint32_t hw_window(const struct tenant *t);
/* work behind its closed gate is to be noticed */
bool hw_watches(const struct tenant *t);
void hw_escaped(const struct tenant *t); /* although they do, it made progress */
/* main thread, without the card's lock */
void hw_process_left(struct arbiter *a, const struct tenant *t, uint32_t slot);
void hw_connection_ended(struct arbiter *a, const struct tenant *t, uint32_t slot);
void hw_tenant_revoked(struct arbiter *a, const struct tenant *t);
void hw_tenant_new(struct card *card, uint32_t index);
void hw_tenant_changed(const struct tenant *t); /* its share, perhaps */
/* may one come with this? */
bool hw_control_of(const struct arbiter *a, const void *buf, size_t cap,
                   struct qg_ctl_hardware *device);
void hw_attend(struct arbiter *a, struct key *key);
void hw_finish(struct arbiter *a);

/* the same; in serve/hw_message.c and serve/hw_control.c, since they answer messages */
/* may take fd for its own */
void hw_groups(struct arbiter *a, struct conn *c, const void *buf, size_t len, int *fd);
void hw_acted(struct arbiter *a, struct conn *c, const void *buf, size_t len);
int hw_settings(struct arbiter *a, const void *buf); /* 0 or an errno */
bool hw_report(struct arbiter *a, struct conn *c);

#endif
