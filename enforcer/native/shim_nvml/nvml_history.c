/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML's answers about past utilisation: those of the job, as nvml_hooks.c gives them for the
 * present. They are made of the samples of its processes, since the card's own samples do not say
 * which process used it.
 */
#include <stdlib.h>
#include <string.h>

#include "nvml_shim.h"

/* Processes that NVML's accounting keeps for one card: at most 4000. */
#define ACCOUNTED 4096u

static unsigned int percent(const nvmlProcessUtilizationSample_t *sample, nvmlSamplingType_t type)
{
    switch (type) {
    case NVML_GPU_UTILIZATION_SAMPLES:
        return sample->smUtil;
    case NVML_MEMORY_UTILIZATION_SAMPLES:
        return sample->memUtil;
    case NVML_ENC_UTILIZATION_SAMPLES:
        return sample->encUtil;
    default:
        return sample->decUtil;
    }
}

static int by_time(const void *a, const void *b)
{
    unsigned long long left = ((const nvmlProcessUtilizationSample_t *)a)->timeStamp;
    unsigned long long right = ((const nvmlProcessUtilizationSample_t *)b)->timeStamp;
    return (left > right) - (left < right);
}

/* One sample per moment, in order: what all processes of the job used then. Returns their number.
 */
static unsigned int moments(nvmlProcessUtilizationSample_t *all, unsigned int n,
                            nvmlSamplingType_t type, nvmlSample_t *out)
{
    unsigned int found = 0;
    qsort(all, n, sizeof(*all), by_time);
    for (unsigned int i = 0; i < n; i++) {
        if (!found || out[found - 1].timeStamp != all[i].timeStamp)
            out[found++] = (nvmlSample_t){.timeStamp = all[i].timeStamp};
        unsigned int sum = out[found - 1].sampleValue.uiVal + percent(&all[i], type);
        out[found - 1].sampleValue.uiVal = sum < 100 ? sum : 100;
    }
    return found;
}

static nvmlReturn_t samples_of_job(const struct qgpu_view *view, nvmlDevice_t device,
                                   nvmlSamplingType_t type, unsigned long long since,
                                   nvmlSample_t *out, unsigned int *n)
{
    nvmlProcessUtilizationSample_t *all = calloc(QG_NVML_ROOM, sizeof(*all));
    nvmlReturn_t result = all ? qg_nvml_samples(view, device, since, all, n) : NVML_ERROR_MEMORY;
    *n = result == NVML_SUCCESS ? moments(all, *n, type, out) : 0;
    free(all);
    return result == NVML_SUCCESS && !*n ? NVML_ERROR_NOT_FOUND : result;
}

/* Clocks and power belong to the card. If the real library does not report processes separately
 * (MIG), its own answer is passed on. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long since, nvmlValueType_t *value_type,
                                  unsigned int *count, nvmlSample_t *samples)
{
    struct qgpu_view view;
    unsigned int n = 0;
    bool use = type >= NVML_GPU_UTILIZATION_SAMPLES && type <= NVML_DEC_UTILIZATION_SAMPLES;
    if (!use || !value_type || !count || !qg_nvml_view(device, &view))
        return QG_REAL(nvmlDeviceGetSamples)(device, type, since, value_type, count, samples);
    nvmlSample_t *found = calloc(QG_NVML_ROOM, sizeof(*found));
    if (!found)
        return NVML_ERROR_MEMORY;
    nvmlReturn_t result = samples_of_job(&view, device, type, since, found, &n);
    if (result != NVML_SUCCESS && result != NVML_ERROR_NOT_FOUND) {
        free(found);
        return QG_REAL(nvmlDeviceGetSamples)(device, type, since, value_type, count, samples);
    }
    if (samples && *count < n)
        n = *count; /* as the real one: as many as there is room for */
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    *count = n;
    if (samples && n)
        memcpy(samples, found, n * sizeof(*found));
    free(found);
    return result;
}

nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info)
{
    struct qgpu_view view;
    nvmlUtilization_t rates;
    nvmlReturn_t result = QG_REAL(nvmlDeviceGetDynamicPstatesInfo)(device, info);
    if (result != NVML_SUCCESS || !qg_nvml_view(device, &view) ||
        nvmlDeviceGetUtilizationRates(device, &rates) != NVML_SUCCESS)
        return result;
    info->utilization[NVML_GPU_UTILIZATION_DOMAIN_GPU].percentage = rates.gpu;
    info->utilization[NVML_GPU_UTILIZATION_DOMAIN_FB].percentage = rates.memory;
    return result;
}

/* ---- accounting mode: an ended process is not known as one of the job, so it is left out ---- */

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count,
                                         unsigned int *pids)
{
    struct qgpu_view view;
    unsigned int n = ACCOUNTED;
    if (!count || (*count && !pids) || !qg_nvml_view(device, &view))
        return QG_REAL(nvmlDeviceGetAccountingPids)(device, count, pids);
    unsigned int *all = calloc(ACCOUNTED, sizeof(*all));
    if (!all)
        return NVML_ERROR_MEMORY;
    nvmlReturn_t result = QG_REAL(nvmlDeviceGetAccountingPids)(device, &n, all);
    if (result == NVML_SUCCESS) {
        n = qg_nvml_keep(&view, all, n, sizeof(*all), 0);
        result = qg_nvml_hand_out(all, n, sizeof(*all), count, pids);
    }
    free(all);
    return result;
}

static bool hidden(nvmlDevice_t device, unsigned int pid)
{
    struct qgpu_view view;
    return qg_nvml_view(device, &view) && !qg_nvml_ours(&view, pid);
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid,
                                          nvmlAccountingStats_t *stats)
{
    return hidden(device, pid) ? NVML_ERROR_NOT_FOUND
                               : QG_REAL(nvmlDeviceGetAccountingStats)(device, pid, stats);
}

/* Newer than the header that this is built with; its structure begins with the pid that is asked
 * for. */
__attribute__((visibility("default"))) nvmlReturn_t
nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, unsigned int *stats);

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, unsigned int *stats)
{
    return stats && hidden(device, *stats)
               ? NVML_ERROR_NOT_FOUND
               : QG_REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
}
