/* SPDX-License-Identifier: Apache-2.0
 *
 * First versions, later versions and per-thread default stream variants of calls whose plain form
 * the other programs make: each must leave the ledger as the plain one does. `mem_variant take
 * HANDLE` opens another process's IPC handle by the first version of the call; `mem_variant node
 * VERSION` makes a graph's memory node by this version (0: by the call for these alone).
 */
#include "step.h"

/* what `_ptsz` takes for the calling thread's default stream, and the plain call for the legacy
 * one */
#define THREADS NULL

static const CUmemAllocationProp here = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};

/* The first version of the question for a function has no place for a status. */
static void first_question(void)
{
    void *found = NULL;
    MUST(CALL(cuGetProcAddress)("cuMemAlloc", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT));
    MUST(found != step_find("cuMemAlloc_v2"));
}

static void first_arrays(void)
{
    CUarray flat, deep, none;
    CUDA_ARRAY_DESCRIPTOR_v1 two = {
        .Width = 100, .Height = 8192, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUDA_ARRAY3D_DESCRIPTOR_v1 three = {
        .Width = 512, .Height = 512, .Depth = 8, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    unsigned int all;
    MUST(CALL(cuDeviceTotalMem)(&all, 0));
    MUST(all != 256 * MIB);
    MUST(CALL(cuArrayCreate)(&flat, &two));
    step("array_v1");
    MUST(CALL(cuArray3DCreate)(&deep, &three));
    step("array_3d_v1");
    three.Depth = 64;
    REFUSED(CALL(cuArray3DCreate)(&none, &three));
    two.Width = 16384;
    REFUSED(CALL(cuArrayCreate)(&none, &two));
    MUST(CALL(cuArrayDestroy)(flat));
    MUST(CALL(cuArrayDestroy)(deep));
    step("arrays_v1_gone");
}

static void threads_stream(void)
{
    CUmemoryPool pool;
    CUdeviceptr a, b, c;
    MUST(CALL(cuDeviceGetDefaultMemPool)(&pool, 0));
    MUST(CALL(cuMemAllocAsync_ptsz)(&a, 40 * MIB, THREADS));
    step("async_ptsz");
    MUST(CALL(cuMemAllocFromPoolAsync_ptsz)(&b, 20 * MIB, pool, THREADS));
    step("from_pool_ptsz"); /* the rest of the chunk */
    REFUSED(CALL(cuMemAllocAsync_ptsz)(&c, 200 * MIB, THREADS));
    REFUSED(CALL(cuMemAllocFromPoolAsync_ptsz)(&c, 200 * MIB, pool, THREADS));
    MUST(CALL(cuMemFreeAsync_ptsz)(a, THREADS));
    MUST(CALL(cuMemFreeAsync_ptsz)(b, THREADS));
    step("freed_ptsz");
    MUST(CALL(cuStreamSynchronize_ptsz)(THREADS));
    step("waited_ptsz");
}

/* A pool that is destroyed lives until its last piece is freed, and that must be seen. */
static void piece_of_a_destroyed_pool(void)
{
    CUmemPoolProps wanted = {.allocType = here.type, .location = here.location};
    CUmemoryPool own;
    CUdeviceptr piece;
    MUST(CALL(cuMemPoolCreate)(&own, &wanted));
    MUST(CALL(cuMemAllocFromPoolAsync_ptsz)(&piece, 20 * MIB, own, THREADS));
    MUST(CALL(cuMemPoolDestroy)(own));
    step("piece_ptsz");
    MUST(CALL(cuMemFreeAsync_ptsz)(piece, THREADS));
    MUST(CALL(cuStreamSynchronize_ptsz)(THREADS));
    step("piece_freed_ptsz");
}

/* More than the cap becomes a node, not memory; who does not see that the thread's stream captures
 * refuses it. */
static void captured(const char *text, int from_pool, CUgraph *graph)
{
    CUmemoryPool pool;
    CUdeviceptr a;
    MUST(CALL(cuDeviceGetDefaultMemPool)(&pool, 0));
    if (from_pool) {
        MUST(CALL(cuStreamBeginCapture_ptsz)(THREADS));
        MUST(CALL(cuMemAllocFromPoolAsync_ptsz)(&a, 300 * MIB, pool, THREADS));
    } else {
        MUST(CALL(cuStreamBeginCapture_v2_ptsz)(THREADS, CU_STREAM_CAPTURE_MODE_RELAXED));
        MUST(CALL(cuMemAllocAsync_ptsz)(&a, 300 * MIB, THREADS));
    }
    MUST(CALL(cuMemFreeAsync_ptsz)(a, THREADS));
    step(text);
    MUST(CALL(cuStreamEndCapture_ptsz)(THREADS, graph));
}

static void captures(void)
{
    CUgraph graph;
    CUgraphExec exec;
    captured("captured_ptsz", 0, &graph);
    MUST(CALL(cuGraphInstantiate_v2)(&exec, graph, NULL, NULL, 0));
    REFUSED(CALL(cuGraphLaunch_ptsz)(exec, THREADS));
    step("too_large_v2");
    MUST(CALL(cuGraphExecDestroy)(exec));
    MUST(CALL(cuGraphDestroy)(graph));
    captured("captured_pool_ptsz", 1, &graph);
    CUDA_GRAPH_INSTANTIATE_PARAMS later = {.hUploadStream = THREADS};
    MUST(CALL(cuGraphInstantiateWithParams_ptsz)(&exec, graph, &later));
    REFUSED(CALL(cuGraphUpload_ptsz)(exec, THREADS));
    step("too_large_ptsz");
    MUST(CALL(cuGraphExecDestroy)(exec));
    MUST(CALL(cuGraphDestroy)(graph));
    MUST(CALL(cuStreamBeginCapture)(stream));
    MUST(CALL(cuMemAllocAsync)(&(CUdeviceptr){0}, 300 * MIB, stream));
    MUST(CALL(cuStreamEndCapture)(stream, &graph));
    MUST(CALL(cuGraphDestroy)(graph));
    step("captured_v1");
}

/* Each in a process of its own: after one that was seen the shim looks at all graphs. */
static void graph_node(int version)
{
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node, end;
    CUgraphNodeParams takes = {
        .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        .alloc = {.poolProps = {.allocType = here.type, .location = here.location},
                  .bytesize = 50 * MIB}};
    CUgraphNodeParams gives = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE};
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
                                         .hUploadStream = THREADS};
    MUST(CALL(cuGraphCreate)(&graph, 0));
    if (version == 0) {
        CUDA_MEM_ALLOC_NODE_PARAMS old = {.poolProps = takes.alloc.poolProps,
                                          .bytesize = takes.alloc.bytesize};
        MUST(CALL(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &old));
        takes.alloc.dptr = old.dptr;
    } else if (version == 1) {
        MUST(CALL(cuGraphAddNode)(&node, graph, NULL, 0, &takes));
    } else if (version == 2) {
        MUST(CALL(cuGraphAddNode_v2)(&node, graph, NULL, NULL, 0, &takes));
    } else {
        MUST(CALL(cuGraphAddNode_v3)(&node, graph, NULL, NULL, 0, &takes));
    }
    gives.free.dptr = takes.alloc.dptr;
    MUST(CALL(cuGraphAddNode_v3)(&end, graph, &node, NULL, 1, &gives));
    MUST(CALL(cuGraphInstantiateWithParams_ptsz)(&exec, graph, &how));
    MUST(CALL(cuStreamSynchronize_ptsz)(THREADS));
    step("node");
    MUST(CALL(cuGraphExecDestroy)(exec));
    MUST(CALL(cuGraphDestroy)(graph));
    MUST(CALL(cuDeviceGraphMemTrim)(0));
    step("node_gone");
}

static void sparse_array(void)
{
    CUarray array;
    CUmemGenericAllocationHandle handle;
    CUDA_ARRAY3D_DESCRIPTOR wanted = {.Width = 1024,
                                      .Height = 1024,
                                      .Format = CU_AD_FORMAT_FLOAT,
                                      .NumChannels = 1,
                                      .Flags = CUDA_ARRAY3D_SPARSE};
    MUST(CALL(cuArray3DCreate_v2)(&array, &wanted));
    MUST(CALL(cuMemCreate)(&handle, 4 * MIB, &here, 0));
    CUarrayMapInfo tile = {.resourceType = CU_RESOURCE_TYPE_ARRAY,
                           .resource.array = array,
                           .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
                           .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
                           .memHandle.memHandle = handle,
                           .deviceBitMask = 1};
    MUST(CALL(cuMemMapArrayAsync_ptsz)(&tile, 1, THREADS));
    MUST(CALL(cuMemRelease)(handle));
    step("tile_ptsz");
    MUST(CALL(cuArrayDestroy)(array));
    step("tile_gone");
}

/* A context that ends without its memory having been freed. */
static void later_contexts(void)
{
    CUcontext other;
    CUdeviceptr pointer;
    MUST(CALL(cuCtxCreate_v3)(&other, NULL, 0, 0, 0));
    MUST(CALL(cuMemAlloc_v2)(&pointer, 16 * MIB));
    step("context_v3");
    MUST(CALL(cuCtxDestroy)(other));
    step("context_v3_gone");
    MUST(CALL(cuCtxCreate_v4)(&other, NULL, 0, 0));
    MUST(CALL(cuMemAlloc_v2)(&pointer, 24 * MIB));
    step("context_v4");
    MUST(CALL(cuCtxDestroy_v2)(other));
    step("context_v4_gone");
    MUST(CALL(cuCtxSetCurrent)(context));
    MUST(CALL(cuMemAlloc_v2)(&pointer, 8 * MIB));
    step("before_reset");
    MUST(CALL(cuDevicePrimaryCtxReset)(0));
    MUST(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
    MUST(CALL(cuCtxSetCurrent)(context));
    step("reset_v1");
    MUST(CALL(cuMemAlloc_v2)(&pointer, 12 * MIB));
    step("before_release");
    MUST(CALL(cuDevicePrimaryCtxRelease)(0));
    MUST(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
    MUST(CALL(cuCtxSetCurrent)(context));
    step("released_v1");
}

static void take(const char *text)
{
    CUipcMemHandle handle;
    CUdeviceptr pointer;
    for (size_t i = 0; i < sizeof(handle); i++) {
        unsigned int byte;
        MUST(sscanf(text + 2 * i, "%2x", &byte) != 1);
        handle.reserved[i] = (char)byte;
    }
    int result =
        (int)CALL(cuIpcOpenMemHandle)(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        step("refused");
        return;
    }
    MUST(result);
    step("taken");
    MUST(CALL(cuIpcCloseMemHandle)(pointer));
    step("closed");
}

int main(int argc, char **argv)
{
    begin();
    if (argc > 2) {
        if (!strcmp(argv[1], "node"))
            graph_node(atoi(argv[2]));
        else
            take(argv[2]);
        return 0;
    }
    first_question();
    first_arrays();
    threads_stream();
    piece_of_a_destroyed_pool();
    captures();
    sparse_array();
    later_contexts();
    return 0;
}
