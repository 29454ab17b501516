/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a connection, and what hangs on it. Main thread only.
 */
#ifndef QGPU_PEER_H
#define QGPU_PEER_H

#include "model/model.h"

void conn_close(struct arbiter *a, struct conn *c);
bool conn_alive(const struct conn *c);
void conn_hold(struct conn *c);   /* a slot was taken over it */
void conn_let_go(struct conn *c); /* and is not any more */

#endif
