/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands: of clients, subdevices and channel groups.
 */
#include <string.h>

#include "gpu.h"
#include "rm.h"

#define MAX_PREEMPT_US 1000000u
/* the driver's patience with a group that does not leave (guessed) */
#define OWN_TIMEOUT_NS 4000000000ull

static const struct {
    uint32_t cmd, size;
    bool card; /* the card's own processor executes it */
} commands[] = {
    {RM_GROUP_SCHEDULE, sizeof(struct rm_schedule), true},
    {RM_GROUP_SET_TIMESLICE, sizeof(struct rm_timeslice), true},
    {RM_GROUP_GET_TIMESLICE, sizeof(struct rm_timeslice), false},
    {RM_GROUP_PREEMPT, sizeof(struct rm_preempt), true},
    {RM_GROUP_GET_INFO, sizeof(struct rm_group_info), false},
    {RM_SUBDEVICE_DISABLE_CHANNELS, sizeof(struct rm_disable_channels), true},
    {RM_SUBDEVICE_GET_GID, sizeof(struct rm_gid), false},
    {RM_SUBDEVICE_SET_PREEMPTION_MODE, sizeof(struct rm_preemption_mode), true},
    {RM_CLIENT_HANDLE_INFO, sizeof(struct rm_handle_info), false},
};

bool rm_known_size(uint32_t cmd, uint32_t *size)
{
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++)
        if (commands[i].cmd == cmd) {
            *size = commands[i].size;
            return true;
        }
    return false;
}

bool rm_reaches_card(uint32_t cmd)
{
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++)
        if (commands[i].cmd == cmd)
            return commands[i].card;
    return false;
}

/* ---- groups ---- */

/* The call is answered when the stopped group is off its engines. */
static void await_stop(struct rm_call *call, const struct rm_group *group)
{
    if (group->ctx)
        call->waits[call->nwaits++] = group->ctx->id;
    call->deadline = gpu_now() + OWN_TIMEOUT_NS;
}

static uint32_t schedule(struct rm_group *group, const struct rm_schedule *order,
                         struct rm_call *call)
{
    if (order->enable > 1 || order->skip_submit > 1 || order->skip_enable > 1)
        return RM_BAD_ARGUMENT;
    group->scheduled = order->enable;
    group->lenient = false;
    rm_group_apply(group);
    if (!order->enable)
        await_stop(call, group);
    return RM_OK;
}

static uint32_t preempt(struct rm_group *group, const struct rm_preempt *order,
                        struct rm_call *call)
{
    if (order->manual_timeout && order->timeout_us > MAX_PREEMPT_US)
        return RM_BAD_ARGUMENT;
    if (!group->ctx)
        return RM_OK;
    gpu_card_sync(group->card);
    for (unsigned e = 0; e < MODEL_ENGINES; e++)
        if (group->engines & 1u << e) {
            uint64_t leaves = model_expire(group->ctx->model, e);
            call->until = order->wait && leaves > call->until ? leaves : call->until;
        }
    call->deadline =
        gpu_now() + (order->manual_timeout ? order->timeout_us * 1000ull : OWN_TIMEOUT_NS);
    return RM_OK;
}

static uint32_t control_group(struct rm_group *group, uint32_t cmd, struct rm_call *call)
{
    struct rm_timeslice *slice = (void *)call->params;
    switch (cmd) {
    case RM_GROUP_SCHEDULE:
        return schedule(group, (void *)call->params, call);
    case RM_GROUP_SET_TIMESLICE:
        rm_group_slice(group, slice->us);
        return RM_OK;
    case RM_GROUP_GET_TIMESLICE:
        slice->us = group->slice_us;
        return RM_OK;
    case RM_GROUP_PREEMPT:
        return preempt(group, (void *)call->params, call);
    default:
        ((struct rm_group_info *)(void *)call->params)->group_id = group->id;
        return RM_OK;
    }
}

/* ---- subdevices ---- */

/* The owner of the channels is not checked: it is unknown whether a real card's firmware does. */
static uint32_t disable_channels(struct gpu *gpu, const struct rm_object *subdevice,
                                 const struct rm_disable_channels *order, struct rm_call *call)
{
    struct rm_object *channels[RM_MAX_DISABLED];
    if (order->count > RM_MAX_DISABLED || order->event)
        return RM_BAD_ARGUMENT;
    for (uint32_t i = 0; i < order->count; i++) {
        struct rm_client *client = rm_client_any(gpu, order->clients[i]);
        channels[i] = client ? rm_object_find(client, order->channels[i]) : NULL;
        if (!channels[i] || !RM_IS_CHANNEL(channels[i]->class_id) ||
            channels[i]->card != subdevice->card)
            return RM_NOT_FOUND;
    }
    for (uint32_t i = 0; i < order->count; i++) {
        struct rm_group *group = channels[i]->group;
        bool ran = rm_group_runs(group), disable = order->disable;
        group->disabled += disable ? !channels[i]->disabled : 0u;
        group->disabled -= disable ? 0u : channels[i]->disabled;
        channels[i]->disabled = disable;
        group->lenient = disable && order->only_scheduling;
        if (ran == rm_group_runs(group))
            continue;
        rm_group_apply(group);
        if (disable && !order->only_scheduling)
            await_stop(call, group);
    }
    return RM_OK;
}

static uint32_t set_preemption(struct rm_client *client, const struct rm_preemption_mode *order)
{
    static const enum model_preempt modes[] = {[RM_PREEMPT_WFI] = PREEMPT_AT_END,
                                               [RM_PREEMPT_CTA] = PREEMPT_BLOCK,
                                               [RM_PREEMPT_CILP] = PREEMPT_ANYWHERE};
    const struct rm_object *object = rm_object_find(client, order->channel);
    if (!object || !object->group)
        return RM_NOT_FOUND;
    if (order->compute > RM_PREEMPT_CILP)
        return RM_BAD_ARGUMENT;
    if (order->flags & RM_PREEMPT_SET_COMPUTE && object->group->ctx) {
        gpu_card_sync(object->card);
        object->group->ctx->model->preempt = modes[order->compute];
    }
    return RM_OK;
}

static uint32_t get_gid(const struct rm_object *subdevice, struct rm_gid *gid)
{
    const char *text = subdevice->card->uuid;
    if (gid->index)
        return RM_BAD_ARGUMENT;
    memset(gid->data, 0, sizeof gid->data);
    if (!(gid->flags & RM_GID_BINARY)) {
        gid->length = (uint32_t)strlen(text) + 1;
        memcpy(gid->data, text, gid->length);
        return RM_OK;
    }
    gid->length = 16;
    unsigned digit = 0;
    for (const char *c = text + 4; *c && digit < 32; c++) /* behind "GPU-" */
        if (*c != '-') {
            unsigned value = (unsigned)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
            gid->data[digit / 2] |= (uint8_t)(digit % 2 ? value : value << 4);
            digit++;
        }
    return RM_OK;
}

static uint32_t handle_info(struct rm_client *client, struct rm_handle_info *info)
{
    const struct rm_object *object = rm_object_find(client, info->object);
    if (!object)
        return RM_NOT_FOUND;
    if (info->index == RM_HANDLE_PARENT)
        info->result = object->parent ? object->parent->handle : 0;
    else if (info->index == RM_HANDLE_CLASS)
        info->result = object->class_id;
    else
        return RM_BAD_ARGUMENT;
    return RM_OK;
}

uint32_t rm_control(struct gpu *gpu, struct rm_client *client, const struct rm_control *control,
                    struct rm_call *call)
{
    struct rm_object *object = rm_object_find(client, control->object);
    uint32_t cmd = control->cmd, of = cmd >> 16;
    if (!object)
        return RM_NOT_FOUND;
    if (of == RM_CLASS_GROUP)
        return object->class_id == RM_CLASS_GROUP ? control_group(object->group, cmd, call)
                                                  : RM_BAD_COMMAND;
    if (of == RM_CLASS_SUBDEVICE && object->class_id != RM_CLASS_SUBDEVICE)
        return RM_BAD_COMMAND;
    if (cmd == RM_SUBDEVICE_DISABLE_CHANNELS)
        return disable_channels(gpu, object, (void *)call->params, call);
    if (cmd == RM_SUBDEVICE_GET_GID)
        return get_gid(object, (void *)call->params);
    if (cmd == RM_SUBDEVICE_SET_PREEMPTION_MODE)
        return set_preemption(client, (void *)call->params);
    if (cmd == RM_CLIENT_HANDLE_INFO)
        return object == &client->root ? handle_info(client, (void *)call->params) : RM_BAD_COMMAND;
    return RM_BAD_COMMAND;
}
