/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption: checks what a process reported. The driver is asked through the control
 * device that the process passed. It confirms that device, subdevice, groups and channels exist and
 * belong to each other. It also confirms the card. Then a self-test acts on the tenant's groups
 * without an effect: their time slice is set to its own value, and they are scheduled again. A few
 * steps at a time, so that a stop of another tenant need not wait long.
 */
#include <string.h>

#include "hw/hw_parts.h"
#include "model/model.h"

/* Steps before the worker returns to more urgent work. A step is up to four calls of the driver.
 * Chosen, not measured. */
enum { STEPS = 4 };

bool hw_vanished(uint32_t status)
{
    return status == RM_BAD_HANDLE || status == RM_BAD_CLIENT || status == RM_NOT_FOUND ||
           status == RM_BAD_PARENT;
}

static uint32_t ask(const struct hw_record *r, uint32_t object, uint32_t what, uint32_t *value)
{
    struct rm_handle_info info = {.object = object, .index = what};
    uint32_t status = qg_rm_control(r->fd, r->reported.client, r->reported.client,
                                    RM_CLIENT_HANDLE_INFO, &info, sizeof(info));
    *value = (uint32_t)info.result;
    return status;
}

/* Is the object of that class (0: of any class of channels), with `parent` as its parent? */
static enum hw_verdict check_object(struct hw_record *r, uint32_t object, uint32_t class_id,
                                    uint32_t parent)
{
    uint32_t found = 0, above = 0;
    r->status = ask(r, object, RM_HANDLE_CLASS, &found);
    if (!r->status)
        r->status = ask(r, object, RM_HANDLE_PARENT, &above);
    if (r->status)
        return hw_vanished(r->status) ? HW_VANISHED : HW_UNABLE;
    bool right = class_id ? found == class_id : RM_IS_CHANNEL(found);
    return right && above == parent ? HW_PASSED : HW_LIED;
}

static enum hw_verdict check_card(const struct card *card, struct hw_record *r, const char **why)
{
    uint8_t uuid[16];
    enum hw_verdict v =
        check_object(r, r->reported.subdevice, RM_CLASS_SUBDEVICE, r->reported.device);
    *why = "the subdevice it named is none, or another device's";
    if (v != HW_PASSED)
        return v;
    r->status = qg_rm_uuid(r->fd, r->reported.client, r->reported.subdevice, uuid);
    *why = "the driver does not report the card of the subdevice that it named";
    if (r->status)
        return hw_vanished(r->status) ? HW_VANISHED : HW_UNABLE;
    *why = "the groups it named are another card's";
    return qg_rm_same_uuid(card->uuid, uuid) ? HW_PASSED : HW_LIED;
}

static bool is_graphics(uint32_t engine)
{
    return engine >= RM_ENGINE_GRAPHICS && engine <= RM_ENGINE_GRAPHICS_LAST;
}

static enum hw_verdict check_group(struct hw_record *r, uint32_t i, const char **why)
{
    *why = "a group it named is none, or another device's";
    enum hw_verdict v =
        check_object(r, r->reported.groups[i].handle, RM_CLASS_GROUP, r->reported.device);
    if (v != HW_PASSED)
        return v;
    struct qg_groups *part =
        &r->part[is_graphics(r->reported.groups[i].engine) ? HW_GRAPHICS : HW_REST];
    part->groups[part->ngroups++] = r->reported.groups[i];
    return HW_PASSED;
}

static bool has(const struct qg_groups *part, uint32_t group)
{
    for (uint32_t i = 0; i < part->ngroups; i++) {
        if (part->groups[i].handle == group)
            return true;
    }
    return false;
}

static enum hw_verdict check_channel(struct hw_record *r, uint32_t i, const char **why)
{
    uint32_t group = r->reported.channels[i].group;
    *why = "a channel it named is none, or of none of its groups";
    for (int k = 0; k < HW_PARTS; k++) {
        struct qg_groups *part = &r->part[k];
        if (!has(part, group))
            continue;
        enum hw_verdict v = check_object(r, r->reported.channels[i].handle, 0, group);
        if (v == HW_PASSED)
            part->channels[part->nchannels++] = r->reported.channels[i];
        return v;
    }
    return HW_LIED;
}

static uint32_t slice_of(const struct hw_record *r, uint32_t group, uint64_t *us)
{
    struct rm_timeslice t = {0};
    uint32_t status =
        qg_rm_control(r->fd, r->reported.client, group, RM_GROUP_GET_TIMESLICE, &t, sizeof(t));
    *us = t.us;
    return status;
}

/* Reads the time slice, sets it to the same value, and reads it again. With other structures than
 * those of qgpu_rm.h a driver would give another value. */
static enum hw_verdict try_slice(struct hw_record *r, uint32_t i)
{
    uint32_t group = r->reported.groups[i].handle;
    uint64_t had = 0, has_now = 0;
    uint32_t status = slice_of(r, group, &had);
    if (!status && had <= HW_SHORTEST_US)
        had = HW_DEFAULT_US;
    struct rm_timeslice t = {.us = had};
    if (!status)
        status =
            qg_rm_control(r->fd, r->reported.client, group, RM_GROUP_SET_TIMESLICE, &t, sizeof(t));
    if (!status)
        status = slice_of(r, group, &has_now);
    if (status) {
        r->methods &= ~(1u << QG_HW_TIMESLICE);
        r->status = status;
        return hw_vanished(status) ? HW_VANISHED : HW_PASSED;
    }
    r->had_us[i] = had;
    return has_now == had ? HW_PASSED : HW_UNABLE;
}

static enum hw_verdict try_schedule(struct hw_record *r, uint32_t i)
{
    struct rm_schedule on = {.enable = 1};
    if (!(r->methods & 1u << QG_HW_SCHEDULE))
        return HW_PASSED;
    uint32_t group = r->reported.groups[i].handle;
    uint32_t status =
        qg_rm_control(r->fd, r->reported.client, group, RM_GROUP_SCHEDULE, &on, sizeof(on));
    if (!status)
        return HW_PASSED;
    r->methods &= ~(1u << QG_HW_SCHEDULE);
    r->status = status;
    return hw_vanished(status) ? HW_VANISHED : HW_PASSED;
}

static enum hw_verdict try_group(struct hw_record *r, uint32_t i, const char **why)
{
    *why = "the driver does not keep the slice that it was given";
    enum hw_verdict v = try_slice(r, i);
    return v == HW_PASSED ? try_schedule(r, i) : v;
}

/* Chooses the first method that works. Enabling channels is also tried where an earlier arbiter may
 * have disabled them. */
static enum hw_verdict choose(struct hw_record *r, const char **why)
{
    uint32_t wanted_method = r->wanted_method, count;
    *why = "the self-test of the driver's control calls failed";
    if (wanted_method != QG_HW_SCHEDULE && r->methods & 1u << QG_HW_DISABLE) {
        for (int k = 0; k < HW_PARTS; k++) {
            uint32_t s = qg_rm_act(r->fd, &r->part[k], QG_ACT_CONTINUE, QG_HW_DISABLE, 0, &count);
            if (s && r->methods & 1u << QG_HW_SCHEDULE)
                s = 0; /* an error does not matter: scheduling is used */
            if (!s)
                continue;
            r->methods &= ~(1u << QG_HW_DISABLE);
            r->status = s;
        }
    }
    for (uint32_t m = QG_HW_SCHEDULE; m <= QG_HW_TIMESLICE; m++) {
        if (!(r->methods & 1u << m))
            continue;
        r->method = m;
        return HW_PASSED;
    }
    return HW_UNABLE;
}

static void prepare(struct hw_record *r)
{
    uint32_t wanted_method = r->wanted_method;
    r->methods = wanted_method ? 1u << wanted_method
                               : 1u << QG_HW_SCHEDULE | 1u << QG_HW_DISABLE | 1u << QG_HW_TIMESLICE;
    if (r->reported.flags & QG_GROUPS_MORE_CHANNELS)
        r->methods &= ~(1u << QG_HW_DISABLE);
    for (int k = 0; k < HW_PARTS; k++) {
        r->part[k] = r->reported;
        r->part[k].ngroups = r->part[k].nchannels = 0;
        memset(r->part[k].groups, 0, sizeof(r->part[k].groups));
        memset(r->part[k].channels, 0, sizeof(r->part[k].channels));
    }
}

/* Did this record replace one with stopped groups? Then its method works, and no group is tested,
 * since that would continue it. */
static bool inherits(struct hw_record *r)
{
    const struct hw_record *f = hw_former(r);
    if (!f || !f->stopped)
        return false;
    r->method = f->method;
    for (uint32_t i = 0; i < r->reported.ngroups; i++) {
        for (uint32_t k = 0; k < f->reported.ngroups; k++) {
            if (r->reported.groups[i].handle == f->reported.groups[k].handle)
                r->had_us[i] = f->had_us[k];
        }
    }
    return true;
}

static enum hw_verdict step(const struct card *card, struct hw_record *r, uint32_t at,
                            const char **why)
{
    uint32_t groups = r->reported.ngroups, channels = r->reported.nchannels;
    *why = "the device it named is none of its client";
    if (at == 0)
        return check_object(r, r->reported.device, RM_CLASS_DEVICE, r->reported.client);
    if (at == 1)
        return check_card(card, r, why);
    at -= 2;
    if (at < groups)
        return check_group(r, at, why);
    at -= groups;
    if (at < channels)
        return check_channel(r, at, why);
    at -= channels;
    if (!inherits(r))
        return try_group(r, at, why);
    return r->had_us[at] ? HW_PASSED : try_slice(r, at);
}

enum hw_verdict hw_test(const struct card *card, struct hw_record *r, const char **why)
{
    uint32_t last = 2 + 2 * r->reported.ngroups + r->reported.nchannels;
    if (r->step == 0)
        prepare(r);
    for (int i = 0; i < STEPS && r->step < last; i++) {
        enum hw_verdict v = step(card, r, r->step++, why);
        if (v != HW_PASSED)
            return v;
    }
    if (r->step < last)
        return HW_MORE;
    return inherits(r) ? HW_PASSED : choose(r, why);
}
