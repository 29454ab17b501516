/* SPDX-License-Identifier: Apache-2.0
 *
 * What displays and frameworks ask about a card besides memory and processes. Constants of an H200:
 * the model knows neither heat nor power, and its card always runs at its highest clocks.
 */
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "ml.h"

#define WATTS       100u
#define LEAST_WATTS 200u /* of the power limit */
#define MOST_WATTS  700u

/* A number of a card; an instance has none of its own. */
#define NUMBER(name, type, number)                                                                 \
    nvmlReturn_t name(nvmlDevice_t device, type *out)                                              \
    {                                                                                              \
        TRY(ml_check_card_in(#name, device));                                                      \
        if (!out)                                                                                  \
            return NVML_ERROR_INVALID_ARGUMENT;                                                    \
        *out = number;                                                                             \
        return NVML_SUCCESS;                                                                       \
    }

NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, MOST_WATTS * 1000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, MOST_WATTS * 1000)
NUMBER(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t, NVML_PSTATE_0)
NUMBER(nvmlDeviceGetPowerState, nvmlPstates_t, NVML_PSTATE_0)
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, 6144)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned int, 132 * 128)
NUMBER(nvmlDeviceGetBrand, nvmlBrandType_t, NVML_BRAND_NVIDIA)
NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, NVML_DEVICE_ARCH_HOPPER)
NUMBER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)
NUMBER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, NVML_FEATURE_DISABLED)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, 16)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, nvmlClocksEventReasonNone)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, nvmlClocksEventReasonNone)
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, nvmlClocksEventReasonAll)
NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
NUMBER(nvmlDeviceGetBoardId, unsigned int, (0x10 + device->info.index) << 8)

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least,
                                                          unsigned int *most)
{
    TRY(ml_check_card(device));
    if (!least || !most)
        return NVML_ERROR_INVALID_ARGUMENT;
    *least = LEAST_WATTS * 1000;
    *most = MOST_WATTS * 1000;
    return NVML_SUCCESS;
}

/* In mJ, as if the driver had been loaded when the machine was started. */
static unsigned long long energy(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return WATTS *
           ((unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_nsec / 1000000);
}
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy())

static nvmlReturn_t clock_in(const char *function, nvmlDevice_t device, nvmlClockType_t type,
                             unsigned int *mhz)
{
    static const unsigned int clocks[] = {[NVML_CLOCK_GRAPHICS] = 1980,
                                          [NVML_CLOCK_SM] = 1980,
                                          [NVML_CLOCK_MEM] = 3201,
                                          [NVML_CLOCK_VIDEO] = 1545};
    TRY(ml_check_card_in(function, device));
    if (!mhz || (unsigned)type >= sizeof clocks / sizeof clocks[0])
        return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = clocks[type];
    return NVML_SUCCESS;
}

#define CLOCK(name)                                                                                \
    nvmlReturn_t name(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)                \
    {                                                                                              \
        return clock_in(#name, device, type, mhz);                                                 \
    }

CLOCK(nvmlDeviceGetClockInfo)
CLOCK(nvmlDeviceGetMaxClockInfo)
CLOCK(nvmlDeviceGetApplicationsClock)
CLOCK(nvmlDeviceGetMaxCustomerBoostClock)

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id,
                                unsigned int *mhz)
{
    if ((unsigned)id >= NVML_CLOCK_ID_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    return clock_in(__func__, device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    unsigned int celsius;
    if (!temperature)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (temperature->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(nvmlDeviceGetTemperature(device, temperature->sensorType, &celsius));
    temperature->temperature = (int)celsius;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device,
                                               nvmlTemperatureThresholds_t which,
                                               unsigned int *celsius)
{
    TRY(ml_check_card(device));
    if (!celsius || (unsigned)which >= NVML_TEMPERATURE_THRESHOLD_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    switch (which) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
        *celsius = 92;
        return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
        *celsius = 89;
        return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX:
        *celsius = 87;
        return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_MEM_MAX:
        *celsius = 95;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    TRY(ml_check_card(device));
    if (!memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    *memory = (nvmlBAR1Memory_t){.bar1Total = 256ull << 30, .bar1Free = 256ull << 30};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current,
                                  nvmlEnableState_t *pending)
{
    TRY(ml_check_card(device));
    if (!current || !pending)
        return NVML_ERROR_INVALID_ARGUMENT;
    *current = *pending = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t counter, unsigned long long *errors)
{
    TRY(ml_check_card(device));
    if (!errors || (unsigned)type >= NVML_MEMORY_ERROR_TYPE_COUNT ||
        (unsigned)counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *errors = 0;
    return NVML_SUCCESS;
}

/* No work of the model is video. */
static nvmlReturn_t idle(const char *function, nvmlDevice_t device, unsigned int *percent,
                         unsigned int *period_us)
{
    TRY(ml_check_card_in(function, device));
    if (!percent || !period_us)
        return NVML_ERROR_INVALID_ARGUMENT;
    *percent = 0;
    *period_us = 100000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent,
                                             unsigned int *period_us)
{
    return idle(__func__, device, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent,
                                             unsigned int *period_us)
{
    return idle(__func__, device, percent, period_us);
}

static void field(nvmlFieldValue_t *value)
{
    value->nvmlReturn = NVML_SUCCESS;
    switch (value->fieldId) {
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
        value->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        value->value.ullVal = energy();
        break;
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
        value->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        value->value.uiVal = WATTS * 1000;
        break;
    default:
        value->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    struct timespec now;
    TRY(ml_check_card(device));
    if (count <= 0 || !values)
        return NVML_ERROR_INVALID_ARGUMENT;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        values[i].latencyUsec = 0;
        field(&values[i]);
    }
    return NVML_SUCCESS;
}

/* ---- old forms ---- */

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

/* Without the long bus id, which came later. */
static nvmlReturn_t old_pci(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t whole;
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(nvmlDeviceGetPciInfo_v3(device, &whole));
    memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return old_pci(device, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return old_pci(device, pci);
}
