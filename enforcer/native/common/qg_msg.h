/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of qgpu_messages.h over SOCK_SEQPACKET, with descriptors. No function blocks, but
 * qg_msg_recv() may while it closes a descriptor.
 */
#ifndef QG_MSG_H
#define QG_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "qgpu_messages.h"

/* Receives one message of at most cap bytes. At most one descriptor is kept in *fd (else -1),
 * close-on-exec; more than one, or a message larger than cap, is refused with -EPROTO and
 * everything is closed. Returns the number of bytes, 0 at the end of the connection, or a negative
 * errno. */
ssize_t qg_msg_recv(int sock, void *buf, size_t cap, int *fd);

/* Receives one message without descriptors, for a thread that must not block. If the next message
 * carries any, it returns -EXFULL. The message and its descriptors then stay in the socket. buf has
 * as much of its text as fits. */
ssize_t qg_msg_recv_bare(int sock, void *buf, size_t cap);

/* Sends one message with nfds descriptors (at most 4). Returns 0 or a negative errno (-EAGAIN: the
 * peer does not read). */
int qg_msg_send(int sock, const void *buf, size_t len, const int *fds, size_t nfds);

/* Is this a whole message of the given type and size, and of our version? */
bool qg_msg_is(const void *buf, size_t len, uint32_t type, size_t want);

/* Fills in the head of a message of our version. */
void qg_msg_head_init(struct qg_msg_head *head, uint32_t type, size_t size);

/* Is there a NUL inside the field of this capacity? */
bool qg_terminated(const char *field, size_t capacity);

#endif
