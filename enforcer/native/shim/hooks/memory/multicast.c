/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of multicast objects and logical endpoints. They have no memory of their own. Memory that
 * is bound to them lives until it is unbound or the object is gone, even if its own handle was
 * released.
 */
#include "hooks/memory/charge.h"

#define HANDLE CUmemGenericAllocationHandle

CUresult cuMulticastCreate(HANDLE *object, const CUmulticastObjectProp *property)
{
    CUresult result = QG_REAL(cuMulticastCreate)(object, property);
    if (result == CUDA_SUCCESS && ruled())
        qg_handle_multicast(*object);
    return result;
}

/* A process that imported the object calls this first. Only here the import is recognised as a
 * multicast object. */
CUresult cuMulticastAddDevice(HANDLE object, CUdevice device)
{
    CUresult result = QG_REAL(cuMulticastAddDevice)(object, device);
    if (result == CUDA_SUCCESS && ruled())
        qg_handle_multicast(object);
    return result;
}

/* One object is bound at the same place on each of its devices. */
static uint64_t place_of(CUdevice device, uint64_t at)
{
    return at ^ ((uint64_t)(uint32_t)device + 1) << 48;
}

static uint64_t endpoint(CUlogicalEndpointId id)
{
    return (uint64_t)id | 1ull << 63; /* no handle is so high */
}

static CUdevice device_of(HANDLE memory)
{
    CUmemAllocationProp about = {0};
    CUdevice device = -1;
    if (DIRECT(QG_REAL(cuMemGetAllocationPropertiesFromHandle)(&about, memory)) == CUDA_SUCCESS &&
        qg_place_ordinal(&about.location, &device))
        return device;
    DIRECT(QG_REAL(cuCtxGetDevice)(&device));
    return device;
}

/* The handle of the memory at the address. 0 if it has none, as memory of a pool; the pool keeps
 * that memory. */
static HANDLE handle_at(CUdeviceptr address)
{
    HANDLE memory;
    if (DIRECT(QG_REAL(cuMemRetainAllocationHandle)(&memory, (void *)(uintptr_t)address)) !=
        CUDA_SUCCESS)
        return 0;
    DIRECT(QG_REAL(cuMemRelease)(memory)); /* the mapping keeps it */
    return memory;
}

/* device: -1: the one that the memory is on */
static void bound(uint64_t user, CUdevice device, uint64_t at, HANDLE memory, uint64_t size)
{
    if (memory)
        qg_handle_tie(memory, user, place_of(device < 0 ? device_of(memory) : device, at), size);
}

/* Several bindings that follow each other may be undone by one call. */
static void unbound(uint64_t user, CUdevice device, uint64_t at, uint64_t size)
{
    for (uint64_t end = at + size, span; at < end; at += span)
        if (!(span = qg_handle_untie(user, place_of(device, at))))
            break;
}

#define BINDS(name, user, device, at, memory, parameters, arguments)                               \
    CUresult name parameters                                                                       \
    {                                                                                              \
        CUresult result = QG_REAL(name) arguments;                                                 \
        if (result == CUDA_SUCCESS && ruled())                                                     \
            bound(user, device, at, memory, n);                                                    \
        return result;                                                                             \
    }
#define X unsigned long long x

BINDS(cuMulticastBindMem, object, -1, at, m,
      (HANDLE object, size_t at, HANDLE m, size_t from, size_t n, X), (object, at, m, from, n, x))
BINDS(cuMulticastBindMem_v2, object, d, at, m,
      (HANDLE object, CUdevice d, size_t at, HANDLE m, size_t from, size_t n, X),
      (object, d, at, m, from, n, x))
BINDS(cuMulticastBindAddr, object, -1, at, handle_at(a),
      (HANDLE object, size_t at, CUdeviceptr a, size_t n, X), (object, at, a, n, x))
BINDS(cuMulticastBindAddr_v2, object, d, at, handle_at(a),
      (HANDLE object, CUdevice d, size_t at, CUdeviceptr a, size_t n, X), (object, d, at, a, n, x))
BINDS(cuLogicalEndpointBindMem, endpoint(id), d, at, m,
      (CUlogicalEndpointId id, CUdevice d, cuuint64_t at, HANDLE m, cuuint64_t from, cuuint64_t n,
       X),
      (id, d, at, m, from, n, x))
BINDS(cuLogicalEndpointBindAddr, endpoint(id), d, at, handle_at((CUdeviceptr)(uintptr_t)a),
      (CUlogicalEndpointId id, CUdevice d, cuuint64_t at, void *a, cuuint64_t n, X),
      (id, d, at, a, n, x))

CUresult cuMulticastUnbind(HANDLE object, CUdevice device, size_t at, size_t size)
{
    CUresult result = QG_REAL(cuMulticastUnbind)(object, device, at, size);
    if (result == CUDA_SUCCESS && ruled())
        unbound(object, device, at, size);
    return result;
}

CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId id, CUdevice device, cuuint64_t at,
                                 cuuint64_t size)
{
    CUresult result = QG_REAL(cuLogicalEndpointUnbind)(id, device, at, size);
    if (result == CUDA_SUCCESS && ruled())
        unbound(endpoint(id), device, at, size);
    return result;
}

CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId id)
{
    CUresult result = QG_REAL(cuLogicalEndpointDestroy)(id);
    if (result == CUDA_SUCCESS && ruled())
        qg_handle_free_ties(endpoint(id));
    return result;
}
