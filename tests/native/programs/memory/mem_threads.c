/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of one process that take and return memory of every kind at once, each in an order of its
 * own; some also ask, trim and make contexts meanwhile. What one thread is refused another one
 * holds, so that refusals are part of it. After each round all is returned, and ledger and card
 * must say so.
 */
#include <pthread.h>
#include <stdbool.h>

#include "step.h"

#define THREADS 8
#define MOST    80

static CUdevice device;
static CUmemoryPool shared_pool;
static CUlibrary common;
static unsigned long turns, admitted[THREADS], refused[THREADS];

struct thread {
    unsigned int number;
    uint64_t random;
    CUstream stream;
};

static uint64_t draw(struct thread *me, uint64_t below)
{
    me->random = me->random * 6364136223846793005u + 1442695040888963407u;
    return (me->random >> 33) % below;
}

static size_t size_of(struct thread *me)
{
    return (1 + draw(me, MOST)) * MIB;
}

/* Whether there was room; anything but that and its lack is a fault. */
static bool got(struct thread *me, CUresult result)
{
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        refused[me->number]++;
        return false;
    }
    MUST(result);
    admitted[me->number]++;
    return true;
}

static void plain(struct thread *me)
{
    CUdeviceptr at;
    size_t pitch, room, total;
    if (got(me, CALL(cuMemAlloc_v2)(&at, size_of(me)))) {
        MUST(CALL(cuMemGetInfo_v2)(&room, &total));
        MUST(room > total);
        MUST(CALL(cuMemFree_v2)(at));
    }
    if (got(me, CALL(cuMemAllocPitch_v2)(&at, &pitch, 100 + draw(me, 5000), 1 + draw(me, 500), 4)))
        MUST(CALL(cuMemFree_v2)(at));
    if (got(me, CALL(cuMemAllocManaged)(&at, size_of(me), CU_MEM_ATTACH_GLOBAL)))
        MUST(CALL(cuMemFree_v2)(at));
}

static void arrays(struct thread *me)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1 + draw(me, 2048),
                                     .Height = 1 + draw(me, 1024),
                                     .Format = CU_AD_FORMAT_FLOAT,
                                     .NumChannels = 1};
    CUarray array;
    CUmipmappedArray levels;
    if (got(me, CALL(cuArray3DCreate_v2)(&array, &shape)))
        MUST(CALL(cuArrayDestroy)(array));
    if (got(me, CALL(cuMipmappedArrayCreate)(&levels, &shape, 2)))
        MUST(CALL(cuMipmappedArrayDestroy)(levels));
}

static void asynchronous(struct thread *me)
{
    CUdeviceptr at;
    bool from_shared = draw(me, 2);
    CUresult result = from_shared
                          ? CALL(cuMemAllocFromPoolAsync)(&at, size_of(me), shared_pool, me->stream)
                          : CALL(cuMemAllocAsync)(&at, size_of(me), me->stream);
    if (got(me, result))
        MUST(draw(me, 2) ? CALL(cuMemFreeAsync)(at, me->stream) : CALL(cuMemFree_v2)(at));
    if (draw(me, 4) == 0)
        MUST(CALL(cuMemPoolTrimTo)(shared_pool, 0));
    if (draw(me, 4) == 0)
        MUST(CALL(cuStreamSynchronize)(me->stream));
}

static void own_pool(struct thread *me)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemoryPool pool;
    CUdeviceptr at;
    MUST(CALL(cuMemPoolCreate)(&pool, &props));
    bool piece = got(me, CALL(cuMemAllocFromPoolAsync)(&at, size_of(me), pool, me->stream));
    bool early = piece && draw(me, 2);
    if (early)
        MUST(CALL(cuMemPoolDestroy)(pool)); /* the piece stays */
    if (piece)
        MUST(CALL(cuMemFreeAsync)(at, me->stream));
    MUST(CALL(cuStreamSynchronize)(me->stream));
    if (!early)
        MUST(CALL(cuMemPoolDestroy)(pool));
}

static void mapped(struct thread *me)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    size_t size = size_of(me) & ~(2 * MIB - 1);
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr range;
    size = size ? size : 2 * MIB;
    if (!got(me, CALL(cuMemCreate)(&handle, size, &prop, 0)))
        return;
    MUST(CALL(cuMemAddressReserve)(&range, size, 0, 0, 0));
    MUST(CALL(cuMemMap)(range, size, 0, handle, 0));
    MUST(CALL(cuMemRetainAllocationHandle)(&again, (void *)range));
    MUST(CALL(cuMemRelease)(handle));
    if (draw(me, 2)) {
        MUST(CALL(cuMemRelease)(again));
        MUST(CALL(cuMemUnmap)(range, size));
    } else {
        MUST(CALL(cuMemUnmap)(range, size));
        MUST(CALL(cuMemRelease)(again));
    }
    MUST(CALL(cuMemAddressFree)(range, size));
}

static void graph_memory(struct thread *me)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
        .bytesize = size_of(me)};
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode alloc, release;
    MUST(CALL(cuGraphCreate)(&graph, 0));
    MUST(CALL(cuGraphAddMemAllocNode)(&alloc, graph, NULL, 0, &params));
    MUST(CALL(cuGraphAddMemFreeNode)(&release, graph, &alloc, 1, params.dptr));
    MUST(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    if (got(me, CALL(cuGraphLaunch)(exec, me->stream)))
        MUST(CALL(cuStreamSynchronize)(me->stream));
    MUST(CALL(cuGraphExecDestroy)(exec));
    MUST(CALL(cuGraphDestroy)(graph));
    MUST(CALL(cuDeviceGraphMemTrim)(device));
}

static const char *text_of(struct thread *me, char text[512])
{
    snprintf(text, 512,
             ".version 8.0\n.target sm_90\n.address_size 64\n"
             ".visible .global .b8 table[%zu];\n.visible .entry work() { ret; }\n",
             size_of(me) + 2 * MIB - 4096);
    return text;
}

static void modules(struct thread *me)
{
    char text[512];
    CUmodule module;
    if (got(me, CALL(cuModuleLoadData)(&module, text_of(me, text))))
        MUST(CALL(cuModuleUnload)(module));
}

static void libraries(struct thread *me)
{
    char text[512];
    CUlibrary library;
    CUkernel kernel;
    CUdeviceptr table;
    MUST(CALL(cuLibraryLoadData)(&library, text_of(me, text), NULL, NULL, 0, NULL, NULL, 0));
    if (got(me, CALL(cuLibraryGetKernel)(&kernel, library, "work")))
        MUST(CALL(cuLaunchKernel)((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, me->stream, NULL, NULL));
    got(me, CALL(cuLibraryGetGlobal)(&table, NULL, common, "table"));
    MUST(CALL(cuStreamSynchronize)(me->stream));
    MUST(CALL(cuLibraryUnload)(library));
}

static void limits(struct thread *me)
{
    got(me, CALL(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, size_of(me)));
}

/* Memory that ends with its context. */
static void other_context(struct thread *me)
{
    CUcontext other;
    CUdeviceptr at;
    if (draw(me, 8))
        return;
    MUST(CALL(cuCtxCreate_v2)(&other, 0, device));
    got(me, CALL(cuMemAlloc_v2)(&at, size_of(me)));
    MUST(CALL(cuCtxDestroy_v2)(other));
    MUST(CALL(cuCtxSetCurrent)(context));
}

static void *work(void *argument)
{
    static void (*const kinds[])(struct thread *) = {plain,  arrays,       asynchronous, own_pool,
                                                     mapped, graph_memory, modules,      libraries,
                                                     limits, other_context};
    struct thread *me = argument;
    MUST(CALL(cuCtxSetCurrent)(context));
    for (unsigned long turn = 0; turn < turns; turn++)
        kinds[draw(me, sizeof(kinds) / sizeof(*kinds))](me);
    MUST(CALL(cuStreamSynchronize)(me->stream));
    return NULL;
}

static void together(struct thread threads[])
{
    pthread_t ids[THREADS];
    for (unsigned int i = 0; i < THREADS; i++)
        MUST(pthread_create(&ids[i], NULL, work, &threads[i]));
    for (unsigned int i = 0; i < THREADS; i++)
        MUST(pthread_join(ids[i], NULL));
}

static void trimmed(void)
{
    CUmemoryPool pool;
    MUST(CALL(cuDeviceGetMemPool)(&pool, device));
    MUST(CALL(cuMemPoolTrimTo)(pool, 0));
    MUST(CALL(cuMemPoolTrimTo)(shared_pool, 0));
    MUST(CALL(cuDeviceGraphMemTrim)(device));
}

int main(int argc, char **argv)
{
    struct thread threads[THREADS];
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    turns = argc > 1 ? strtoul(argv[1], NULL, 10) : 100;
    begin();
    MUST(CALL(cuMemPoolCreate)(&shared_pool, &props));
    for (unsigned int i = 0; i < THREADS; i++) {
        threads[i] = (struct thread){.number = i, .random = 1 + i};
        MUST(CALL(cuStreamCreate)(&threads[i].stream, CU_STREAM_NON_BLOCKING));
    }
    for (int round = 0; round < 2; round++) {
        char text[512];
        MUST(CALL(cuLibraryLoadData)(&common, text_of(&threads[0], text), NULL, NULL, 0, NULL, NULL,
                                     0));
        together(threads);
        MUST(CALL(cuLibraryUnload)(common));
        MUST(CALL(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB));
        trimmed();
        step(round ? "second" : "first");
    }
    for (unsigned int i = 0; i < THREADS; i++)
        printf("%lu %lu\n", admitted[i], refused[i]);
    return 0;
}
