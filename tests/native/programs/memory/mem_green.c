/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts that end otherwise than by cuCtxDestroy(): green ones, whose memory is the primary
 * context's, and old ones with a usage count.
 */
#include "step.h"

static CUgreenCtx green;

static CUcontext make_green(unsigned int multiprocessors)
{
    CUdevResource all, part, rest;
    CUdevResourceDesc wanted;
    CUcontext as_context;
    unsigned int groups = 1;
    MUST(CALL(cuDeviceGetDevResource)(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    MUST(CALL(cuDevSmResourceSplitByCount)(&part, &groups, &all, &rest, 0, multiprocessors));
    MUST(CALL(cuDevResourceGenerateDesc)(&wanted, &part, 1));
    MUST(CALL(cuGreenCtxCreate)(&green, wanted, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    MUST(CALL(cuCtxFromGreenCtx)(&as_context, green));
    return as_context;
}

static void green_beside_primary(void)
{
    CUdeviceptr pointer, kept, piece;
    CUmemoryPool pool;
    CUstream in_green;
    CUcontext as_context = make_green(64);
    MUST(CALL(cuCtxPushCurrent_v2)(as_context));
    MUST(CALL(cuMemAlloc_v2)(&pointer, 16 * MIB));
    step("in_green");
    MUST(CALL(cuMemAlloc_v2)(&kept, 8 * MIB));
    REFUSED(CALL(cuMemAlloc_v2)(&piece, 240 * MIB)); /* no cap of its own */
    MUST(CALL(cuGreenCtxStreamCreate)(&in_green, green, CU_STREAM_NON_BLOCKING, 0));
    MUST(CALL(cuDeviceGetDefaultMemPool)(&pool, 0));
    MUST(CALL(cuMemAllocAsync)(&piece, 32 * MIB, in_green));
    step("pool_in_green");
    MUST(CALL(cuMemFreeAsync)(piece, in_green));
    MUST(CALL(cuStreamSynchronize)(in_green));
    MUST(CALL(cuMemPoolTrimTo)(pool, 0));
    MUST(CALL(cuMemFree_v2)(pointer));
    step("freed_in_green");
    MUST(CALL(cuStreamDestroy_v2)(in_green));
    MUST(CALL(cuCtxPopCurrent_v2)(NULL));
    MUST(CALL(cuGreenCtxDestroy)(green));
    step("green_gone"); /* what was allocated in it is not */
    MUST(CALL(cuMemFree_v2)(kept));
    step("kept_freed");
}

/* The last reference to the primary context is the green one's: what was allocated in either ends
 * with it. */
static void green_is_the_last(void)
{
    CUdeviceptr pointer;
    CUcontext as_context = make_green(8);
    MUST(CALL(cuMemAlloc_v2)(&pointer, 4 * MIB));
    MUST(CALL(cuStreamDestroy_v2)(stream));
    MUST(CALL(cuCtxSetCurrent)(as_context));
    MUST(CALL(cuMemAlloc_v2)(&pointer, 16 * MIB));
    MUST(CALL(cuDevicePrimaryCtxRelease_v2)(0));
    step("last");
    MUST(CALL(cuCtxSetCurrent)(NULL));
    MUST(CALL(cuGreenCtxDestroy)(green));
    MUST(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
    MUST(CALL(cuCtxSetCurrent)(context));
    step("all_gone");
}

static void reset_under_green(void)
{
    CUdeviceptr pointer;
    MUST(CALL(cuCtxSetCurrent)(make_green(8)));
    MUST(CALL(cuMemAlloc_v2)(&pointer, 24 * MIB));
    step("green_again");
    MUST(CALL(cuCtxSetCurrent)(NULL));
    MUST(CALL(cuDevicePrimaryCtxReset_v2)(0));
    MUST(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
    MUST(CALL(cuCtxSetCurrent)(context));
    step("reset");
}

static void usage_counts(void)
{
    CUcontext old, same;
    CUdeviceptr pointer;
    MUST(CALL(cuCtxCreate)(&old, 0, 0));
    MUST(CALL(cuCtxAttach)(&same, 0));
    MUST(same != old);
    MUST(CALL(cuMemAlloc_v2)(&pointer, 12 * MIB));
    MUST(CALL(cuCtxPushCurrent_v2)(context));
    MUST(CALL(cuCtxDetach)(old) != CUDA_ERROR_INVALID_CONTEXT); /* not current: takes no use away */
    MUST(CALL(cuCtxPopCurrent_v2)(NULL));
    MUST(CALL(cuCtxDetach)(old));
    MUST(CALL(cuMemAlloc_v2)(&pointer, 2 * MIB));
    step("detached_once");
    MUST(CALL(cuCtxDetach)(old));
    step("detached");
    MUST(CALL(cuCtxCreate)(&old, 0, 0));
    MUST(CALL(cuCtxAttach)(&same, 0));
    MUST(CALL(cuMemAlloc_v2)(&pointer, 12 * MIB));
    MUST(CALL(cuCtxDestroy)(old)); /* whatever the count */
    step("destroyed");
}

int main(void)
{
    begin();
    green_beside_primary();
    green_is_the_last();
    reset_under_green();
    usage_counts();
    return 0;
}
