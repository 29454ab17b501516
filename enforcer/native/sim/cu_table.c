/* SPDX-License-Identifier: Apache-2.0
 *
 * cuGetProcAddress: the key is (name, version, flags). A row is base name, exported symbol, the CUDA version that
 * introduced it, and whether it is the per-thread default stream variant. Of the rows that are old enough the newest
 * wins; with the flag for per-thread default streams a variant wins over the plain function.
 */
#include "cu.h"

#include <string.h>

struct row {
    const char *name;
    void *function;
    int version;
    bool per_thread;
};

static const struct row rows[] = {
    {"cuCtxCreate", cuCtxCreate, 2000, false},
    {"cuCtxCreate", cuCtxCreate_v2, 3020, false},
    {"cuCtxCreate", cuCtxCreate_v3, 11040, false},
    {"cuCtxCreate", cuCtxCreate_v4, 12050, false},
    {"cuCtxDestroy", cuCtxDestroy, 2000, false},
    {"cuCtxDestroy", cuCtxDestroy_v2, 4000, false},
    {"cuCtxGetApiVersion", cuCtxGetApiVersion, 3020, false},
    {"cuCtxGetCurrent", cuCtxGetCurrent, 4000, false},
    {"cuCtxGetDevice", cuCtxGetDevice, 2000, false},
    {"cuCtxGetDevice", cuCtxGetDevice_v2, 13000, false},
    {"cuCtxGetFlags", cuCtxGetFlags, 7000, false},
    {"cuCtxGetId", cuCtxGetId, 12000, false},
    {"cuCtxGetLimit", cuCtxGetLimit, 3010, false},
    {"cuCtxGetStreamPriorityRange", cuCtxGetStreamPriorityRange, 5050, false},
    {"cuCtxPopCurrent", cuCtxPopCurrent, 2000, false},
    {"cuCtxPopCurrent", cuCtxPopCurrent_v2, 4000, false},
    {"cuCtxPushCurrent", cuCtxPushCurrent, 2000, false},
    {"cuCtxPushCurrent", cuCtxPushCurrent_v2, 4000, false},
    {"cuCtxSetCacheConfig", cuCtxSetCacheConfig, 3020, false},
    {"cuCtxSetCurrent", cuCtxSetCurrent, 4000, false},
    {"cuCtxSetFlags", cuCtxSetFlags, 12010, false},
    {"cuCtxSetLimit", cuCtxSetLimit, 3010, false},
    {"cuCtxSynchronize", cuCtxSynchronize, 2000, false},
    {"cuCtxSynchronize", cuCtxSynchronize_v2, 13000, false},
    {"cuDeviceCanAccessPeer", cuDeviceCanAccessPeer, 4000, false},
    {"cuDeviceComputeCapability", cuDeviceComputeCapability, 2000, false},
    {"cuDeviceGet", cuDeviceGet, 2000, false},
    {"cuDeviceGetAttribute", cuDeviceGetAttribute, 2000, false},
    {"cuDeviceGetByPCIBusId", cuDeviceGetByPCIBusId, 4010, false},
    {"cuDeviceGetCount", cuDeviceGetCount, 2000, false},
    {"cuDeviceGetDefaultMemPool", cuDeviceGetDefaultMemPool, 11020, false},
    {"cuDeviceGetMemPool", cuDeviceGetMemPool, 11020, false},
    {"cuDeviceGetName", cuDeviceGetName, 2000, false},
    {"cuDeviceGetPCIBusId", cuDeviceGetPCIBusId, 4010, false},
    {"cuDeviceGetUuid", cuDeviceGetUuid, 9020, false},
    {"cuDeviceGetUuid", cuDeviceGetUuid_v2, 11040, false},
    {"cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState, 7000, false},
    {"cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease, 7000, false},
    {"cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease_v2, 11000, false},
    {"cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset, 7000, false},
    {"cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset_v2, 11000, false},
    {"cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain, 7000, false},
    {"cuDevicePrimaryCtxSetFlags", cuDevicePrimaryCtxSetFlags, 7000, false},
    {"cuDevicePrimaryCtxSetFlags", cuDevicePrimaryCtxSetFlags_v2, 11000, false},
    {"cuDeviceTotalMem", cuDeviceTotalMem, 2000, false},
    {"cuDeviceTotalMem", cuDeviceTotalMem_v2, 3020, false},
    {"cuDriverGetVersion", cuDriverGetVersion, 2020, false},
    {"cuEventCreate", cuEventCreate, 2000, false},
    {"cuEventDestroy", cuEventDestroy, 2000, false},
    {"cuEventDestroy", cuEventDestroy_v2, 4000, false},
    {"cuEventElapsedTime", cuEventElapsedTime, 2000, false},
    {"cuEventElapsedTime", cuEventElapsedTime_v2, 12080, false},
    {"cuEventQuery", cuEventQuery, 2000, false},
    {"cuEventRecord", cuEventRecord, 2000, false},
    {"cuEventRecordWithFlags", cuEventRecordWithFlags, 11010, false},
    {"cuEventRecordWithFlags", cuEventRecordWithFlags_ptsz, 11010, true},
    {"cuEventRecord", cuEventRecord_ptsz, 7000, true},
    {"cuEventSynchronize", cuEventSynchronize, 2000, false},
    {"cuFuncGetAttribute", cuFuncGetAttribute, 2020, false},
    {"cuFuncGetModule", cuFuncGetModule, 11000, false},
    {"cuFuncGetName", cuFuncGetName, 12030, false},
    {"cuFuncSetAttribute", cuFuncSetAttribute, 9000, false},
    {"cuFuncSetCacheConfig", cuFuncSetCacheConfig, 3000, false},
    {"cuGetErrorName", cuGetErrorName, 6000, false},
    {"cuGetErrorString", cuGetErrorString, 6000, false},
    {"cuGetProcAddress", cuGetProcAddress, 11030, false},
    {"cuGetProcAddress", cuGetProcAddress_v2, 12000, false},
    {"cuGraphCreate", cuGraphCreate, 10000, false},
    {"cuGraphDestroy", cuGraphDestroy, 10000, false},
    {"cuGraphExecDestroy", cuGraphExecDestroy, 10000, false},
    {"cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags, 11040, false},
    {"cuGraphLaunch", cuGraphLaunch, 10000, false},
    {"cuGraphLaunch", cuGraphLaunch_ptsz, 10000, true},
    {"cuInit", cuInit, 2000, false},
    {"cuKernelGetFunction", cuKernelGetFunction, 12000, false},
    {"cuLaunchCooperativeKernel", cuLaunchCooperativeKernel, 9000, false},
    {"cuLaunchCooperativeKernel", cuLaunchCooperativeKernel_ptsz, 9000, true},
    {"cuLaunchHostFunc", cuLaunchHostFunc, 10000, false},
    {"cuLaunchHostFunc", cuLaunchHostFunc_ptsz, 10000, true},
    {"cuLaunchKernel", cuLaunchKernel, 4000, false},
    {"cuLaunchKernelEx", cuLaunchKernelEx, 11060, false},
    {"cuLaunchKernelEx", cuLaunchKernelEx_ptsz, 11060, true},
    {"cuLaunchKernel", cuLaunchKernel_ptsz, 7000, true},
    {"cuLibraryGetKernel", cuLibraryGetKernel, 12000, false},
    {"cuLibraryGetModule", cuLibraryGetModule, 12000, false},
    {"cuLibraryLoadData", cuLibraryLoadData, 12000, false},
    {"cuLibraryLoadFromFile", cuLibraryLoadFromFile, 12000, false},
    {"cuLibraryUnload", cuLibraryUnload, 12000, false},
    {"cuMemAddressFree", cuMemAddressFree, 10020, false},
    {"cuMemAddressReserve", cuMemAddressReserve, 10020, false},
    {"cuMemCreate", cuMemCreate, 10020, false},
    {"cuMemGetAllocationGranularity", cuMemGetAllocationGranularity, 10020, false},
    {"cuMemGetAllocationPropertiesFromHandle", cuMemGetAllocationPropertiesFromHandle, 10020, false},
    {"cuMemMap", cuMemMap, 10020, false},
    {"cuMemRelease", cuMemRelease, 10020, false},
    {"cuMemRetainAllocationHandle", cuMemRetainAllocationHandle, 11000, false},
    {"cuMemSetAccess", cuMemSetAccess, 10020, false},
    {"cuMemUnmap", cuMemUnmap, 10020, false},
    {"cuMemAllocAsync", cuMemAllocAsync, 11020, false},
    {"cuMemAllocAsync", cuMemAllocAsync_ptsz, 11020, true},
    {"cuMemAllocFromPoolAsync", cuMemAllocFromPoolAsync, 11020, false},
    {"cuMemAllocFromPoolAsync", cuMemAllocFromPoolAsync_ptsz, 11020, true},
    {"cuMemAllocHost", cuMemAllocHost_v2, 3020, false},
    {"cuMemAllocManaged", cuMemAllocManaged, 6000, false},
    {"cuMemAllocPitch", cuMemAllocPitch_v2, 3020, false},
    {"cuMemAlloc", cuMemAlloc_v2, 3020, false},
    {"cuMemFreeAsync", cuMemFreeAsync, 11020, false},
    {"cuMemFreeAsync", cuMemFreeAsync_ptsz, 11020, true},
    {"cuMemFreeHost", cuMemFreeHost, 2000, false},
    {"cuMemFree", cuMemFree_v2, 3020, false},
    {"cuMemGetAddressRange", cuMemGetAddressRange_v2, 3020, false},
    {"cuMemGetInfo", cuMemGetInfo_v2, 3020, false},
    {"cuMemHostAlloc", cuMemHostAlloc, 2020, false},
    {"cuMemHostGetDevicePointer", cuMemHostGetDevicePointer_v2, 3020, false},
    {"cuMemHostGetFlags", cuMemHostGetFlags, 2030, false},
    {"cuMemHostRegister", cuMemHostRegister_v2, 6050, false},
    {"cuMemHostUnregister", cuMemHostUnregister, 4000, false},
    {"cuMemPoolGetAttribute", cuMemPoolGetAttribute, 11020, false},
    {"cuMemPoolSetAttribute", cuMemPoolSetAttribute, 11020, false},
    {"cuMemPoolTrimTo", cuMemPoolTrimTo, 11020, false},
    {"cuMemcpy", cuMemcpy, 4000, false},
    {"cuMemcpyAsync", cuMemcpyAsync, 4000, false},
    {"cuMemcpyAsync", cuMemcpyAsync_ptsz, 7000, true},
    {"cuMemcpyDtoDAsync", cuMemcpyDtoDAsync_v2, 3020, false},
    {"cuMemcpyDtoDAsync", cuMemcpyDtoDAsync_v2_ptsz, 7000, true},
    {"cuMemcpyDtoD", cuMemcpyDtoD_v2, 3020, false},
    {"cuMemcpyDtoD", cuMemcpyDtoD_v2_ptds, 7000, true},
    {"cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2, 3020, false},
    {"cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2_ptsz, 7000, true},
    {"cuMemcpyDtoH", cuMemcpyDtoH_v2, 3020, false},
    {"cuMemcpyDtoH", cuMemcpyDtoH_v2_ptds, 7000, true},
    {"cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2, 3020, false},
    {"cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2_ptsz, 7000, true},
    {"cuMemcpyHtoD", cuMemcpyHtoD_v2, 3020, false},
    {"cuMemcpyHtoD", cuMemcpyHtoD_v2_ptds, 7000, true},
    {"cuMemcpy", cuMemcpy_ptds, 7000, true},
    {"cuMemsetD16Async", cuMemsetD16Async, 3020, false},
    {"cuMemsetD16Async", cuMemsetD16Async_ptsz, 7000, true},
    {"cuMemsetD16", cuMemsetD16_v2, 3020, false},
    {"cuMemsetD16", cuMemsetD16_v2_ptds, 7000, true},
    {"cuMemsetD32Async", cuMemsetD32Async, 3020, false},
    {"cuMemsetD32Async", cuMemsetD32Async_ptsz, 7000, true},
    {"cuMemsetD32", cuMemsetD32_v2, 3020, false},
    {"cuMemsetD32", cuMemsetD32_v2_ptds, 7000, true},
    {"cuMemsetD8Async", cuMemsetD8Async, 3020, false},
    {"cuMemsetD8Async", cuMemsetD8Async_ptsz, 7000, true},
    {"cuMemsetD8", cuMemsetD8_v2, 3020, false},
    {"cuMemsetD8", cuMemsetD8_v2_ptds, 7000, true},
    {"cuModuleGetFunction", cuModuleGetFunction, 2000, false},
    {"cuModuleGetGlobal", cuModuleGetGlobal_v2, 3020, false},
    {"cuModuleGetLoadingMode", cuModuleGetLoadingMode, 11070, false},
    {"cuModuleLoad", cuModuleLoad, 2000, false},
    {"cuModuleLoadData", cuModuleLoadData, 2000, false},
    {"cuModuleLoadDataEx", cuModuleLoadDataEx, 2010, false},
    {"cuModuleLoadFatBinary", cuModuleLoadFatBinary, 2000, false},
    {"cuModuleUnload", cuModuleUnload, 2000, false},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor", cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, false},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, false},
    {"cuOccupancyMaxPotentialBlockSize", cuOccupancyMaxPotentialBlockSize, 6050, false},
    {"cuPointerGetAttribute", cuPointerGetAttribute, 4000, false},
    {"cuStreamAddCallback", cuStreamAddCallback, 5000, false},
    {"cuStreamAddCallback", cuStreamAddCallback_ptsz, 7000, true},
    {"cuStreamBeginCapture", cuStreamBeginCapture_v2, 10010, false},
    {"cuStreamBeginCapture", cuStreamBeginCapture_v2_ptsz, 10010, true},
    {"cuStreamCreate", cuStreamCreate, 2000, false},
    {"cuStreamCreateWithPriority", cuStreamCreateWithPriority, 5050, false},
    {"cuStreamDestroy", cuStreamDestroy, 2000, false},
    {"cuStreamDestroy", cuStreamDestroy_v2, 4000, false},
    {"cuStreamEndCapture", cuStreamEndCapture, 10000, false},
    {"cuStreamEndCapture", cuStreamEndCapture_ptsz, 10000, true},
    {"cuStreamGetCaptureInfo", cuStreamGetCaptureInfo_v2, 11030, false},
    {"cuStreamGetCaptureInfo", cuStreamGetCaptureInfo_v2_ptsz, 11030, true},
    {"cuStreamGetCaptureInfo", cuStreamGetCaptureInfo_v3, 12030, false},
    {"cuStreamGetCaptureInfo", cuStreamGetCaptureInfo_v3_ptsz, 12030, true},
    {"cuStreamGetCtx", cuStreamGetCtx, 9020, false},
    {"cuStreamGetCtx", cuStreamGetCtx_ptsz, 9020, true},
    {"cuStreamGetCtx", cuStreamGetCtx_v2, 12050, false},
    {"cuStreamGetCtx", cuStreamGetCtx_v2_ptsz, 12050, true},
    {"cuStreamGetDevice", cuStreamGetDevice, 12080, false},
    {"cuStreamGetDevice", cuStreamGetDevice_ptsz, 12080, true},
    {"cuStreamGetFlags", cuStreamGetFlags, 5050, false},
    {"cuStreamGetFlags", cuStreamGetFlags_ptsz, 7000, true},
    {"cuStreamGetId", cuStreamGetId, 12000, false},
    {"cuStreamGetId", cuStreamGetId_ptsz, 12000, true},
    {"cuStreamGetPriority", cuStreamGetPriority, 5050, false},
    {"cuStreamGetPriority", cuStreamGetPriority_ptsz, 7000, true},
    {"cuStreamIsCapturing", cuStreamIsCapturing, 10000, false},
    {"cuStreamIsCapturing", cuStreamIsCapturing_ptsz, 10000, true},
    {"cuStreamQuery", cuStreamQuery, 2000, false},
    {"cuStreamQuery", cuStreamQuery_ptsz, 7000, true},
    {"cuStreamSynchronize", cuStreamSynchronize, 2000, false},
    {"cuStreamSynchronize", cuStreamSynchronize_ptsz, 7000, true},
    {"cuStreamWaitEvent", cuStreamWaitEvent, 3020, false},
    {"cuStreamWaitEvent", cuStreamWaitEvent_ptsz, 7000, true},
    {"cuStreamWaitValue32", cuStreamWaitValue32, 8000, false},
    {"cuStreamWaitValue32", cuStreamWaitValue32_ptsz, 8000, true},
    {"cuStreamWaitValue32", cuStreamWaitValue32_v2, 11070, false},
    {"cuStreamWaitValue32", cuStreamWaitValue32_v2_ptsz, 11070, true},
    {"cuStreamWriteValue32", cuStreamWriteValue32, 8000, false},
    {"cuStreamWriteValue32", cuStreamWriteValue32_ptsz, 8000, true},
    {"cuStreamWriteValue32", cuStreamWriteValue32_v2, 11070, false},
    {"cuStreamWriteValue32", cuStreamWriteValue32_v2_ptsz, 11070, true},
    {"cuThreadExchangeStreamCaptureMode", cuThreadExchangeStreamCaptureMode, 10010, false},
};

static bool better(const struct row *row, const struct row *best, bool per_thread)
{
    if (!best)
        return true;
    if (per_thread && row->per_thread != best->per_thread)
        return row->per_thread;
    return row->version > best->version;
}

static CUresult look(const char *name, void **function, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *result)
{
    const struct row *best = NULL;
    bool known = false, per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (!name || !function || flags & ~3ull)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, name) != 0 || (rows[i].per_thread && !per_thread))
            continue;
        known = true;
        if (rows[i].version <= version && better(&rows[i], best, per_thread))
            best = &rows[i];
    }
    *function = best ? best->function : NULL;
    if (result)
        *result = best ? CU_GET_PROC_ADDRESS_SUCCESS : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                                             : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    return look(name, function, version, flags, NULL);
}

/* With a place for the result a name that is not there is no error; the runtime probes with an empty name. */
CUresult CUDAAPI cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *result)
{
    CUresult status = look(name, function, version, flags, result);
    return status == CUDA_ERROR_NOT_FOUND && result ? CUDA_SUCCESS : status;
}
