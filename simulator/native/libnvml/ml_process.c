/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes of a card in the simulator's NVML: memory, utilization, and the memory limits of driver
 * generation 615.
 */
#include "ml.h"

#include <string.h>

static nvmlReturn_t list_procs(nvmlDevice_t device, struct sim_procs *procs)
{
    uint64_t numbers[3] = {device->info.index, 0, 0};
    TRY(ml_ask(SIM_REQ_PROCS, numbers, NULL, procs, sizeof *procs));
    /* never a part of a list for the whole */
    return procs->rep.a <= SIM_MAX_PROCS ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

/* The first version of an entry begins as the later ones do, and has no instances. */
_Static_assert(sizeof(nvmlProcessInfo_v2_t) == sizeof(nvmlProcessInfo_t), "one layout");
_Static_assert(sizeof(nvmlProcessInfo_v1_t) < sizeof(nvmlProcessInfo_t), "a part of the other");

static nvmlReturn_t processes(const char *function, enum sim_listed kind, nvmlDevice_t device,
                              unsigned *count, void *infos, size_t size)
{
    struct sim_procs procs;
    unsigned n = 0, room = count ? *count : 0;
    if (!count || (room && !infos))
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(ml_check_work_in(function, device));
    TRY(list_procs(device, &procs));
    for (unsigned i = 0; i < procs.rep.a; i++) {
        const struct sim_proc_info *info = &procs.procs[i];
        const nvmlProcessInfo_t entry = {.pid = info->pid,
                                         .usedGpuMemory = info->mem,
                                         .gpuInstanceId = 0xffffffff,
                                         .computeInstanceId = 0xffffffff};
        if (info->listed != kind)
            continue;
        if (n++ < room)
            memcpy((char *)infos + (n - 1) * size, &entry, size);
    }
    *count = n;
    return n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESSES(name, kind, type)                                                                \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos)                       \
    {                                                                                              \
        return processes(#name, kind, device, count, infos, sizeof *infos);                        \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, SIM_LISTED_COMPUTE, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, SIM_LISTED_COMPUTE, nvmlProcessInfo_v2_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, SIM_LISTED_COMPUTE, nvmlProcessInfo_t)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, SIM_LISTED_GRAPHICS, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, SIM_LISTED_GRAPHICS, nvmlProcessInfo_v2_t)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, SIM_LISTED_GRAPHICS, nvmlProcessInfo_t)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, SIM_LISTED_MPS, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, SIM_LISTED_MPS, nvmlProcessInfo_v2_t)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, SIM_LISTED_MPS, nvmlProcessInfo_t)

static nvmlReturn_t utilization(nvmlDevice_t device, struct sim_util *util)
{
    uint64_t numbers[3] = {device->info.index, 0, 0};
    TRY(ml_ask(SIM_REQ_UTIL, numbers, NULL, util, sizeof *util));
    return util->rep.a <= SIM_MAX_PROCS ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    struct sim_util util;
    TRY(ml_check_whole(device));
    if (!rates)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(utilization(device, &util));
    rates->gpu = util.gpu_percent;
    rates->memory = 0; /* traffic, not occupancy: not modelled */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen)
{
    struct sim_util util;
    TRY(ml_check_whole(device));
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(utilization(device, &util));
    unsigned n = (unsigned)util.rep.a, room = *count;
    *count = n;
    if (!n || util.stamp_us <= last_seen)
        return NVML_ERROR_NOT_FOUND;
    if (!samples || n > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = util.procs[i].pid, .timeStamp = util.stamp_us, .smUtil = util.procs[i].percent};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *info)
{
    struct sim_util util;
    TRY(ml_check_whole(device));
    if (!info || info->version != nvmlProcessesUtilizationInfo_v1)
        return info ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH : NVML_ERROR_INVALID_ARGUMENT;
    TRY(utilization(device, &util));
    unsigned n = (unsigned)util.rep.a, room = info->processSamplesCount;
    info->processSamplesCount = n;
    if (!n || util.stamp_us <= info->lastSeenTimeStamp)
        return NVML_ERROR_NOT_FOUND;
    if (!info->procUtilArray || n > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .pid = util.procs[i].pid, .timeStamp = util.stamp_us, .smUtil = util.procs[i].percent};
    return NVML_SUCCESS;
}

/* The simulated card keeps the newest sample only. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long last_seen, nvmlValueType_t *value_type,
                                  unsigned int *count, nvmlSample_t *samples)
{
    struct sim_util util;
    TRY(ml_check_whole(device));
    if (!value_type || !count)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (type != NVML_GPU_UTILIZATION_SAMPLES)
        return NVML_ERROR_NOT_SUPPORTED;
    TRY(utilization(device, &util));
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    unsigned room = *count, n = util.stamp_us > last_seen;
    *count = n;
    if (!n)
        return NVML_ERROR_NOT_FOUND;
    if (samples && !room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (samples)
        samples[0] =
            (nvmlSample_t){.timeStamp = util.stamp_us, .sampleValue.uiVal = util.gpu_percent};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info)
{
    nvmlUtilization_t rates;
    if (!info)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(nvmlDeviceGetUtilizationRates(device, &rates));
    *info = (nvmlGpuDynamicPstatesInfo_t){0};
    info->utilization[NVML_GPU_UTILIZATION_DOMAIN_GPU].bIsPresent = 1;
    info->utilization[NVML_GPU_UTILIZATION_DOMAIN_GPU].percentage = rates.gpu;
    info->utilization[NVML_GPU_UTILIZATION_DOMAIN_FB].bIsPresent = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int *size)
{
    TRY(ml_check_whole(device));
    if (!size)
        return NVML_ERROR_INVALID_ARGUMENT;
    *size = 4000;
    return NVML_SUCCESS;
}

/* As with accounting mode on; processes that ended are not remembered. */
nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count,
                                         unsigned int *pids)
{
    struct sim_procs procs;
    TRY(ml_check_whole(device));
    if (!count || (*count && !pids))
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(list_procs(device, &procs));
    unsigned n = (unsigned)procs.rep.a, room = *count;
    *count = n;
    if (n > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++)
        pids[i] = procs.procs[i].pid;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid,
                                          nvmlAccountingStats_t *stats)
{
    struct sim_procs procs;
    TRY(ml_check_whole(device));
    if (!stats)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(list_procs(device, &procs));
    for (unsigned i = 0; i < procs.rep.a; i++) {
        if (procs.procs[i].pid != pid)
            continue;
        *stats = (nvmlAccountingStats_t){.maxMemoryUsage = procs.procs[i].mem, .isRunning = 1};
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

/* ---- driver generation 615 ---- */

/* As in nvml.h of CUDA 13.4; the header that this is built with is older. */
struct set_limits {
    const char *name_space; /* the cgroup's directory */
    unsigned long long soft, hard;
};

struct get_limits {
    const char *name_space;
    unsigned long long soft, hard, used;
};

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const struct set_limits *limits);
nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, struct get_limits *limits);

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const struct set_limits *limits)
{
    struct sim_rep rep;
    TRY(ml_check_whole(device));
    if (!limits || !limits->name_space)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t numbers[3] = {device->info.index, limits->soft, limits->hard};
    return ml_ask(SIM_REQ_LIMIT_SET, numbers, limits->name_space, &rep, sizeof rep);
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, struct get_limits *limits)
{
    struct sim_rep rep;
    TRY(ml_check_whole(device));
    if (!limits || !limits->name_space)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t numbers[3] = {device->info.index, 0, 0};
    TRY(ml_ask(SIM_REQ_LIMIT_GET, numbers, limits->name_space, &rep, sizeof rep));
    limits->soft = rep.a;
    limits->hard = rep.b;
    limits->used = rep.c;
    return NVML_SUCCESS;
}
