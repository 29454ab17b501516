/* SPDX-License-Identifier: Apache-2.0
 *
 * Acts on the channel groups of this process: carries out the arbiter's orders, and undoes all that
 * the arbiter may have done.
 */
#include <string.h>
#include <unistd.h>

#include "qg_rm.h"
#include "groups/rm_report.h"

/* Passes over a table that another thread may change meanwhile. Chosen, not measured. */
#define TRIES 5

/* One action on one device's groups; the caller repeats it if a group ended meanwhile. */
static uint32_t act_on(const struct qg_rm_snapshot *snapshot, uint32_t action, uint32_t method,
                       uint64_t value, uint32_t *count)
{
    int fd = qg_rm_borrow(snapshot);
    *count = 0;
    if (fd < 0) {
        qg_rm_unreachable(snapshot);
        return RM_BAD_CLIENT;
    }
    uint32_t status = qg_rm_act(fd, &snapshot->reported, action, method, value, count);
    close(fd);
    return status;
}

/* Gives each group the slice that it had before. A slice that is right is not set again, since that
 * would take the group off the card for nothing. */
static uint32_t slices_again(const struct qg_rm_snapshot *snapshot, bool always)
{
    uint32_t first = RM_OK;
    int fd = qg_rm_borrow(snapshot);
    for (uint32_t i = 0; fd >= 0 && i < snapshot->reported.ngroups; i++) {
        struct rm_timeslice now = {0}, before = {.us = snapshot->slice_us[i]};
        uint32_t client = snapshot->reported.client, group = snapshot->reported.groups[i].handle;
        uint32_t status =
            qg_rm_control(fd, client, group, RM_GROUP_GET_TIMESLICE, &now, sizeof(now));
        if (!status && before.us && (always || now.us != before.us))
            status =
                qg_rm_control(fd, client, group, RM_GROUP_SET_TIMESLICE, &before, sizeof(before));
        first = first ? first : status;
    }
    if (fd >= 0)
        close(fd);
    return first;
}

bool qg_rm_continue(int card)
{
    struct qg_rm_snapshot snapshot;
    uint32_t count;
    bool all = true;
    for (unsigned at = 0; qg_rm_next(&at, &snapshot);)
        if (snapshot.card >= 0 && (card < 0 || snapshot.card == card) &&
            snapshot.reported.ngroups) {
            all &= act_on(&snapshot, QG_ACT_CONTINUE, QG_HW_AUTO, 0, &count) == RM_OK;
            slices_again(&snapshot, false);
        }
    return all;
}

uint32_t qg_rm_act_on_card(int card, const struct qg_act *order, uint32_t *count)
{
    struct qg_rm_snapshot snapshot;
    uint32_t status = RM_OK, some, before;
    bool slices =
        order->action == QG_ACT_CONTINUE && order->method == QG_HW_TIMESLICE && !order->value;
    int tries = TRIES;
    *count = 0;
    for (unsigned at = 0; before = qg_rm_changes(), qg_rm_next(&at, &snapshot);) {
        if (snapshot.card != card || !snapshot.reported.ngroups)
            continue;
        uint32_t now = act_on(&snapshot, order->action, order->method, order->value, &some);
        if (slices)
            now = now ? now : slices_again(&snapshot, true);
        if (now && qg_rm_changes() != before && --tries) {
            at--; /* an object came or went: read the table again */
            continue;
        }
        *count += some;
        status = status ? status : now;
    }
    return status;
}
