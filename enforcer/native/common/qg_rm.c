/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands to the driver about channel groups; qg_rm.h describes each function.
 */
#include "qg_rm.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

uint32_t qg_rm_control(int fd, uint32_t client, uint32_t object, uint32_t cmd, void *params,
                       uint32_t size)
{
    struct rm_control c = {.client = client,
                           .object = object,
                           .cmd = cmd,
                           .params = (uintptr_t)params,
                           .params_size = size};
    int saved = errno;
    long result;
    /* By its number: in a job's process, the symbol `ioctl` is the shim's hook. */
    do
        result = syscall(SYS_ioctl, fd, RM_CONTROL, &c);
    while (result != 0 && errno == EINTR);
    uint32_t status = result == 0 ? c.status : QG_RM_NO_CALL + (uint32_t)errno;
    errno = saved;
    return status;
}

static uint32_t schedule(int fd, const struct qg_groups *reported, uint32_t i, bool enable)
{
    struct rm_schedule s = {.enable = enable};
    return qg_rm_control(fd, reported->client, reported->groups[i].handle, RM_GROUP_SCHEDULE, &s,
                         sizeof(s));
}

/* A group that was taken from the runlist may still run. This preempts it and waits until it is off
 * the card. */
static uint32_t preempt(int fd, const struct qg_groups *reported, uint32_t i)
{
    struct rm_preempt p = {.wait = 1, .manual_timeout = 1, .timeout_us = QG_RM_STOP_US};
    return qg_rm_control(fd, reported->client, reported->groups[i].handle, RM_GROUP_PREEMPT, &p,
                         sizeof(p));
}

static uint32_t slice(int fd, const struct qg_groups *reported, uint32_t i, uint64_t us)
{
    struct rm_timeslice t = {.us = us};
    return us ? qg_rm_control(fd, reported->client, reported->groups[i].handle,
                              RM_GROUP_SET_TIMESLICE, &t, sizeof(t))
              : RM_OK;
}

/* Names channels of this one client only. The driver may not check which client they are of. */
static uint32_t disable(int fd, const struct qg_groups *reported, bool off)
{
    struct rm_disable_channels d = {.disable = off, .count = reported->nchannels};
    if (reported->nchannels > RM_MAX_DISABLED)
        return RM_BAD_ARGUMENT;
    if (!reported->nchannels)
        return RM_OK;
    for (uint32_t i = 0; i < reported->nchannels; i++) {
        d.clients[i] = reported->client;
        d.channels[i] = reported->channels[i].handle;
    }
    return qg_rm_control(fd, reported->client, reported->subdevice, RM_SUBDEVICE_DISABLE_CHANNELS,
                         &d, sizeof(d));
}

static uint32_t first_of(uint32_t before, uint32_t now)
{
    return before ? before : now;
}

static uint32_t act_on_group(int fd, const struct qg_groups *reported, uint32_t i, uint32_t action,
                             uint32_t method, uint64_t value)
{
    if (action == QG_ACT_SLICE || method == QG_HW_TIMESLICE)
        return slice(fd, reported, i, action == QG_ACT_STOP && !value ? 1 : value);
    return method == QG_HW_DISABLE ? RM_OK : schedule(fd, reported, i, action == QG_ACT_CONTINUE);
}

uint32_t qg_rm_act(int fd, const struct qg_groups *reported, uint32_t action, uint32_t method,
                   uint64_t value, uint32_t *count)
{
    uint32_t status = RM_OK, each[QG_MAX_GROUPS];
    *count = 0;
    if (reported->ngroups > QG_MAX_GROUPS || action > QG_ACT_SLICE || method > QG_HW_TIMESLICE)
        return RM_BAD_ARGUMENT;
    if (action == QG_ACT_STOP && method == QG_HW_AUTO)
        return RM_BAD_ARGUMENT;
    if (action != QG_ACT_SLICE && (method == QG_HW_DISABLE || method == QG_HW_AUTO))
        status = disable(fd, reported, action == QG_ACT_STOP);
    uint32_t all = method == QG_HW_DISABLE && action != QG_ACT_SLICE ? status : RM_OK;
    for (uint32_t i = 0; i < reported->ngroups; i++)
        each[i] = first_of(all, act_on_group(fd, reported, i, action, method, value));
    /* All are off the runlist before the first preemption, so that they leave the card together. */
    for (uint32_t i = 0; action == QG_ACT_STOP && method == QG_HW_SCHEDULE && i < reported->ngroups;
         i++)
        if (!each[i])
            each[i] = preempt(fd, reported, i);
    for (uint32_t i = 0; i < reported->ngroups; i++) {
        status = first_of(status, each[i]);
        *count += each[i] == RM_OK;
    }
    return status;
}

uint32_t qg_rm_uuid(int fd, uint32_t client, uint32_t subdevice, uint8_t uuid[16])
{
    struct rm_gid gid = {.flags = RM_GID_BINARY};
    uint32_t status = qg_rm_control(fd, client, subdevice, RM_SUBDEVICE_GET_GID, &gid, sizeof(gid));
    if (status == RM_OK && gid.length != 16)
        status = RM_BAD_PARAMS;
    if (status == RM_OK)
        memcpy(uuid, gid.data, 16);
    return status;
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool qg_rm_same_uuid(const char *text, const uint8_t uuid[16])
{
    /* not for a MIG instance: the driver only knows the UUID of its card */
    if (strncmp(text, "GPU-", 4) != 0)
        return false;
    text += 4;
    for (unsigned i = 0; i < 32; i++, text++) {
        while (*text == '-')
            text++;
        if (digit(*text) != (i % 2 ? uuid[i / 2] & 15 : uuid[i / 2] >> 4))
            return false;
    }
    return *text == 0;
}
