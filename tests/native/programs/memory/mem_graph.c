/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory nodes of graphs: charged when the driver reserves, kept until it is trimmed. `mem_graph
 * gate` launches them at a gate that the test closes.
 */
#include <pthread.h>

#include "../leave.h"
#include "step.h"

static CUDA_MEM_ALLOC_NODE_PARAMS node_of(size_t bytes)
{
    return (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
        .bytesize = bytes};
}

static CUgraph graph_of(size_t bytes)
{
    CUgraph graph;
    CUgraphNode node, end;
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = node_of(bytes);
    MUST(CALL(cuGraphCreate)(&graph, 0));
    MUST(CALL(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &wanted));
    MUST(CALL(cuGraphAddMemFreeNode)(&end, graph, &node, 1, wanted.dptr));
    return graph;
}

static uint64_t reserved(void)
{
    uint64_t value;
    MUST(CALL(cuDeviceGetGraphMemAttribute)(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value));
    return value;
}

static void nodes(void)
{
    CUgraphExec exec, larger, too_large;
    CUgraph graph = graph_of(40 * MIB), two = graph_of(60 * MIB), three = graph_of(260 * MIB);
    step("nodes");
    MUST(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    step("instantiated");
    MUST(CALL(cuGraphLaunch)(exec, stream));
    MUST(CALL(cuStreamSynchronize)(stream));
    MUST(reserved() != 40 * MIB);
    step("launched");
    MUST(CALL(cuGraphLaunch)(exec, stream));
    MUST(CALL(cuStreamSynchronize)(stream));
    step("launched_again");
    MUST(CALL(cuGraphExecDestroy)(exec));
    step("destroyed"); /* the device's graph memory is as large as before */
    MUST(CALL(cuGraphInstantiateWithFlags)(&larger, two, 0));
    MUST(CALL(cuGraphUpload)(larger, stream));
    step("uploaded"); /* grows by the difference */
    MUST(CALL(cuGraphInstantiateWithFlags)(&too_large, three, 0));
    REFUSED(CALL(cuGraphLaunch)(too_large, stream));
    step("refused");
    MUST(CALL(cuGraphExecDestroy)(too_large));
    MUST(CALL(cuGraphExecDestroy)(larger));
    MUST(CALL(cuDeviceGraphMemTrim)(0));
    step("trimmed");
    MUST(CALL(cuGraphDestroy)(graph));
    MUST(CALL(cuGraphDestroy)(two));
    MUST(CALL(cuGraphDestroy)(three));
}

static void captured(void)
{
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr a;
    MUST(CALL(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(CALL(cuMemAllocAsync)(&a, 30 * MIB, stream));
    MUST(CALL(cuMemsetD8Async)(a, 1, 30 * MIB, stream));
    MUST(CALL(cuMemFreeAsync)(a, stream));
    MUST(CALL(cuStreamEndCapture)(stream, &graph));
    MUST(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    step("captured");
    MUST(CALL(cuGraphLaunch)(exec, stream));
    MUST(CALL(cuStreamSynchronize)(stream));
    step("captured_launched");
    MUST(CALL(cuGraphExecDestroy)(exec));
    MUST(CALL(cuGraphDestroy)(graph));
    MUST(CALL(cuMemAlloc_v2)(&a, 240 * MIB)); /* needs what the graphs keep for nothing */
    step("gave_back");
    MUST(CALL(cuMemFree_v2)(a));
    step("end");
}

/* Memory of the host beside the card's. */
static void captured_from_host(void)
{
    CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .location = {.type = CU_MEM_LOCATION_TYPE_HOST}};
    CUmemoryPool host;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr a, b;
    MUST(CALL(cuMemPoolCreate)(&host, &wanted));
    for (int both = 0; both < 2; both++) {
        MUST(CALL(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        if (both)
            MUST(CALL(cuMemAllocAsync)(&b, 20 * MIB, stream));
        MUST(CALL(cuMemAllocFromPoolAsync)(&a, 512 * MIB, host, stream));
        MUST(CALL(cuMemFreeAsync)(a, stream));
        if (both)
            MUST(CALL(cuMemFreeAsync)(b, stream));
        MUST(CALL(cuStreamEndCapture)(stream, &graph));
        MUST(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0));
        MUST(CALL(cuGraphLaunch)(exec, stream));
        MUST(CALL(cuStreamSynchronize)(stream));
        step(both ? "host_and_card" : "host_launched");
        MUST(CALL(cuGraphExecDestroy)(exec));
        MUST(CALL(cuGraphDestroy)(graph));
    }
    MUST(CALL(cuDeviceGraphMemTrim)(0));
    MUST(CALL(cuMemPoolDestroy)(host));
    step("host_gone");
}

/* The same nodes by the call for all kinds of nodes, and reserved when the graph is instantiated.
 */
static void uploaded_at_once(void)
{
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node, end;
    CUgraphNodeParams takes = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                               .alloc = {.poolProps = node_of(0).poolProps, .bytesize = 50 * MIB}};
    CUgraphNodeParams gives = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE};
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
                                         .hUploadStream = stream};
    MUST(CALL(cuGraphCreate)(&graph, 0));
    MUST(CALL(cuGraphAddNode)(&node, graph, NULL, 0, &takes));
    gives.free.dptr = takes.alloc.dptr;
    MUST(CALL(cuGraphAddNode_v2)(&end, graph, &node, NULL, 1, &gives));
    MUST(CALL(cuGraphInstantiateWithParams)(&exec, graph, &how));
    MUST(CALL(cuStreamSynchronize)(stream));
    step("with_params");
    MUST(CALL(cuGraphExecDestroy)(exec));
    MUST(CALL(cuGraphInstantiate)(&exec, graph, NULL, NULL, 0));
    MUST(CALL(cuGraphExecDestroy)(exec));
    MUST(CALL(cuGraphDestroy)(graph));
    MUST(CALL(cuDeviceGraphMemTrim)(0));
    step("with_params_gone");
}

/* Graphs that moved into others with their nodes, much deeper than anybody nests them. */
static CUgraph nest(size_t bytes, int depth)
{
    CUgraph inner = graph_of(bytes);
    for (int i = 0; i < depth; i++) {
        CUgraph outer;
        CUgraphNode node;
        CUgraphNodeParams child = {
            .type = CU_GRAPH_NODE_TYPE_GRAPH,
            .graph = {.graph = inner, .ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE}};
        MUST(CALL(cuGraphCreate)(&outer, 0));
        MUST(CALL(cuGraphAddNode_v2)(&node, outer, NULL, NULL, 0, &child));
        inner = outer;
    }
    return inner;
}

static void nested(int depth)
{
    CUgraph graph = nest(20 * MIB, depth), large = nest(260 * MIB, depth);
    CUgraphExec exec, too_large;
    MUST(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    MUST(CALL(cuGraphLaunch)(exec, stream));
    MUST(CALL(cuStreamSynchronize)(stream));
    step("nested");
    MUST(CALL(cuGraphInstantiateWithFlags)(&too_large, large, 0));
    REFUSED(CALL(cuGraphLaunch)(too_large, stream));
    MUST(CALL(cuGraphExecDestroy)(too_large));
    MUST(CALL(cuGraphExecDestroy)(exec));
    MUST(CALL(cuGraphDestroy)(graph));
    MUST(CALL(cuGraphDestroy)(large));
    MUST(CALL(cuDeviceGraphMemTrim)(0));
    step("nested_gone");
}

/* ---- at a closed gate ---- */

static void *launches(void *exec)
{
    MUST(CALL(cuCtxSetCurrent)(context));
    return (void *)(intptr_t)CALL(cuGraphLaunch)((CUgraphExec)exec, stream);
}

static void *uploads(void *exec)
{
    MUST(CALL(cuCtxSetCurrent)(context));
    return (void *)(intptr_t)CALL(cuGraphUpload)((CUgraphExec)exec, stream);
}

static void *instantiates(void *graph)
{
    CUgraphExec exec;
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
                                         .hUploadStream = stream};
    MUST(CALL(cuCtxSetCurrent)(context));
    return (void *)(intptr_t)CALL(cuGraphInstantiateWithParams)(&exec, (CUgraph)graph, &how);
}

/* While one thread stands there another takes what is left under the cap: 200 of 256 MiB, beside
 * 100 of the graph. */
static void beside(void *(*body)(void *), void *what)
{
    pthread_t thread;
    CUdeviceptr rest;
    void *answer;
    step("closed");
    MUST(pthread_create(&thread, NULL, body, what));
    step("standing");
    MUST(CALL(cuMemAlloc_v2)(&rest, 200 * MIB));
    step("beside");
    MUST(pthread_join(thread, &answer));
    REFUSED((intptr_t)answer);
    MUST(CALL(cuMemFree_v2)(rest));
    step("refused");
}

static void at_the_gate(void)
{
    CUgraphExec exec;
    CUgraph graph = graph_of(100 * MIB);
    MUST(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    beside(launches, exec);
    beside(uploads, exec);
    beside(instantiates, graph);
    step("closed");
    if (!sigsetjmp(leave_to, 1)) {
        leave_after_ms(50);
        MUST(CALL(cuGraphLaunch)(exec, stream) == CUDA_SUCCESS);
    }
    step("jumped");
    MUST(CALL(cuGraphLaunch)(exec, stream));
    MUST(CALL(cuStreamSynchronize)(stream));
    step("launched");
}

int main(int argc, char **argv)
{
    begin();
    if (argc == 2 && !strcmp(argv[1], "gate")) {
        at_the_gate();
        return 0;
    }
    nodes();
    nested(1);
    nested(12);
    uploaded_at_once();
    captured_from_host();
    captured();
    return 0;
}
