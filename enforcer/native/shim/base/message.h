/* SPDX-License-Identifier: Apache-2.0 */
#ifndef QG_MESSAGE_H
#define QG_MESSAGE_H

/* One line on stderr, "qgpu: ...\n", in one write(2). The caller makes sure that it is said once.
 */
void qg_message(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
