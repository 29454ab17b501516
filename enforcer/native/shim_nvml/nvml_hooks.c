/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML's answers about memory, processes and utilisation: those of the job. The real library is
 * asked for lists with room to spare, and entries of other jobs are left out. For a device that is
 * not the job's, its own answer is passed on.
 */
#include <stdlib.h>
#include <string.h>

#include "nvml_shim.h"

const char *nvmlErrorString(nvmlReturn_t result)
{
    if (qg_nvml_has(QG_SYM_nvmlErrorString))
        return QG_REAL(nvmlErrorString)(result);
    return result == NVML_ERROR_LIBRARY_NOT_FOUND ? "The NVIDIA library was not found"
                                                  : "Unknown Error";
}

/* ---- memory ---- */

static unsigned long long least(unsigned long long a, unsigned long long b)
{
    return a < b ? a : b;
}

/* As cuMemGetInfo: the cap, and what the job has left of it, unless the card itself has less. */
static void limit(const struct qgpu_view *view, unsigned long long *total, unsigned long long *left)
{
    *total = least(*total, view->cap);
    *left = least(*left, view->cap > view->used ? view->cap - view->used : 0);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct qgpu_view view;
    nvmlReturn_t result = QG_REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result == NVML_SUCCESS && qg_nvml_view(device, &view)) {
        limit(&view, &memory->total, &memory->free);
        memory->used = memory->total - memory->free;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct qgpu_view view;
    nvmlReturn_t result = QG_REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result == NVML_SUCCESS && qg_nvml_view(device, &view)) {
        limit(&view, &memory->total, &memory->free);
        memory->reserved = 0; /* of the card, not of the job */
        memory->used = memory->total - memory->free;
    }
    return result;
}

/* ---- processes ---- */

unsigned int qg_nvml_keep(const struct qgpu_view *view, void *list, unsigned int count, size_t size,
                          size_t offset)
{
    unsigned int kept = 0, pid;
    for (unsigned int i = 0; i < count; i++) {
        char *entry = (char *)list + size * i;
        memcpy(&pid, entry + offset, sizeof(pid));
        if (qg_nvml_ours(view, pid))
            memmove((char *)list + size * kept++, entry, size);
    }
    return kept;
}

nvmlReturn_t qg_nvml_hand_out(const void *list, unsigned int n, size_t size, unsigned int *count,
                              void *out)
{
    unsigned int room = *count;
    *count = n;
    if (n > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (n)
        memcpy(out, list, size * n);
    return NVML_SUCCESS;
}

#define PROCESSES(name, type)                                                                      \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos)                       \
    {                                                                                              \
        struct qgpu_view view;                                                                     \
        unsigned int n = QG_NVML_ROOM;                                                             \
        if (!count || (*count && !infos) || !qg_nvml_view(device, &view))                          \
            return QG_REAL(name)(device, count, infos);                                            \
        type *all = calloc(QG_NVML_ROOM, sizeof(*all));                                            \
        if (!all)                                                                                  \
            return NVML_ERROR_MEMORY;                                                              \
        nvmlReturn_t result = QG_REAL(name)(device, &n, all);                                      \
        if (result == NVML_SUCCESS) {                                                              \
            n = qg_nvml_keep(&view, all, n, sizeof(*all), offsetof(type, pid));                    \
            result = qg_nvml_hand_out(all, n, sizeof(*all), count, infos);                         \
        }                                                                                          \
        free(all);                                                                                 \
        return result;                                                                             \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_t *list)
{
    struct qgpu_view view;
    nvmlReturn_t result = QG_REAL(nvmlDeviceGetRunningProcessDetailList)(device, list);
    if (result == NVML_SUCCESS && list->procArray && qg_nvml_view(device, &view))
        list->numProcArrayEntries =
            qg_nvml_keep(&view, list->procArray, list->numProcArrayEntries,
                         sizeof(*list->procArray), offsetof(nvmlProcessDetail_v1_t, pid));
    return result;
}

/* ---- utilisation ---- */

/* us for which samples of utilisation are read: NVML's own averages span about 1 s. */
#define RECENT_US 1000000u

nvmlReturn_t qg_nvml_samples(const struct qgpu_view *view, nvmlDevice_t device,
                             unsigned long long since, nvmlProcessUtilizationSample_t *all,
                             unsigned int *n)
{
    *n = QG_NVML_ROOM;
    nvmlReturn_t result = QG_REAL(nvmlDeviceGetProcessUtilization)(device, all, n, since);
    if (result == NVML_SUCCESS)
        *n = qg_nvml_keep(view, all, *n, sizeof(*all),
                          offsetof(nvmlProcessUtilizationSample_t, pid));
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since)
{
    struct qgpu_view view;
    unsigned int n;
    if (!count || !qg_nvml_view(device, &view))
        return QG_REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, since);
    nvmlProcessUtilizationSample_t *all = calloc(QG_NVML_ROOM, sizeof(*all));
    if (!all)
        return NVML_ERROR_MEMORY;
    nvmlReturn_t result = qg_nvml_samples(&view, device, since, all, &n);
    if (result == NVML_SUCCESS && !n) {
        *count = 0;
        result = NVML_ERROR_NOT_FOUND;
    } else if (result == NVML_SUCCESS && !samples) {
        *count = n;
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    } else if (result == NVML_SUCCESS) {
        result = qg_nvml_hand_out(all, n, sizeof(*all), count, samples);
    }
    free(all);
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *info)
{
    struct qgpu_view view;
    nvmlReturn_t result = QG_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
    if (result == NVML_SUCCESS && info->procUtilArray && qg_nvml_view(device, &view)) {
        info->processSamplesCount = qg_nvml_keep(
            &view, info->procUtilArray, info->processSamplesCount, sizeof(*info->procUtilArray),
            offsetof(nvmlProcessUtilizationInfo_v1_t, pid));
        if (!info->processSamplesCount)
            result = NVML_ERROR_NOT_FOUND;
    }
    return result;
}

/* Keeps the samples of all processes from the last second before the newest one, by the driver's
 * clock. NVML keeps older ones, which would show work from before the job fell idle. Samples above
 * 100 % are dropped as invalid. */
static unsigned int recent(nvmlProcessUtilizationSample_t *all, unsigned int n)
{
    unsigned long long newest = 0;
    unsigned int kept = 0;
    for (unsigned int i = 0; i < n; i++)
        if (all[i].smUtil <= 100 && all[i].timeStamp > newest)
            newest = all[i].timeStamp;
    for (unsigned int i = 0; i < n; i++)
        if (all[i].smUtil <= 100 && newest - all[i].timeStamp <= RECENT_US)
            all[kept++] = all[i];
    return kept;
}

/* The sum of the newest sample of each process. At most what the whole card does, since all samples
 * may be old. */
static void add_up(const nvmlProcessUtilizationSample_t *all, unsigned int n,
                   nvmlUtilization_t *rates)
{
    nvmlUtilization_t card = *rates;
    rates->gpu = rates->memory = 0;
    for (unsigned int i = 0; i < n; i++) {
        bool newest = true;
        for (unsigned int k = 0; k < n && newest; k++)
            newest = all[k].pid != all[i].pid || all[k].timeStamp < all[i].timeStamp ||
                     (all[k].timeStamp == all[i].timeStamp && k <= i);
        rates->gpu += newest ? all[i].smUtil : 0;
        rates->memory += newest ? all[i].memUtil : 0;
    }
    rates->gpu = rates->gpu < card.gpu ? rates->gpu : card.gpu;
    rates->memory = rates->memory < card.memory ? rates->memory : card.memory;
}

/* If the real library does not report processes separately (MIG), its own answer is passed on. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    struct qgpu_view view;
    unsigned int n = QG_NVML_ROOM;
    nvmlReturn_t result = QG_REAL(nvmlDeviceGetUtilizationRates)(device, rates);
    if (result != NVML_SUCCESS || !qg_nvml_view(device, &view))
        return result;
    nvmlProcessUtilizationSample_t *all = calloc(QG_NVML_ROOM, sizeof(*all));
    nvmlReturn_t told =
        all ? QG_REAL(nvmlDeviceGetProcessUtilization)(device, all, &n, 0) : NVML_ERROR_MEMORY;
    if (told == NVML_SUCCESS || told == NVML_ERROR_NOT_FOUND) {
        /* of all processes: the job's may all be old */
        n = told == NVML_SUCCESS ? recent(all, n) : 0;
        n = qg_nvml_keep(&view, all, n, sizeof(*all),
                         offsetof(nvmlProcessUtilizationSample_t, pid));
        add_up(all, n, rates);
    }
    free(all);
    return result;
}
