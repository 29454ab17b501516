/* SPDX-License-Identifier: Apache-2.0
 *
 * What graphs keep and what captures take: test_sim_graph_programs.py and test_shim_graphs.py. Ends
 * with a sentence and status 1 at the first thing that is wrong.
 * usage: sim-graphs arguments|boxes|children
 */
#include "must.h"

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#ifdef COUNTED
size_t __sanitizer_get_current_allocated_bytes(void); /* not every compiler has its header */
#endif

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s is not so\n", __FILE__, __LINE__, #condition);              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const char module_text[] =
    ".version 6.3\n.target sm_75\n"
    ".visible .entry qgpu_work(.param .u64 n)\n{ ret; }\n"
    ".visible .entry mixed(.param .u8 a, .param .u64 b, .param .u32 c,"
    " .param .align 8 .b8 d[24])\n{ ret; }\n"
    ".visible .entry none()\n{ ret; }\n";

static CUfunction work, mixed, none;
static CUstream stream;
static CUcontext contexts[2]; /* the second one: of another card, if there is one */
static CUdeviceptr memory, other;
#define MEMORY 65536u
#define PITCH  256u

struct mixed { /* arguments of that kernel */
    uint8_t a;
    uint64_t b;
    uint32_t c;
    uint64_t d[3];
};

static void begin(void)
{
    CUmodule module;
    int cards;
    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&cards));
    for (int i = 0; i < cards && i < 2; i++) {
        MUST(cuDevicePrimaryCtxRetain(&contexts[i], i));
        MUST(cuCtxSetCurrent(contexts[i]));
        MUST(cuMemAlloc(i ? &other : &memory, MEMORY));
    }
    MUST(cuCtxSetCurrent(contexts[0]));
    MUST(cuModuleLoadData(&module, module_text));
    MUST(cuModuleGetFunction(&work, module, "qgpu_work"));
    MUST(cuModuleGetFunction(&mixed, module, "mixed"));
    MUST(cuModuleGetFunction(&none, module, "none"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void capture(void)
{
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static CUgraph captured(void)
{
    CUgraph graph;
    MUST(cuStreamEndCapture(stream, &graph));
    return graph;
}

static CUgraphExec ready(CUgraph graph)
{
    CUgraphExec exec;
    MUST(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

static void go(CUgraphExec exec)
{
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
}

static CUgraphNode node_of(CUgraph graph, size_t which, size_t count)
{
    CUgraphNode nodes[16];
    size_t n = 16;
    MUST(cuGraphGetNodes(graph, nodes, &n));
    CHECK(n == count && which < n);
    return nodes[which];
}

/* ---- arguments of kernels ---- */

static struct mixed some(unsigned seed)
{
    return (struct mixed){
        .a = (uint8_t)seed, .b = seed * 1000003ull, .c = seed + 7, .d = {seed, seed + 1, seed + 2}};
}

static void list(void *params[4], struct mixed *of)
{
    void *all[] = {&of->a, &of->b, &of->c, of->d};
    memcpy(params, all, sizeof all);
}

static bool are(void *const *params, unsigned seed)
{
    struct mixed wanted = some(seed);
    return params && *(uint8_t *)params[0] == wanted.a && *(uint64_t *)params[1] == wanted.b &&
           *(uint32_t *)params[2] == wanted.c && memcmp(params[3], wanted.d, sizeof wanted.d) == 0;
}

/* What a node says of its arguments; the program's own are gone by then. */
static void check_node(CUgraphNode node, unsigned seed)
{
    CUDA_KERNEL_NODE_PARAMS params;
    MUST(cuGraphKernelNodeGetParams(node, &params));
    CHECK(params.func == mixed && params.gridDimX == 2 && !params.extra);
    CHECK(are(params.kernelParams, seed));
}

static CUDA_KERNEL_NODE_PARAMS with(void **params)
{
    return (CUDA_KERNEL_NODE_PARAMS){.func = mixed,
                                     .gridDimX = 2,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 32,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = params};
}

static void launch_mixed(unsigned seed)
{
    struct mixed arguments = some(seed);
    void *params[4];
    list(params, &arguments);
    MUST(cuLaunchKernel(mixed, 2, 1, 1, 32, 1, 1, 0, stream, params, NULL));
    memset(&arguments, 0xee, sizeof arguments);
}

static void set_mixed(CUgraphNode node, CUgraphExec exec, unsigned seed)
{
    struct mixed arguments = some(seed);
    void *params[4];
    list(params, &arguments);
    CUDA_KERNEL_NODE_PARAMS all = with(params);
    MUST(exec ? cuGraphExecKernelNodeSetParams(exec, node, &all)
              : cuGraphKernelNodeSetParams(node, &all));
    memset(&arguments, 0xee, sizeof arguments);
}

/* A node that is made, captured, cloned, changed, and changed with what it said itself. */
static void arguments_of_lists(void)
{
    CUgraph graph, clone;
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS params;
    CUgraphExecUpdateResultInfo info;
    capture();
    launch_mixed(1);
    graph = captured();
    node = node_of(graph, 0, 1);
    check_node(node, 1);
    MUST(cuGraphClone(&clone, graph));
    CUgraphExec exec = ready(graph);
    set_mixed(node, NULL, 2);
    check_node(node, 2);
    check_node(node_of(clone, 0, 1), 1);
    MUST(cuGraphKernelNodeGetParams(node, &params));
    *(uint8_t *)params.kernelParams[0] = some(3).a; /* in place, and back */
    params.gridDimX = 2;
    MUST(cuGraphKernelNodeSetParams(node, &params));
    MUST(cuGraphKernelNodeGetParams(node, &params));
    CHECK(*(uint8_t *)params.kernelParams[0] == some(3).a);
    set_mixed(node, exec, 4); /* the graph keeps its own */
    CHECK(*(uint8_t *)params.kernelParams[0] == some(3).a);
    MUST(cuGraphExecUpdate(exec, clone, &info));
    go(exec);
    params.gridDimX = 0; /* refused: nothing changes */
    CHECK(cuGraphKernelNodeSetParams(node, &params) == CUDA_ERROR_INVALID_VALUE);
    MUST(cuGraphKernelNodeGetParams(node, &params));
    CHECK(params.gridDimX == 2 && params.kernelParams);
    MUST(cuGraphDestroy(graph));
    go(exec);
    check_node(node_of(clone, 0, 1), 1);
    MUST(cuGraphDestroy(clone));
    MUST(cuGraphExecDestroy(exec));
}

static void arguments_of_buffers(void)
{
    struct mixed arguments = some(5);
    size_t size = sizeof arguments;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    CUgraph graph, clone;
    CUDA_KERNEL_NODE_PARAMS params;
    capture();
    MUST(cuLaunchKernel(mixed, 2, 1, 1, 32, 1, 1, 0, stream, NULL, extra));
    MUST(cuLaunchKernel(none, 2, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    graph = captured();
    memset(&arguments, 0xee, sizeof arguments);
    size = 0;
    MUST(cuGraphClone(&clone, graph));
    MUST(cuGraphDestroy(graph));
    MUST(cuGraphKernelNodeGetParams(node_of(clone, 0, 2), &params));
    CHECK(!params.kernelParams && params.extra && params.extra[0] == extra[0] &&
          params.extra[2] == extra[2] && params.extra[4] == extra[4]);
    arguments = some(5);
    CHECK(*(size_t *)params.extra[3] == sizeof arguments &&
          ((struct mixed *)params.extra[1])->b == arguments.b &&
          memcmp(((struct mixed *)params.extra[1])->d, arguments.d, sizeof arguments.d) == 0);
    MUST(cuGraphKernelNodeGetParams(node_of(clone, 1, 2), &params));
    CHECK(params.func == none && !params.kernelParams && !params.extra);
    MUST(cuGraphDestroy(clone));
}

static void arguments(void)
{
    arguments_of_lists();
    arguments_of_buffers();
#ifdef COUNTED /* what was taken is given back */
    size_t before = __sanitizer_get_current_allocated_bytes();
    for (unsigned i = 0; i < 100; i++) {
        arguments_of_lists();
        arguments_of_buffers();
    }
    CHECK(__sanitizer_get_current_allocated_bytes() == before);
#endif
}

/* ---- boxes, rows, and between cards ---- */

static uint8_t host[MEMORY], read_back[MEMORY];

static void read_all(CUdeviceptr from)
{
    MUST(cuMemcpyDtoH(read_back, from, MEMORY));
}

static void boxes_and_rows(void)
{
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = host,
                          .srcPitch = 8,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = memory,
                          .dstPitch = PITCH,
                          .dstXInBytes = 4,
                          .dstY = 1,
                          .WidthInBytes = 8,
                          .Height = 3};
    CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = memory,
                         .srcPitch = PITCH,
                         .srcHeight = 8,
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                         .dstDevice = memory,
                         .dstPitch = PITCH,
                         .dstHeight = 8,
                         .dstZ = 4,
                         .WidthInBytes = 16,
                         .Height = 8,
                         .Depth = 2},
                  seen;
    CUDA_MEMSET_NODE_PARAMS fill;
    for (unsigned i = 0; i < MEMORY; i++)
        host[i] = (uint8_t)(i + 1);
    MUST(cuMemsetD8(memory, 0, MEMORY));
    MUST(cuCtxSynchronize());
    capture();
    MUST(cuMemcpy2DAsync(&rows, stream));
    MUST(cuMemsetD2D16Async(memory + PITCH * 8, PITCH, 0x0102, 4, 2, stream));
    MUST(cuMemcpy3DAsync(&box, stream));
    box.Depth = 1000;
    CHECK(cuMemcpy3DAsync(&box, stream) == CUDA_ERROR_INVALID_VALUE); /* beyond the memory */
    CHECK(cuMemsetD2D8Async(memory, 4, 0, 8, 2, stream) == CUDA_ERROR_INVALID_VALUE);
    CUgraph graph = captured();
    read_all(memory);
    CHECK(!read_back[PITCH + 4]);
    MUST(cuGraphMemcpyNodeGetParams(node_of(graph, 0, 3), &seen));
    CHECK(seen.srcHost == host && seen.dstDevice == memory && seen.dstPitch == PITCH &&
          seen.dstXInBytes == 4 && seen.dstY == 1 && seen.Height == 3 && seen.Depth == 1);
    MUST(cuGraphMemsetNodeGetParams(node_of(graph, 1, 3), &fill));
    CHECK(fill.dst == memory + PITCH * 8 && fill.pitch == PITCH && fill.elementSize == 2 &&
          fill.value == 0x0102 && fill.width == 4 && fill.height == 2);
    MUST(cuGraphMemcpyNodeGetParams(node_of(graph, 2, 3), &seen));
    CHECK(seen.dstZ == 4 && seen.srcHeight == 8 && seen.Depth == 2 && seen.WidthInBytes == 16);
    CUgraphExec exec = ready(graph);
    go(exec);
    read_all(memory);
    for (unsigned copy = 0; copy < 2; copy++) { /* rows where they went, and in the box */
        const uint8_t *at = read_back + copy * 4 * 8 * PITCH;
        CHECK(at[PITCH + 4] == 1 && at[3 * PITCH + 11] == 24 && !at[PITCH + 12] && !at[4]);
        CHECK(at[PITCH * 8] == 2 && at[PITCH * 9 + 7] == 1 && !at[PITCH * 10]);
    }
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

static void between_cards(void)
{
    CUDA_MEMCPY3D seen;
    CUDA_MEMCPY3D_PEER box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                              .srcDevice = other,
                              .srcContext = contexts[1],
                              .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                              .dstDevice = memory,
                              .dstContext = contexts[0],
                              .dstXInBytes = 1024,
                              .dstPitch = 2048,
                              .WidthInBytes = 512,
                              .Height = 2,
                              .Depth = 1};
    MUST(cuMemsetD8(memory, 0x11, MEMORY));
    MUST(cuMemsetD8(other, 0x22, MEMORY));
    MUST(cuCtxSynchronize());
    capture();
    MUST(cuMemcpyPeerAsync(memory, contexts[0], other, contexts[1], 512, stream));
    MUST(cuMemcpy3DPeerAsync(&box, stream));
    CUgraph graph = captured();
    MUST(cuGraphMemcpyNodeGetParams(node_of(graph, 0, 2), &seen));
    CHECK(seen.dstDevice == memory && seen.srcDevice == other && seen.WidthInBytes == 512 &&
          seen.Height == 1);
    MUST(cuGraphMemcpyNodeGetParams(node_of(graph, 1, 2), &seen));
    CHECK(seen.dstXInBytes == 1024 && seen.dstPitch == 2048 && seen.Height == 2);
    CUgraphExec exec = ready(graph);
    go(exec);
    read_all(memory);
    CHECK(read_back[511] == 0x22 && read_back[512] == 0x11 && read_back[1024] == 0x22 &&
          read_back[1536] == 0x11 && read_back[3072 + 511] == 0x22);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

/* What is gone since moves no more, and harms nothing. */
static void gone(void)
{
    CUdeviceptr short_lived;
    MUST(cuMemAlloc(&short_lived, MEMORY));
    capture();
    MUST(cuMemcpyAsync(short_lived, (CUdeviceptr)(uintptr_t)host, 64, stream));
    MUST(cuMemcpyAsync((CUdeviceptr)(uintptr_t)host, short_lived, 64, stream));
    MUST(cuMemsetD8Async(short_lived, 1, 64, stream));
    CUgraph graph = captured();
    CUgraphExec exec = ready(graph);
    MUST(cuMemFree(short_lived));
    go(exec);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

/* ---- launches into captures ---- */

static void launch_work(uint64_t n)
{
    void *params[] = {&n};
    MUST(cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static void children(void)
{
    CUgraph inner, outer, found;
    CUgraphNodeType type;
    capture();
    launch_mixed(6);
    MUST(cuMemsetD8Async(memory, 0x33, 16, stream));
    inner = captured();
    CUgraphExec exec = ready(inner);
    set_mixed(node_of(inner, 0, 2), exec, 7);
    MUST(cuGraphDestroy(inner));
    MUST(cuMemsetD8(memory, 0, MEMORY));
    capture();
    launch_work(1000);
    MUST(cuGraphLaunch(exec, stream));
    launch_work(2000);
    MUST(cuGraphLaunch(exec, stream));
    outer = captured();
    MUST(cuGraphExecDestroy(exec)); /* the child is a copy */
    CUgraphNode child = node_of(outer, 1, 4), after;
    size_t n = 1;
    MUST(cuGraphNodeGetType(child, &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_GRAPH);
    MUST(cuGraphNodeGetDependentNodes(child, &after, NULL, &n));
    CHECK(n == 1 && after == node_of(outer, 2, 4));
    MUST(cuGraphChildGraphNodeGetGraph(child, &found));
    check_node(node_of(found, 0, 2), 7);
    read_all(memory);
    CHECK(!read_back[0]);
    exec = ready(outer);
    go(exec);
    read_all(memory);
    CHECK(read_back[15] == 0x33 && !read_back[16]);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(outer));
}

/* Memory of a graph belongs to one graph. */
static void child_with_memory(void)
{
    CUdeviceptr taken;
    CUgraph graph;
    capture();
    MUST(cuMemAllocAsync(&taken, 1 << 21, stream));
    MUST(cuMemFreeAsync(taken, stream));
    graph = captured();
    CUgraphExec exec = ready(graph);
    capture();
    CHECK(cuGraphLaunch(exec, stream) == CUDA_ERROR_NOT_SUPPORTED);
    MUST(cuGraphDestroy(captured()));
    go(exec);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    begin();
    if (strcmp(argv[1], "arguments") == 0) {
        arguments();
    } else if (strcmp(argv[1], "boxes") == 0) {
        boxes_and_rows();
        gone();
        if (other)
            between_cards();
    } else {
        children();
        child_with_memory();
    }
    MUST(cuCtxSynchronize());
    puts(other ? "two cards" : "one card");
    return 0;
}
