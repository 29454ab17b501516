/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of the shim to the user.
 */
#ifndef QG_MESSAGE_H
#define QG_MESSAGE_H

/* Writes one line to stderr, "qgpu: ...\n", in one write(2). The caller makes sure that it is
 * written once. */
void qg_message(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
