/* SPDX-License-Identifier: Apache-2.0
 *
 * What may be asked of the driver about channel groups, by those who act on them: the arbiter's
 * worker and the shim. Nothing else of the control interface is ever spoken, and never anything of
 * a card, an engine or a runlist.
 */
#ifndef QG_RM_H
#define QG_RM_H

#include <stdbool.h>
#include <stdint.h>

#include "qgpu_abi.h"
#include "qgpu_rm.h"

#define QG_RM_NO_CALL 0xffff0000u /* + errno: the driver did not even see the command */
#define QG_RM_STOP_US 500000u     /* so long the driver may take to bring a group off the card */

/* One control command; its NV_STATUS, or QG_RM_NO_CALL + errno. Leaves errno alone. */
uint32_t qg_rm_control(int fd, uint32_t client, uint32_t object, uint32_t cmd, void *params,
                       uint32_t size);

/* One action on all groups (and channels) of the message, through the descriptor that made its
 * client. What fails does not keep the others from their turn. The first status that is not RM_OK;
 * *count: groups acted on without an error. CONTINUE with QG_HW_AUTO undoes both SCHEDULE and
 * DISABLE; with QG_HW_TIMESLICE, and for SLICE, `value` is the slice in microseconds (0: leave it).
 * All are idempotent. */
uint32_t qg_rm_act(int fd, const struct qg_groups *told, uint32_t action, uint32_t method,
                   uint64_t value, uint32_t *count);

/* The card's UUID, 16 bytes, as the driver tells it of a subdevice. */
uint32_t qg_rm_uuid(int fd, uint32_t client, uint32_t subdevice, uint8_t uuid[16]);

/* Is that the UUID of this text ("GPU-" and 32 digits with dashes)? */
bool qg_rm_same_uuid(const char *text, const uint8_t uuid[16]);

#endif
