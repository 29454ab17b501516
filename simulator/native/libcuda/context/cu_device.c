/* SPDX-License-Identifier: Apache-2.0
 *
 * Queries about devices.
 */
#include "cu_context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult cu_device_of(CUdevice dev, struct cu_device **device)
{
    CU_TRY(cu_ready());
    if (dev < 0 || dev >= cu.ndevices)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = &cu.devices[dev];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
    struct cu_device *found;
    CU_TRY(cu_device_of(ordinal, &found));
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int *count)
{
    CU_TRY(cu_ready());
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = cu.ndevices;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char *name, int len, CUdevice dev)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    if (!name || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)len, "%s", device->info.name);
    return CUDA_SUCCESS;
}

static int hex(char c)
{
    return c >= 'a' ? c - 'a' + 10 : c - '0';
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    const char *text = device->info.uuid + 4; /* after GPU- */
    for (int i = 0; i < 16; i++) {
        text += *text == '-';
        uuid->bytes[i] = (char)(hex(text[0]) << 4 | hex(text[1]));
        text += 2;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    return cuDeviceGetUuid_v2(uuid, dev);
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = device->info.mem_total;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
    size_t total = 0;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cuDeviceTotalMem_v2(&total, dev));
    *bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned)total;
    return CUDA_SUCCESS;
}

static int bus_of(const struct cu_device *device)
{
    return CU_FIRST_BUS + (int)device->info.index;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    if (!id || len < 13)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(id, (size_t)len, "0000:%02X:00.0", bus_of(device));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice *dev, const char *id)
{
    unsigned domain = 0, bus = 0, slot = 0;
    CU_TRY(cu_ready());
    if (!dev || !id)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3 && sscanf(id, "%x:%x", &bus, &slot) != 2)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < cu.ndevices; i++)
        if (domain == 0 && slot == 0 && (int)bus == bus_of(&cu.devices[i])) {
            *dev = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}
