/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory nodes of graphs: charged when the driver reserves, kept until it is trimmed.
 */
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

int main(void)
{
    begin();
    nodes();
    captured();
    return 0;
}
