/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots that a connection holds, and its end. Main thread only.
 */
#ifndef QGPU_PEER_H
#define QGPU_PEER_H

#include "model/model.h"

void conn_close(struct arbiter *a, struct conn *c);
bool conn_alive(const struct conn *c);
void conn_add_slot(struct conn *c);  /* a process took a slot over this connection */
void conn_drop_slot(struct conn *c); /* one of these slots is free again */

#endif
