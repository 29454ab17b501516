/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults on demand of calls of the control device: "rm.NAME" in gpu_faults.c's words.
 */
#include <stdio.h>
#include <string.h>

#include "gpu.h"
#include "rm.h"

static const struct {
    uint32_t cmd;
    const char *name;
} names[] = {{RM_GROUP_SCHEDULE, "rm.schedule"},
             {RM_GROUP_SET_TIMESLICE, "rm.set_timeslice"},
             {RM_GROUP_GET_TIMESLICE, "rm.get_timeslice"},
             {RM_GROUP_PREEMPT, "rm.preempt"},
             {RM_GROUP_GET_INFO, "rm.get_info"},
             {RM_SUBDEVICE_DISABLE_CHANNELS, "rm.disable_channels"},
             {RM_SUBDEVICE_GET_GID, "rm.get_gid"},
             {RM_SUBDEVICE_SET_PREEMPTION_MODE, "rm.set_preemption_mode"},
             {RM_CLIENT_HANDLE_INFO, "rm.handle_info"}};

const char *rm_call_name(const struct gpu_ioctl *ioctl)
{
    const struct rm_control *control = (const void *)ioctl->data;
    switch (_IOC_NR(ioctl->cmd)) {
    case RM_ESC_FREE:
        return "rm.free";
    case RM_ESC_ALLOC:
        return "rm.alloc";
    case RM_ESC_DUP:
        return "rm.dup";
    case RM_ESC_CONTROL:
        break;
    default:
        return "rm.other";
    }
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (ioctl->size == sizeof *control && control->cmd == names[i].cmd)
            return names[i].name;
    return "rm.control";
}

bool rm_call_exists(const char *name)
{
    static const char *const others[] = {"rm.*",   "rm.free",    "rm.alloc",
                                         "rm.dup", "rm.control", "rm.other"};
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(name, others[i]) == 0)
            return true;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i].name) == 0)
            return true;
    return false;
}

bool rm_wants_caller(const struct rm *rm)
{
    bool wants = rm->log >= 0;
    for (unsigned i = 0; i < RM_FAULTS; i++)
        wants |= rm->faults[i].kind && rm->faults[i].pid;
    return wants;
}

bool rm_fault_add(struct rm *rm, const struct rm_fault *fault)
{
    for (unsigned i = 0; i < RM_FAULTS; i++) {
        struct rm_fault *slot = &rm->faults[i];
        if (slot->kind && slot->left &&
            (slot->pid != fault->pid || strcmp(slot->call, fault->call) != 0))
            continue;
        *slot = *fault;
        return true;
    }
    return false;
}

/* What hangs goes on. */
void rm_fault_clear(struct gpu *gpu, uint32_t pid)
{
    for (unsigned i = 0; i < RM_FAULTS; i++)
        if (!pid || gpu->rm->faults[i].pid == pid)
            gpu->rm->faults[i].kind = RM_FAULT_NONE;
    for (struct rm_call *call = gpu->rm->calls; call; call = call->next)
        if (!pid || call->caller == pid || call->owner == pid) {
            call->due = call->hangs ? 0 : call->due;
            call->hangs = false;
        }
}

static bool fits(const char *pattern, const char *name)
{
    bool command = strcmp(name, "rm.alloc") && strcmp(name, "rm.free") && strcmp(name, "rm.dup") &&
                   strcmp(name, "rm.other");
    return strcmp(pattern, "rm.*") == 0 || (command && strcmp(pattern, "rm.control") == 0) ||
           strcmp(pattern, name) == 0;
}

const struct rm_fault *rm_fault_take(struct rm *rm, const char *name, uint32_t caller,
                                     uint32_t owner)
{
    for (unsigned i = 0; i < RM_FAULTS; i++) {
        struct rm_fault *fault = &rm->faults[i];
        if (!fault->kind || !fault->left || !fits(fault->call, name) ||
            (fault->pid && fault->pid != caller && fault->pid != owner))
            continue;
        fault->left -= fault->left > 0;
        return fault;
    }
    return NULL;
}
