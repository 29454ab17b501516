/* SPDX-License-Identifier: Apache-2.0
 *
 * What this very process has below the driver's control device, learned from libcuda's own calls,
 * and the few commands that the experiments give: to handles of that table only, never to a card, a
 * runlist or an engine.
 */
#ifndef QGPU_RM_OWN_H
#define QGPU_RM_OWN_H

#include <stdbool.h>
#include <stdint.h>

#include "qgpu_rm.h"

struct handle {
    uint32_t client, parent, object, class_id, engine;
    int fd;
    bool freed, scheduled; /* scheduled: libcuda let it run itself */
};

extern struct handle own_seen[4096];
extern unsigned own_count, own_calls[256], own_other_sizes;
extern bool own_quiet; /* what follows is not watched any more */

/* Every call as a line of JSON (docs/specs/rm-recording.md) into the file that QGPU_OWN_RECORD
 * names. */
void own_record_open(void);

/* The status of the driver, or 0xffff0000 + errno where the call itself failed. `took` may be NULL:
 * nanoseconds. */
uint32_t own_control(int fd, uint32_t client, uint32_t object, uint32_t cmd, void *params,
                     uint32_t size, uint64_t *took);

/* Living groups that libcuda let run; all living ones where none of that was seen. At most `room`.
 */
int own_groups(struct handle **found, int room);

enum own_method {
    OWN_SCHEDULE,
    OWN_DISABLE,
    OWN_DISABLE_SCHEDULING,
    OWN_TIMESLICE_1,
    OWN_TIMESLICE_0,
    OWN_PREEMPT,
    OWN_METHODS
};
extern const char *const own_method_names[OWN_METHODS];

/* Take all own groups off the card, or let them go on. The first status that is not 0. */
uint32_t own_stop(enum own_method method);
uint32_t own_continue(enum own_method method);

/* Set the slice of all own groups in microseconds; what it was before comes back with
 * own_continue(OWN_TIMESLICE_1). */
uint32_t own_slice(uint64_t us);

/* How compute is taken off the card in its midst: 0 at the end of all work, 1 of a block, 2 at any
 * instruction. */
uint32_t own_preemption_mode(uint32_t mode);

uint64_t own_now(void); /* CLOCK_MONOTONIC */

#endif
