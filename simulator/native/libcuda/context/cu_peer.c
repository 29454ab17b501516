/* SPDX-License-Identifier: Apache-2.0
 *
 * Access of one card to another's memory, which there is none of: cuDeviceCanAccessPeer() says so.
 */
#include "cu_context.h"

static CUresult peer_of(CUcontext peer)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (!cu_handle_ok(CU_CTX, peer) || peer == ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    CU_TRY(cu_enter(__func__));
    CU_TRY(peer_of(peer));
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer)
{
    CU_TRY(cu_enter(__func__));
    CU_TRY(peer_of(peer));
    return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
