/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: one launch is one submission, whatever is in it. Made by hand and captured, cloned, with
 * children, updated.
 */
#include <stdbool.h>

#include "submit.h"

static void *params[] = {&length};
static volatile int called_times;

static void CUDA_CB called(void *data)
{
    (void)data;
    called_times++;
}

static CUgraphNode kernel_of(CUgraph graph, uint64_t ns, const CUgraphNode *after)
{
    CUgraphNode node;
    length = ns;
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = work,
                                      .gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 1,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = params};
    MUST(CALL(cuGraphAddKernelNode_v2)(&node, graph, after, after ? 1 : 0, &kernel));
    return node;
}

/* Two kernels, then a copy a → b beside a host function, then a fill of b's last MiB. */
static CUgraph by_hand(uint64_t ns, CUgraphNode *first)
{
    CUgraph graph;
    CUgraphNode second, copied, hosted, filled;
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = a,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = b,
                          .WidthInBytes = SIZE,
                          .Height = 1,
                          .Depth = 1};
    CUDA_HOST_NODE_PARAMS function = {.fn = called};
    CUDA_MEMSET_NODE_PARAMS fill = {
        .dst = b + 3 * MIB, .value = 9, .elementSize = 1, .width = MIB, .height = 1};
    MUST(CALL(cuGraphCreate)(&graph, 0));
    *first = kernel_of(graph, ns, NULL);
    second = kernel_of(graph, ns + 1, first);
    MUST(CALL(cuGraphAddMemcpyNode)(&copied, graph, &second, 1, &copy, context));
    MUST(CALL(cuGraphAddHostNode)(&hosted, graph, &second, 1, &function));
    MUST(CALL(cuGraphAddMemsetNode)(&filled, graph, &copied, 1, &fill, context));
    return graph;
}

static CUgraphExec ready(CUgraph graph)
{
    CUgraphExec exec;
    MUST(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    return exec;
}

#define LAUNCH(text, call, s, truth, ...)                                                          \
    do {                                                                                           \
        hold(s);                                                                                   \
        announce(text, "held", 1, 0, truth, __VA_ARGS__);                                          \
        MUST(call);                                                                                \
        done(s);                                                                                   \
    } while (0)
#define ALL "kernel:%d,kernel:%d,dtod:%zu,memset:%zu"

static void whole(const char *text, CUgraphExec exec, int ns, bool ptsz)
{
    int before = called_times;
    blank(b, 0xee);
    if (ptsz)
        LAUNCH(text, CALL(cuGraphLaunch_ptsz)(exec, stream), stream, ALL, ns, ns + 1, SIZE, MIB);
    else
        LAUNCH(text, CALL(cuGraphLaunch)(exec, stream), stream, ALL, ns, ns + 1, SIZE, MIB);
    MUST(called_times != before + 1);
    look(b, want, SIZE);
    right();
}

static void made_by_hand(void)
{
    CUgraphNode first, other_first, clone_first;
    CUgraph graph = by_hand(1000, &first), other = by_hand(3000, &other_first), clone, outer;
    CUgraphExec exec = ready(graph);
    CUgraphExecUpdateResultInfo info;
    CUDA_KERNEL_NODE_PARAMS kernel;
    memset(want + 3 * MIB, 9, MIB);
    whole("graph", exec, 1000, false);
    whole("graph_ptsz", exec, 1000, true);
    MUST(CALL(cuGraphExecUpdate_v2)(exec, other, &info));
    whole("updated", exec, 3000, false);
    MUST(CALL(cuGraphKernelNodeGetParams_v2)(first, &kernel));
    length = 5000;
    kernel.kernelParams = params;
    MUST(CALL(cuGraphExecKernelNodeSetParams_v2)(exec, first, &kernel));
    blank(b, 0xee);
    LAUNCH("node_changed", CALL(cuGraphLaunch)(exec, stream), stream, ALL, 5000, 3001, SIZE, MIB);
    look(b, want, SIZE);
    right();
    MUST(CALL(cuGraphClone)(&clone, other));
    whole("clone", ready(clone), 3000, false);
    MUST(CALL(cuGraphCreate)(&outer, 0));
    MUST(CALL(cuGraphAddChildGraphNode)(&clone_first, outer, NULL, 0, other));
    kernel_of(outer, 7000, &clone_first);
    blank(b, 0xee);
    LAUNCH("child", CALL(cuGraphLaunch)(ready(outer), stream), stream, ALL ",kernel:7000", 3000,
           3001, SIZE, MIB);
    look(b, want, SIZE);
    right();
    LAUNCH("upload", CALL(cuGraphUpload)(exec, stream), stream, "%s", "-");
    right();
    LAUNCH("upload_ptsz", CALL(cuGraphUpload_ptsz)(exec, stream), stream, "%s", "-");
    right();
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
                                         .hUploadStream = stream};
    LAUNCH("upload_at_once", CALL(cuGraphInstantiateWithParams)(&exec, graph, &how), stream, "%s",
           "-");
    right();
    LAUNCH("upload_at_once_ptsz", CALL(cuGraphInstantiateWithParams_ptsz)(&exec, graph, &how),
           stream, "%s", "-");
    right();
    MUST(CALL(cuGraphExecDestroy)(exec));
}

/* Each call of a capture passes a closed gate and is not counted; what comes of it is one launch.
 */
static CUgraph captured(CUstreamCaptureMode mode, CUstream second, CUevent event)
{
    CUgraph graph;
    length = 11000;
    announce("capture", "order", 0, 0, "-");
    MUST(CALL(cuStreamBeginCapture_v2)(stream, mode));
    MUST(CALL(cuLaunchKernel)(work, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    MUST(CALL(cuEventRecord)(event, stream));
    MUST(CALL(cuStreamWaitEvent)(second, event, 0));
    length = 12000;
    MUST(CALL(cuLaunchKernel)(work, 1, 1, 1, 1, 1, 1, 0, second, params, NULL));
    MUST(CALL(cuMemcpyDtoDAsync_v2)(b, a, SIZE, stream));
    MUST(CALL(cuMemsetD8Async)(b + 3 * MIB, 9, MIB, stream));
    MUST(CALL(cuLaunchHostFunc)(stream, called, NULL));
    MUST(CALL(cuEventRecord)(event, second));
    MUST(CALL(cuStreamWaitEvent)(stream, event, 0));
    MUST(CALL(cuStreamEndCapture)(stream, &graph));
    done(second);
    right();
    return graph;
}

static void made_by_capture(void)
{
    CUstream second;
    CUevent event;
    MUST(CALL(cuStreamCreate)(&second, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
        CUgraphExec exec = ready(captured((CUstreamCaptureMode)mode, second, event));
        int before = called_times;
        blank(b, 0xee);
        LAUNCH("captured", CALL(cuGraphLaunch)(exec, stream), stream, ALL, 11000, 12000, SIZE, MIB);
        MUST(called_times != before + 1);
        look(b, want, SIZE);
        right();
    }
}

int main(void)
{
    begin();
    made_by_hand();
    made_by_capture();
    return 0;
}
