/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption: acts on the groups of one record, through the control device that its
 * process passed. It uses only the commands of qg_rm.c, and only handles that the self-test
 * confirmed. It never holds hw->lock, as a call of the driver may hang.
 */
#include "hw/hw_parts.h"

static uint32_t set_slice(const struct hw_record *r, uint32_t group, uint64_t us)
{
    struct rm_timeslice t = {.us = us};
    return qg_rm_control(r->fd, r->reported.client, group, RM_GROUP_SET_TIMESLICE, &t, sizeof(t));
}

/* Sets the time slice of all groups: `us`, or with 0 the one that each had when reported. */
static uint32_t slices(const struct hw_record *r, uint64_t us)
{
    uint32_t status = RM_OK;
    for (uint32_t i = 0; i < r->reported.ngroups; i++) {
        uint64_t want = us ? us : r->had_us[i];
        uint32_t s = want ? set_slice(r, r->reported.groups[i].handle, want) : RM_OK;
        if (!status)
            status = s;
    }
    return status;
}

uint32_t hw_stop(const struct hw_record *r, enum hw_part part)
{
    uint32_t count;
    if (!r->part[part].ngroups)
        return RM_OK;
    return qg_rm_act(r->fd, &r->part[part], QG_ACT_STOP, r->method, HW_SHORTEST_US, &count);
}

uint32_t hw_resume(const struct hw_record *r)
{
    uint32_t count, status = RM_OK;
    if (r->method == QG_HW_TIMESLICE)
        return slices(r, r->slice_us);
    for (int i = 0; i < HW_PARTS; i++) {
        uint32_t s = r->part[i].ngroups
                         ? qg_rm_act(r->fd, &r->part[i], QG_ACT_CONTINUE, r->method, 0, &count)
                         : RM_OK;
        if (!status)
            status = s;
    }
    return status;
}

uint32_t hw_slice(const struct hw_record *r, uint64_t us)
{
    return slices(r, us);
}

/* Best effort, before the record is removed. If the driver reports an error, the group does not
 * exist any more or ends with its process. */
uint32_t hw_continue(const struct hw_record *r)
{
    uint32_t status = RM_OK, s = RM_OK;
    /* the shim continues its groups itself, when ordered to or when its connection ends */
    if (r->actor == QG_HW_ACTOR_SHIM)
        return RM_OK;
    if (r->stopped && r->method != QG_HW_TIMESLICE)
        status = hw_resume(r);
    if (r->slice_us || (r->stopped && r->method == QG_HW_TIMESLICE))
        s = slices(r, 0);
    return status ? status : s;
}
