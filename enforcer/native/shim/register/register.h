/* SPDX-License-Identifier: Apache-2.0
 *
 * Registration at the arbiter, by a helper thread.
 */
#ifndef QG_REGISTER_H
#define QG_REGISTER_H

void qg_register_start(void); /* starts the helper thread */

#endif
