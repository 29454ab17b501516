/* SPDX-License-Identifier: Apache-2.0
 *
 * build/sim/libnvidia-ml.so.1: the part of NVML that programs use to see cards, memory and
 * processes. Every call asks the device side, so what is reported is what the model did. The other
 * functions are stubs (ml_stubs.c).
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ml.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sock = -1;
static pid_t owner;
static unsigned references, ndevices, ncards;
/* ncards cards, then, with MIG, their instances */
static struct nvmlDevice_st devices[2 * SIM_MAX_CARDS];
static struct sim_node node;
static struct sim_page *page; /* faults on demand */

static nvmlReturn_t status_of(const struct sim_rep *rep)
{
    switch (rep->status) {
    case 0:
        return NVML_SUCCESS;
    case SIM_EPERM:
        return NVML_ERROR_NO_PERMISSION;
    case SIM_ENOSYS:
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    case 1:
        return NVML_ERROR_INVALID_ARGUMENT; /* CUDA_ERROR_INVALID_VALUE */
    default:
        return NVML_ERROR_UNKNOWN;
    }
}

/* A question with a text if text is not NULL. */
static nvmlReturn_t ask_locked(uint32_t type, const uint64_t numbers[3], const char *text,
                               void *answer, size_t size)
{
    struct sim_req req = {SIM_MAGIC,  SIM_VERSION, type,       sizeof req,
                          numbers[0], numbers[1],  numbers[2], 0};
    bool list = type == SIM_REQ_PROCS || type == SIM_REQ_UTIL;
    if (sock < 0 || owner != getpid() ||
        !(text   ? sim_exchange_text(sock, type, numbers, text, answer)
          : list ? sim_exchange_list(sock, &req, answer, size)
                 : sim_exchange(sock, &req, answer, size, NULL, 0)))
        return NVML_ERROR_GPU_IS_LOST;
    return status_of(answer);
}

static nvmlReturn_t connect_locked(void)
{
    sock = sim_connect();
    owner = getpid();
    if (sock < 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    return sim_hello(sock, &node, &page) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

/* The device side may have been restarted since: one new connection is tried. */
nvmlReturn_t ml_ask(uint32_t type, const uint64_t numbers[3], const char *text, void *answer,
                    size_t size)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t status =
        references ? ask_locked(type, numbers, text, answer, size) : NVML_ERROR_UNINITIALIZED;
    if (status == NVML_ERROR_GPU_IS_LOST) {
        if (sock >= 0)
            close(sock);
        if (connect_locked() == NVML_SUCCESS)
            status = ask_locked(type, numbers, text, answer, size);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* A card of MIG instances: seen whether or not its instances are. */
static void add_card(const struct sim_card_info *first)
{
    struct nvmlDevice_st *card = &devices[ndevices++];
    *card = (struct nvmlDevice_st){.info = *first, .parts = true};
    memcpy(card->info.uuid, "GPU-", 4);
    card->info.minor += SIM_MIG_CARD_MINOR;
    card->info.mem_total *= node.mig;
    card->info.index /= node.mig;
}

static nvmlReturn_t list_devices(void)
{
    ndevices = 0;
    for (uint32_t i = 0; node.mig && i < node.ncards && i < SIM_MAX_CARDS; i += node.mig) {
        struct sim_card_info first;
        uint64_t numbers[3] = {i, 0, 0};
        TRY(ask_locked(SIM_REQ_CARD, numbers, NULL, &first, sizeof first));
        add_card(&first);
    }
    ncards = ndevices;
    for (uint32_t i = 0; i < node.ncards && i < SIM_MAX_CARDS; i++) {
        struct nvmlDevice_st *device = &devices[ndevices];
        uint64_t numbers[3] = {i, 0, 0};
        memset(device, 0, sizeof *device);
        TRY(ask_locked(SIM_REQ_CARD, numbers, NULL, &device->info, sizeof device->info));
        if (node.mig) {
            device->card = &devices[i / node.mig];
            device->gi = i % node.mig + 1;
        }
        ndevices += sim_may_see(&device->info);
    }
    if (!node.mig)
        ncards = ndevices;
    return NVML_SUCCESS;
}

nvmlDevice_t ml_instance(nvmlDevice_t card, unsigned index)
{
    for (unsigned i = ncards; i < ndevices; i++)
        if (devices[i].card == card && devices[i].gi == index + 1)
            return &devices[i];
    return NULL;
}

nvmlReturn_t nvmlInit_v2(void)
{
    nvmlReturn_t status = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!references) {
        status = connect_locked();
        if (status == NVML_SUCCESS)
            status = (nvmlReturn_t)sim_fault(page, "nvmlInit");
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

nvmlReturn_t nvmlInit(void)
{
    return nvmlInit_v2();
}
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

bool ml_option(uint32_t option)
{
    return page && page->options & option;
}

nvmlReturn_t ml_enter_in(const char *function)
{
    return references ? (nvmlReturn_t)sim_fault(page, function) : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t ml_check_in(const char *function, nvmlDevice_t device)
{
    TRY(ml_enter_in(function));
    return device >= devices && device < devices + ndevices ? NVML_SUCCESS
                                                            : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t ml_check_work_in(const char *function, nvmlDevice_t device)
{
    TRY(ml_check_in(function, device));
    return device->parts ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t ml_check_whole_in(const char *function, nvmlDevice_t device)
{
    TRY(ml_check_work_in(function, device));
    return device->gi ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t ml_check_card_in(const char *function, nvmlDevice_t device)
{
    TRY(ml_check_in(function, device));
    return device->gi ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
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

/* ---- system ---- */

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    TRY(ml_enter());
    return text(version, length, node.driver);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    TRY(ml_enter());
    char whole[sizeof node.driver + 3];
    snprintf(whole, sizeof whole, "13.%s", node.driver);
    return text(version, length, whole);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = node.generation < 615 ? 13000 : 13040; /* 580 before nvmlInit */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

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

/* ---- devices ---- */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    TRY(ml_enter());
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = ncards;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    TRY(ml_enter());
    if (!device || index >= ncards)
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
    TRY(ml_enter());
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
    TRY(ml_enter());
    if (!id || !device || sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < ncards; i++)
        if (!domain && !slot && bus == 0x10 + devices[i].info.index) {
            *device = &devices[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    TRY(ml_check(device));
    return text(name, length, device->info.name);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    TRY(ml_check(device));
    return text(uuid, length, device->info.uuid);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    TRY(ml_check(device));
    if (!minor)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (device->gi)
        return NVML_ERROR_NOT_SUPPORTED; /* its files are capabilities */
    *minor = device->info.minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    TRY(ml_check(device));
    if (!index)
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = device->gi ? device->gi - 1 : (unsigned)(device - devices);
    return NVML_SUCCESS;
}

void ml_pci(unsigned card, nvmlPciInfo_t *pci)
{
    *pci = (nvmlPciInfo_t){
        .bus = 0x10 + card, .pciDeviceId = SIM_PCI_DEVICE, .pciSubSystemId = SIM_PCI_SUBSYSTEM};
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    TRY(ml_check(device));
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    ml_pci(device->info.index, pci);
    return NVML_SUCCESS;
}

static nvmlReturn_t fresh(nvmlDevice_t device, struct sim_card_info *info)
{
    uint64_t numbers[3] = {device->info.index, 0, 0};
    return ml_ask(SIM_REQ_CARD, numbers, NULL, info, sizeof *info);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct sim_card_info info;
    if (!memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(ml_check_work(device));
    TRY(fresh(device, &info));
    *memory = (nvmlMemory_t){
        .total = info.mem_total, .free = info.mem_total - info.mem_used, .used = info.mem_used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct sim_card_info info;
    if (!memory || memory->version != nvmlMemory_v2)
        return memory ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH : NVML_ERROR_INVALID_ARGUMENT;
    TRY(ml_check_work(device));
    TRY(fresh(device, &info));
    memory->total = info.mem_total;
    memory->reserved = 0;
    memory->used = info.mem_used;
    memory->free = info.mem_total - info.mem_used;
    return NVML_SUCCESS;
}

/* Constants, so that displays have something to show; the model knows neither heat nor power. */
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned int *celsius)
{
    TRY(ml_check(device));
    if (!celsius || sensor != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = 40;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    TRY(ml_check(device));
    if (!milliwatts)
        return NVML_ERROR_INVALID_ARGUMENT;
    *milliwatts = 100000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    TRY(ml_check(device));
    if (!milliwatts)
        return NVML_ERROR_INVALID_ARGUMENT;
    *milliwatts = 700000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    TRY(ml_check(device));
    if (!mode)
        return NVML_ERROR_INVALID_ARGUMENT;
    *mode = NVML_COMPUTEMODE_DEFAULT;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    TRY(ml_check(device));
    if (!major || !minor)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

#define unsupported(device) unsupported_in(__func__, device)
static nvmlReturn_t unsupported_in(const char *function, nvmlDevice_t device)
{
    TRY(ml_check_in(function, device));
    return NVML_ERROR_NOT_SUPPORTED;
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
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
        return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument version mismatch";
    default:
        return "Unknown Error";
    }
}
