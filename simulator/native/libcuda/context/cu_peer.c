/* SPDX-License-Identifier: Apache-2.0
 *
 * Access of one card to another's memory. With the device side's --peers there is some: a context
 * has to ask for it. Copies between cards go without.
 */
#include "cu_context.h"

static bool may_access(const struct cu_device *from, const struct cu_device *to)
{
    return from != to && cu.page->options & SIM_OPTION_PEERS;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
    struct cu_device *from, *to;
    CU_TRY(cu_device_of(dev, &from));
    CU_TRY(cu_device_of(peer, &to));
    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    *can = may_access(from, to);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice dev,
                                         CUdevice peer)
{
    struct cu_device *from, *to;
    CU_TRY(cu_device_of(dev, &from));
    CU_TRY(cu_device_of(peer, &to));
    if (!value || attribute < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK || from == to)
        return CUDA_ERROR_INVALID_VALUE;
    /* by PCI: no atomics, arrays have no contents */
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED && may_access(from, to);
    return CUDA_SUCCESS;
}

/* The current context, and the bit of the peer's card in it. */
static CUresult peer_of(CUcontext peer, CUcontext *ctx, uint32_t *bit)
{
    CU_TRY(cu_current(ctx));
    if (!cu_handle_ok(CU_CTX, peer) || peer == *ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    *bit = 1u << (peer->device - cu.devices);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    CUcontext ctx;
    uint32_t bit;
    CU_TRY(cu_enter(__func__));
    CU_TRY(peer_of(peer, &ctx, &bit));
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!may_access(ctx->device, peer->device))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return atomic_fetch_or(&ctx->peers, bit) & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
                                                   : CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer)
{
    CUcontext ctx;
    uint32_t bit;
    CU_TRY(cu_enter(__func__));
    CU_TRY(peer_of(peer, &ctx, &bit));
    return atomic_fetch_and(&ctx->peers, ~bit) & bit ? CUDA_SUCCESS
                                                     : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
