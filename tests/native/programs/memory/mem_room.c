/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes MIB of a card in one way: mem_room WAY MIB. It says `ready`, takes the memory after the
 * first line of input, prints the driver's result, and ends after the second line.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include <cuda.h>

#include "../must.h"

static void *cuda;
static CUcontext context;
static CUstream stream;
static size_t bytes;
static CUdeviceptr pointer;
static CUgraphExec exec;
static CUgraph graph;

#define CALL(name) ((__typeof__(&name))dlsym(cuda, #name))

static int plain(void)
{
    return CALL(cuMemAlloc_v2)(&pointer, bytes);
}

static int pitch(void)
{
    size_t found;
    return CALL(cuMemAllocPitch_v2)(&pointer, &found, 1 << 20, bytes >> 20, 4);
}

static int managed(void)
{
    return CALL(cuMemAllocManaged)(&pointer, bytes, CU_MEM_ATTACH_GLOBAL);
}

static int create(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp of = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    return CALL(cuMemCreate)(&handle, bytes, &of, 0);
}

static int async(void)
{
    return CALL(cuMemAllocAsync)(&pointer, bytes, stream);
}

static int from_pool(void)
{
    CUmemoryPool pool;
    CUmemPoolProps of = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                         .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    MUST(CALL(cuMemPoolCreate)(&pool, &of));
    return CALL(cuMemAllocFromPoolAsync)(&pointer, bytes, pool, stream);
}

static int array(void)
{
    CUarray made;
    CUDA_ARRAY3D_DESCRIPTOR of = {.Width = 1 << 10,
                                  .Height = 1 << 10,
                                  .Depth = bytes >> 20,
                                  .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                  .NumChannels = 1};
    return CALL(cuArray3DCreate_v2)(&made, &of);
}

static int mipmap(void)
{
    CUmipmappedArray made;
    CUDA_ARRAY3D_DESCRIPTOR of = {.Width = 1 << 10,
                                  .Height = 1 << 10,
                                  .Depth = bytes >> 20,
                                  .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                  .NumChannels = 1};
    return CALL(cuMipmappedArrayCreate)(&made, &of, 1);
}

static void make_graph(void)
{
    CUgraphNode node, end;
    CUDA_MEM_ALLOC_NODE_PARAMS of = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = bytes};
    MUST(CALL(cuGraphCreate)(&graph, 0));
    MUST(CALL(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &of));
    MUST(CALL(cuGraphAddMemFreeNode)(&end, graph, &node, 1, of.dptr));
}

static int graph_launch(void)
{
    make_graph();
    MUST(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    return CALL(cuGraphLaunch)(exec, stream);
}

static int graph_upload(void)
{
    make_graph();
    MUST(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    return CALL(cuGraphUpload)(exec, stream);
}

static int graph_at_once(void)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
                                         .hUploadStream = stream};
    make_graph();
    return CALL(cuGraphInstantiateWithParams)(&exec, graph, &how);
}

/* An image with one large variable. */
static char *image(void)
{
    static char text[256];
    snprintf(text, sizeof(text),
             ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b8 "
             "large[%zu];\n.visible .entry work(.param .u64 n)\n{ ret; }\n",
             bytes);
    return text;
}

static int module(void)
{
    CUmodule made;
    return CALL(cuModuleLoadData)(&made, image());
}

static int library(void)
{
    CUlibrary made;
    CUmodule of;
    MUST(CALL(cuLibraryLoadData)(&made, image(), NULL, NULL, 0, NULL, NULL, 0));
    return CALL(cuLibraryGetModule)(&of, made);
}

static int limit(void)
{
    return CALL(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, bytes);
}

static int more_context(void)
{
    CUcontext more;
    return CALL(cuCtxCreate_v2)(&more, 0, 0);
}

static int primary(void)
{
    CUcontext more;
    return CALL(cuDevicePrimaryCtxRetain)(&more, 0);
}

static const struct {
    const char *name;
    int (*take)(void);
} ways[] = {{"plain", plain},
            {"pitch", pitch},
            {"managed", managed},
            {"create", create},
            {"async", async},
            {"from_pool", from_pool},
            {"array", array},
            {"mipmap", mipmap},
            {"graph_launch", graph_launch},
            {"graph_upload", graph_upload},
            {"graph_at_once", graph_at_once},
            {"module", module},
            {"library", library},
            {"limit", limit},
            {"context", more_context},
            {"primary", primary}};

int main(int argc, char **argv)
{
    char line[64];
    size_t way = 0;
    MUST(argc != 3);
    while (way < sizeof(ways) / sizeof(ways[0]) && strcmp(ways[way].name, argv[1]) != 0)
        way++;
    MUST(way == sizeof(ways) / sizeof(ways[0]));
    bytes = strtoul(argv[2], NULL, 10) << 20;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(!cuda);
    setvbuf(stdout, NULL, _IOLBF, 0);
    MUST(CALL(cuInit)(0));
    if (ways[way].take != primary) {
        MUST(CALL(cuCtxCreate_v2)(&context, 0, 0));
        MUST(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    }
    puts("ready");
    MUST(!fgets(line, sizeof(line), stdin));
    printf("%d\n", ways[way].take());
    MUST(!fgets(line, sizeof(line), stdin));
    return 0;
}
