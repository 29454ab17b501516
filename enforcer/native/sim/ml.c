/* SPDX-License-Identifier: Apache-2.0
 *
 * build/sim/libnvidia-ml.so.1: the part of NVML that programs use to see cards, memory and processes. Every call asks
 * the device side, so what is reported is what the model did. Unknown functions do not exist here, as with an old
 * driver; bindings treat that as "not supported".
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sim_client.h"

struct nvmlDevice_st {
    struct sim_card_info info;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sock = -1;
static pid_t owner;
static unsigned references, ndevices;
static struct nvmlDevice_st devices[SIM_MAX_CARDS];
static struct sim_node node;

#define TRY(expression)                        \
    do {                                       \
        nvmlReturn_t try_status = (expression); \
        if (try_status != NVML_SUCCESS)        \
            return try_status;                 \
    } while (0)

static nvmlReturn_t ask_locked(uint32_t type, uint64_t a, void *answer, size_t size)
{
    struct sim_req req = {SIM_MAGIC, SIM_VERSION, type, sizeof req, a, 0, 0, 0};
    const struct sim_rep *rep = answer;
    if (sock < 0 || owner != getpid() || !sim_exchange(sock, &req, answer, size, NULL, 0))
        return NVML_ERROR_GPU_IS_LOST;
    return rep->status ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

/* The device side may have been restarted since: one new connection is tried. */
static nvmlReturn_t ask(uint32_t type, uint64_t a, void *answer, size_t size)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t status = references ? ask_locked(type, a, answer, size) : NVML_ERROR_UNINITIALIZED;
    if (status == NVML_ERROR_GPU_IS_LOST) {
        if (sock >= 0)
            close(sock);
        sock = sim_connect();
        owner = getpid();
        status = ask_locked(type, a, answer, size);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static nvmlReturn_t list_devices(void)
{
    ndevices = 0;
    for (uint32_t i = 0; i < node.ncards && i < SIM_MAX_CARDS; i++) {
        struct sim_card_info *info = &devices[ndevices].info;
        TRY(ask_locked(SIM_REQ_CARD, i, info, sizeof *info));
        ndevices += sim_may_see(info);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    nvmlReturn_t status = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!references) {
        sock = sim_connect();
        owner = getpid();
        status = sock < 0 ? NVML_ERROR_DRIVER_NOT_LOADED : ask_locked(SIM_REQ_HELLO, 0, &node, sizeof node);
        if (status == NVML_SUCCESS)
            status = list_devices();
        if (status != NVML_SUCCESS && sock >= 0) {
            close(sock);
            sock = -1;
        }
    }
    references += status == NVML_SUCCESS;
    pthread_mutex_unlock(&lock);
    return status;
}

nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }
nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return nvmlInit_v2();
}

nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t status = NVML_ERROR_UNINITIALIZED;
    pthread_mutex_lock(&lock);
    if (references) {
        status = NVML_SUCCESS;
        if (--references == 0 && sock >= 0) {
            close(sock);
            sock = -1;
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static nvmlReturn_t check(nvmlDevice_t device)
{
    if (!references)
        return NVML_ERROR_UNINITIALIZED;
    return device >= devices && device < devices + ndevices ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t text(char *out, unsigned length, const char *value)
{
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(value) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, value);
    return NVML_SUCCESS;
}

/* ---- system --------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return references ? text(version, length, "580.00.qgpusim") : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    return references ? text(version, length, "13.580.00.qgpusim") : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = 13000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    char path[48], line[256] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    size_t len = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[len ? len - 1 : 0] = 0;
    return text(name, length, line);
}

/* ---- devices -------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (!references)
        return NVML_ERROR_UNINITIALIZED;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = ndevices;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (!references)
        return NVML_ERROR_UNINITIALIZED;
    if (!device || index >= ndevices)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = &devices[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    if (!references)
        return NVML_ERROR_UNINITIALIZED;
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < ndevices; i++)
        if (strcmp(devices[i].info.uuid, uuid) == 0) {
            *device = &devices[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    unsigned domain, bus, slot;
    if (!references)
        return NVML_ERROR_UNINITIALIZED;
    if (!id || !device || sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < ndevices; i++)
        if (!domain && !slot && bus == 0x10 + devices[i].info.index) {
            *device = &devices[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    TRY(check(device));
    return text(name, length, device->info.name);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    TRY(check(device));
    return text(uuid, length, device->info.uuid);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    TRY(check(device));
    if (!minor)
        return NVML_ERROR_INVALID_ARGUMENT;
    *minor = device->info.minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    TRY(check(device));
    if (!index)
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = (unsigned)(device - devices);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    TRY(check(device));
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    *pci = (nvmlPciInfo_t){.bus = 0x10 + device->info.index, .pciDeviceId = 0x233510de};
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
    return NVML_SUCCESS;
}

static nvmlReturn_t fresh(nvmlDevice_t device, struct sim_card_info *info)
{
    TRY(check(device));
    return ask(SIM_REQ_CARD, device->info.index, info, sizeof *info);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct sim_card_info info;
    if (!memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(fresh(device, &info));
    *memory = (nvmlMemory_t){.total = info.mem_total, .free = info.mem_total - info.mem_used, .used = info.mem_used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct sim_card_info info;
    if (!memory || memory->version != nvmlMemory_v2)
        return memory ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH : NVML_ERROR_INVALID_ARGUMENT;
    TRY(fresh(device, &info));
    memory->total = info.mem_total;
    memory->reserved = 0;
    memory->used = info.mem_used;
    memory->free = info.mem_total - info.mem_used;
    return NVML_SUCCESS;
}

static nvmlReturn_t list_procs(nvmlDevice_t device, struct sim_procs *procs)
{
    TRY(check(device));
    TRY(ask(SIM_REQ_PROCS, device->info.index, procs, sizeof *procs));
    if (procs->rep.a > SIM_MAX_PROCS)
        procs->rep.a = SIM_MAX_PROCS;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    struct sim_procs procs;
    if (!count || (*count && !infos))
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(list_procs(device, &procs));
    unsigned n = (unsigned)procs.rep.a, room = *count;
    *count = n;
    if (n > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++)
        infos[i] = (nvmlProcessInfo_t){.pid = procs.procs[i].pid, .usedGpuMemory = procs.procs[i].mem,
                                       .gpuInstanceId = 0xffffffff, .computeInstanceId = 0xffffffff};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
    _Static_assert(sizeof(nvmlProcessInfo_v2_t) == sizeof(nvmlProcessInfo_t), "one layout");
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, (nvmlProcessInfo_t *)infos);
}

static nvmlReturn_t no_procs(nvmlDevice_t device, unsigned *count)
{
    TRY(check(device));
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    (void)infos;
    return no_procs(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    (void)infos;
    return no_procs(device, count);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    struct sim_util util;
    TRY(check(device));
    if (!rates)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(ask(SIM_REQ_UTIL, device->info.index, &util, sizeof util));
    rates->gpu = util.gpu_percent;
    rates->memory = 0; /* traffic, not occupancy: not modelled */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen)
{
    struct sim_util util;
    TRY(check(device));
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(ask(SIM_REQ_UTIL, device->info.index, &util, sizeof util));
    unsigned n = util.rep.a > SIM_MAX_PROCS ? SIM_MAX_PROCS : (unsigned)util.rep.a, room = *count;
    *count = n;
    if (!n || util.stamp_us <= last_seen)
        return NVML_ERROR_NOT_FOUND;
    if (!samples || n > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){.pid = util.procs[i].pid, .timeStamp = util.stamp_us,
                                                      .smUtil = util.procs[i].percent};
    return NVML_SUCCESS;
}

/* Constants, so that displays have something to show; the model knows neither heat nor power. */
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
{
    TRY(check(device));
    if (!celsius || sensor != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = 40;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    TRY(check(device));
    if (!milliwatts)
        return NVML_ERROR_INVALID_ARGUMENT;
    *milliwatts = 100000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    TRY(check(device));
    if (!milliwatts)
        return NVML_ERROR_INVALID_ARGUMENT;
    *milliwatts = 700000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    TRY(check(device));
    if (!mode)
        return NVML_ERROR_INVALID_ARGUMENT;
    *mode = NVML_COMPUTEMODE_DEFAULT;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    TRY(check(device));
    if (!major || !minor)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t unsupported(nvmlDevice_t device)
{
    TRY(check(device));
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    (void)current, (void)pending;
    return unsupported(device);
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    (void)mode;
    return unsupported(device);
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    (void)set;
    return references ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_UNINITIALIZED;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}
