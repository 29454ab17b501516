/* SPDX-License-Identifier: Apache-2.0
 *
 * Primary contexts: one of each device, made by its first user and ended with its last one. The
 * handle is the same for the process's whole life, whether the context is active or not: NVIDIA's
 * runtime asks for it, and makes it current, before it retains the context.
 */
#include "cu_context.h"

/* References, begin and end of all primary contexts. Not cu.lock: what a library keeps in a context
 * ends with it, by a function of that library. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static CUcontext handle_of(struct cu_device *device)
{
    pthread_mutex_lock(&cu.lock);
    CUcontext handle = device->primary_handle;
    if (!handle && (handle = cu_handle_new(CU_CTX)) != NULL) {
        cu_handle_close(handle);
        __atomic_store_n(&device->primary_handle, handle, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&cu.lock);
    return handle;
}

CUresult cu_primary_handle(CUdevice dev, CUcontext *out)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    *out = handle_of(device);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

struct cu_device *cu_primary_of(CUcontext ctx)
{
    for (int i = 0; ctx && i < cu.ndevices; i++)
        if (__atomic_load_n(&cu.devices[i].primary_handle, __ATOMIC_ACQUIRE) == ctx)
            return &cu.devices[i];
    return NULL;
}

/* The lock is held. */
static CUresult start(struct cu_device *device)
{
    CUcontext ctx = handle_of(device);
    if (!ctx)
        return CUDA_ERROR_OUT_OF_MEMORY;
    cu_handle_open(CU_CTX, ctx);
    ctx->is_primary = true;
    CUresult status = cu_context_start(ctx, device->primary_flags, device);
    if (status == CUDA_SUCCESS)
        device->primary = ctx;
    else
        cu_handle_close(ctx);
    return status;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev)
{
    struct cu_device *device;
    CUresult status = CUDA_SUCCESS;
    CU_TRY(cu_device_of(dev, &device));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (!device->primary)
        status = start(device);
    if (status == CUDA_SUCCESS) {
        device->primary_refs++;
        *out = device->primary;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static CUresult drop_primary(CUdevice dev, bool reset)
{
    struct cu_device *device;
    CUresult status = CUDA_SUCCESS;
    CU_TRY(cu_device_of(dev, &device));
    pthread_mutex_lock(&lock);
    if (!reset && !device->primary_refs)
        status = CUDA_ERROR_INVALID_CONTEXT;
    else if (device->primary && (reset || --device->primary_refs == 0)) {
        status = cu_context_end(device->primary);
        cu_handle_close(device->primary);
        device->primary = NULL;
        device->primary_refs = 0;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    return drop_primary(dev, false);
}
CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return drop_primary(dev, false);
}
CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    return drop_primary(dev, true);
}
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev)
{
    return drop_primary(dev, true);
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = device->primary ? device->primary->flags : device->primary_flags;
    *active = device->primary != NULL;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    struct cu_device *device;
    CU_TRY(cu_device_of(dev, &device));
    device->primary_flags = flags;
    if (device->primary)
        device->primary->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}
