/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands to the driver that stop and continue channel groups, for the arbiter's worker and
 * the shim. No other command of the control interface is used. None acts on a card, an engine or a
 * runlist.
 */
#ifndef QG_RM_H
#define QG_RM_H

#include <stdbool.h>
#include <stdint.h>

#include "qgpu_messages.h"
#include "qgpu_rm.h"

/* Status of a command that did not reach the driver: this + errno. Above every NV_STATUS. */
#define QG_RM_NO_CALL 0xffff0000u
/* Time in us that the driver may take to bring a group off the card. Half of the arbiter's limit
 * for one call (HW_LIMIT_NS). Chosen, not measured. */
#define QG_RM_STOP_US 500000u

/* Sends one control command. Returns its NV_STATUS, or QG_RM_NO_CALL + errno. Keeps errno. */
uint32_t qg_rm_control(int fd, uint32_t client, uint32_t object, uint32_t cmd, void *params,
                       uint32_t size);

/* Acts on all groups (and channels) of the message, through the descriptor that made its client. If
 * one fails, the others are still acted on. Returns the first status that is not RM_OK; *count is
 * the number of groups without an error. CONTINUE with QG_HW_AUTO undoes both SCHEDULE and DISABLE.
 * With QG_HW_TIMESLICE, and for SLICE, `value` is the time slice in us (0: no change). All actions
 * are idempotent. */
uint32_t qg_rm_act(int fd, const struct qg_groups *reported, uint32_t action, uint32_t method,
                   uint64_t value, uint32_t *count);

/* The 16 bytes of the UUID of the subdevice's card, as the driver reports it. */
uint32_t qg_rm_uuid(int fd, uint32_t client, uint32_t subdevice, uint8_t uuid[16]);

/* Is it the same UUID as in this text ("GPU-" and 32 digits with dashes)? */
bool qg_rm_same_uuid(const char *text, const uint8_t uuid[16]);

#endif
