/* SPDX-License-Identifier: Apache-2.0
 *
 * Small calls that programs make besides the real ones.
 */
#include "cu_context.h"
#include "cu_stream.h"

#include <string.h>

CUresult CUDAAPI cuProfilerStart(void)
{
    CUcontext ctx;
    return cu_current(&ctx);
}

CUresult CUDAAPI cuProfilerStop(void)
{
    CUcontext ctx;
    return cu_current(&ctx);
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache *config)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    *config = CU_FUNC_CACHE_PREFER_NONE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxResetPersistingL2Cache(void)
{
    CUcontext ctx;
    return cu_current(&ctx);
}

/* ---- attributes of streams: kept as far as there are any, without effect ---- */

static CUresult get_attribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue *value,
                              bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    memset(value, 0, sizeof *value);
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        value->priority = stream->priority;
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamGetAttribute, cuStreamGetAttribute_ptsz, get_attribute,
        (CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue *value), stream, attribute,
        value)

static CUresult set_attribute(CUstream handle, CUstreamAttrID attribute,
                              const CUstreamAttrValue *value, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        stream->priority = value->priority;
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamSetAttribute, cuStreamSetAttribute_ptsz, set_attribute,
        (CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue *value), stream,
        attribute, value)

static CUresult copy_attributes(CUstream to, CUstream from, bool pt)
{
    CUstream target, source;
    CU_TRY(cu_stream_get(to, pt, &target));
    CU_TRY(cu_stream_get(from, pt, &source));
    target->priority = source->priority;
    return CUDA_SUCCESS;
}
CU_BOTH(cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz, copy_attributes,
        (CUstream to, CUstream from), to, from)
