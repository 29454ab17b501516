/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver that does nothing, at once: what remains between a call through the shim and a call
 * straight into this is the shim. It counts calls. Functions not written out here succeed without
 * doing anything (stub_exports.S).
 */
#include "stub.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#define HELD   4096u
#define EXPORT __attribute__((visibility("default")))

EXPORT struct stub_state stub = {
    .version = 13050, .elapsed_ms = 0.1f, .device_count = 1, .counting = 1};

static __thread CUcontext current;
static char contexts[64][16]; /* handles of the contexts: device d has handle contexts[d] */
static uint64_t next_handle = 0x7f0000000000u;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint32_t *word, value;
} held[HELD];
static unsigned held_first, held_count;

static void count(uint64_t *calls)
{
    if (__atomic_load_n(&stub.counting, __ATOMIC_RELAXED))
        __atomic_fetch_add(calls, 1, __ATOMIC_RELAXED);
}

static int device_of(CUcontext context)
{
    return (int)(((char *)context - contexts[0]) / (long)sizeof(contexts[0]));
}

CUresult cuInit(unsigned int flags)
{
    (void)flags;
    count(&stub.counts.inits);
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = stub.version;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = stub.device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < stub.device_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* GPU-00000000-0000-0000-0000-0000000000NN with NN = ordinal + 1, or the digit at that place of the
 * environment's QGPU_STUB_CARDS, as if CUDA_VISIBLE_DEVICES had put the cards in another order. */
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    const char *order = getenv("QGPU_STUB_CARDS");
    memset(uuid, 0, sizeof(*uuid));
    uuid->bytes[15] = order ? order[device] - '0' : (char)(device + 1);
    return CUDA_SUCCESS;
}

/* With QGPU_STUB_MIG the devices are instances of one card, whose UUID is what version 1 tells. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    CUresult result = cuDeviceGetUuid_v2(uuid, device);
    if (getenv("QGPU_STUB_MIG"))
        uuid->bytes[15] = (char)0xff;
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)80 << 30;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    *available = *total = (size_t)80 << 30;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    if (!current)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = device_of(current);
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    (void)flags;
    *context = current = (CUcontext)(void *)contexts[device];
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)(void *)contexts[device];
    return CUDA_SUCCESS;
}

static CUresult allocate(uint64_t *out, size_t size)
{
    count(&stub.counts.allocs);
    int refused = stub.refuse_allocs;
    if (refused > 0 ||
        (refused && __atomic_fetch_add(&stub.refuse_allocs, 1, __ATOMIC_SEQ_CST) < 0))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = __atomic_fetch_add(&next_handle, (size + 511) & ~(size_t)511, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    return allocate((uint64_t *)pointer, size);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags)
{
    (void)flags;
    return allocate((uint64_t *)pointer, size);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    (void)stream;
    return allocate((uint64_t *)pointer, size);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                            unsigned int element)
{
    (void)element;
    *pitch = (width + 511) & ~(size_t)511;
    return allocate((uint64_t *)pointer, *pitch * height);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *property, unsigned long long flags)
{
    (void)property;
    (void)flags;
    return allocate((uint64_t *)handle, size);
}

static struct {
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
} mapped; /* the newest mapping */

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)size, (void)offset, (void)flags;
    mapped.address = pointer;
    mapped.handle = handle;
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    *handle = mapped.handle;
    return mapped.address == (CUdeviceptr)(uintptr_t)address ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    (void)pointer;
    count(&stub.counts.frees);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    (void)stream;
    return cuMemFree_v2(pointer);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted)
{
    return allocate((uint64_t *)array, wanted->Width * (wanted->Height ? wanted->Height : 1));
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    (void)flags;
    *stream = (CUstream)(uintptr_t)__atomic_fetch_add(&next_handle, 512, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    (void)stream;
    *context = current;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    stub.capturing = (uint64_t)(uintptr_t)stream;
    return CUDA_SUCCESS;
}

static CUresult end_capture(void)
{
    if (stub.end_result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED &&
        stub.end_result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        stub.capturing = 0;
    return (CUresult)stub.end_result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    (void)stream;
    CUresult result = end_capture();
    if (result == CUDA_SUCCESS)
        *graph = (CUgraph)(uintptr_t)__atomic_fetch_add(&next_handle, 512, __ATOMIC_RELAXED);
    return result;
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return cuStreamEndCapture(stream, graph);
}

CUresult cuStreamEndCaptureToCig(CUstream stream)
{
    (void)stream;
    return end_capture();
}

CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream)
{
    (void)stream;
    return end_capture();
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    count(&stub.counts.queries);
    stream = stream ? stream : CU_STREAM_LEGACY;
    *status = stub.capturing && stub.capturing == (uint64_t)(uintptr_t)stream
                  ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                  : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    (void)flags;
    *event = (CUevent)(uintptr_t)__atomic_fetch_add(&next_handle, 512, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    (void)event;
    (void)stream;
    count(&stub.counts.event_records);
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event)
{
    (void)event;
    return stub.hold ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream)
{
    (void)stream;
    return stub.hold ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    (void)start;
    (void)end;
    *ms = stub.elapsed_ms;
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned int flags)
{
    (void)pointer;
    (void)size;
    (void)flags;
    count(&stub.counts.registers);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned int flags)
{
    (void)flags;
    *device = (CUdeviceptr)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned int flags)
{
    (void)flags;
    count(&stub.counts.writes);
    if (!stream || stream == CU_STREAM_LEGACY)
        count(&stub.counts.legacy_writes);
    if (stub.refuse_writes)
        return stub.refuse_writes == 1 ? CUDA_ERROR_NOT_SUPPORTED : (CUresult)stub.refuse_writes;
    if (!stub.hold) {
        __atomic_store_n((uint32_t *)(uintptr_t)address, value, __ATOMIC_RELEASE);
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    held[(held_first + held_count) % HELD].word = (uint32_t *)(uintptr_t)address;
    held[(held_first + held_count++) % HELD].value = value;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT int stub_release(int n)
{
    int done = 0;
    pthread_mutex_lock(&lock);
    for (; done < n && held_count; done++, held_count--, held_first = (held_first + 1) % HELD)
        __atomic_store_n(held[held_first].word, held[held_first].value, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return done;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                        unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                        CUstream stream, void **p, void **e)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream,
        (void)p, (void)e;
    count(&stub.counts.launches);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                             unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                             CUstream stream, void **p, void **e)
{
    return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, p, e);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **p, void **e)
{
    (void)config, (void)f, (void)p, (void)e;
    count(&stub.counts.launches);
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
    (void)graph, (void)stream;
    count(&stub.counts.graph_launches);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr d, const void *h, size_t n, CUstream stream)
{
    (void)d, (void)h, (void)n, (void)stream;
    count(&stub.counts.copies);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void *h, size_t n)
{
    (void)d, (void)h, (void)n;
    count(&stub.counts.copies);
    return CUDA_SUCCESS;
}

/* Private tables do not exist here; success without one would make the CUDA runtime read through
 * NULL. */
CUresult cuGetExportTable(const void **out, const CUuuid *id)
{
    (void)id;
    *out = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

/* Newest symbol of a name; versions are not told apart, the tests that need that look at the shim's
 * answer. */
static void *newest(const char *name, cuuint64_t flags)
{
    static const char *const endings[] = {"_v4", "_v3", "_v2", ""};
    static const char *const streams[] = {"_ptsz", "_ptds", ""};
    char symbol[128];
    Dl_info self;
    dladdr((void *)&stub, &self);
    void *handle = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD), *found = NULL;
    for (unsigned s = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? 0 : 2;
         s < 3 && !found; s++)
        for (unsigned i = 0; i < 4 && !found; i++) {
            snprintf(symbol, sizeof(symbol), "%s%s%s", name, endings[i], streams[s]);
            found = dlsym(handle, symbol);
        }
    dlclose(handle);
    return found;
}

/* For tests of who asks for what: a line per query in the file that QGPU_STUB_QUERIES names, with
 * the file of the code that asked. */
static void record_query(const char *name, int version, cuuint64_t flags, void *caller)
{
    const char *path = getenv("QGPU_STUB_QUERIES");
    FILE *file = path ? fopen(path, "a") : NULL;
    Dl_info by = {0};
    if (!file)
        return;
    dladdr(caller, &by);
    fprintf(file, "%s %d %llu %s\n", *name ? name : "-", version, (unsigned long long)flags,
            by.dli_fname);
    fclose(file);
}

static CUresult answer_query(const char *name, void **found, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    *found = *name ? newest(name, flags) : NULL;
    /* that no table knows */
    if (!strcmp(name, "cuNewInDriver14") || (*found && stub.newer && version >= 14000))
        *found = (void *)&cuInit;
    if (status)
        *status = *found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress_v2(const char *name, void **found, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    record_query(name, version, flags, __builtin_return_address(0));
    return answer_query(name, found, version, flags, status);
}

CUresult cuGetProcAddress(const char *name, void **found, int version, cuuint64_t flags)
{
    record_query(name, version, flags, __builtin_return_address(0));
    return answer_query(name, found, version, flags, NULL);
}
