/* SPDX-License-Identifier: Apache-2.0
 *
 * MIG in the simulator's NVML: with --mig N the device side's "cards", which are isolated from each
 * other in any case, are shown as the instances of cards, N each. Every GPU instance has one
 * compute instance.
 */
#include "ml.h"

/* Without --mig cards cannot be cut, as most. */
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    TRY(ml_check(device));
    if (!device->parts)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!current || !pending)
        return NVML_ERROR_INVALID_ARGUMENT;
    *current = *pending = NVML_DEVICE_MIG_ENABLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    TRY(ml_check(device));
    if (!count || device->gi)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = device->parts ? SIM_MIG_MOST : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *instance)
{
    TRY(ml_check(device));
    if (!instance || !device->parts || index >= SIM_MIG_MOST)
        return NVML_ERROR_INVALID_ARGUMENT;
    *instance = ml_instance(device, index);
    return *instance ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance,
                                                          nvmlDevice_t *device)
{
    TRY(ml_check(instance));
    if (!device || !instance->gi)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = instance->card;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is)
{
    TRY(ml_check(device));
    if (!is)
        return NVML_ERROR_INVALID_ARGUMENT;
    *is = device->gi != 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    TRY(ml_check(device));
    if (!id || !device->gi)
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = device->gi;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    TRY(ml_check(device));
    if (!id || !device->gi)
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = 0;
    return NVML_SUCCESS;
}
