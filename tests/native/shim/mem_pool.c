/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools: what the driver has reserved counts, and only that.
 */
#include "step.h"

static CUmemoryPool pool;

static void threshold(CUmemoryPool of, uint64_t bytes)
{
    MUST(CALL(cuMemPoolSetAttribute)(of, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

static void default_pool(void)
{
    CUdeviceptr a, b;
    MUST(CALL(cuMemAllocAsync)(&a, 1000, stream));
    step("first"); /* one chunk */
    MUST(CALL(cuMemAllocAsync)(&b, 4 * MIB, stream));
    step("fits");
    MUST(CALL(cuMemFreeAsync)(a, stream));
    MUST(CALL(cuMemFreeAsync)(b, stream));
    step("freed"); /* retained until somebody waits */
    MUST(CALL(cuStreamSynchronize)(stream));
    step("waited");
    threshold(pool, UINT64_MAX);
    MUST(CALL(cuMemAllocAsync)(&a, 64 * MIB, stream));
    MUST(CALL(cuMemFreeAsync)(a, stream));
    MUST(CALL(cuStreamSynchronize)(stream));
    step("kept");
    MUST(CALL(cuMemAllocAsync)(&a, 64 * MIB, stream));
    step("again");
    MUST(CALL(cuMemFree_v2)(a)); /* allowed for memory of a pool, too */
    step("kept_by_free");
    MUST(CALL(cuMemPoolTrimTo)(pool, 64 * MIB));
    step("trimmed_nothing");
    MUST(CALL(cuMemPoolTrimTo)(pool, 0));
    step("trimmed");
}

/* The cap: 256 MiB. */
static void at_the_cap(void)
{
    CUdeviceptr a, b, c;
    MUST(CALL(cuMemAllocAsync)(&a, 96 * MIB, stream));
    MUST(CALL(cuMemAllocAsync)(&b, 128 * MIB, stream));
    step("most");
    REFUSED(CALL(cuMemAllocAsync)(&c, 33 * MIB, stream));
    REFUSED(CALL(cuMemAlloc_v2)(&c, 33 * MIB));
    step("refused");
    MUST(CALL(cuMemFreeAsync)(a, stream));
    MUST(CALL(cuMemAllocAsync)(&c, 90 * MIB, stream)); /* out of what the pool has */
    step("served");
    MUST(CALL(cuMemFreeAsync)(c, stream));
    MUST(CALL(cuMemAlloc_v2)(&a, 100 * MIB)); /* the pool must give back what nobody uses */
    step("gave_back");
    MUST(CALL(cuMemFree_v2)(a));
    MUST(CALL(cuMemFreeAsync)(b, stream));
    MUST(CALL(cuMemPoolTrimTo)(pool, 0));
    step("cap_free");
}

static void own_pool(void)
{
    CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemoryPool own, now;
    CUdeviceptr a, b;
    uint64_t reserved;
    MUST(CALL(cuMemPoolCreate)(&own, &wanted));
    threshold(own, UINT64_MAX);
    MUST(CALL(cuMemAllocFromPoolAsync)(&a, 40 * MIB, own, stream));
    step("own");
    MUST(CALL(cuMemPoolGetAttribute)(own, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    MUST(reserved != 64 * MIB);
    MUST(CALL(cuDeviceSetMemPool)(0, own));
    MUST(CALL(cuMemAllocAsync)(&b, 20 * MIB, stream));
    step("current"); /* the rest of the chunk */
    MUST(CALL(cuMemFreeAsync)(a, stream));
    MUST(CALL(cuMemPoolDestroy)(own));
    MUST(CALL(cuDeviceGetMemPool)(&now, 0));
    MUST(now != pool);
    step("destroyed"); /* a piece lives on, and the card keeps its chunk */
    MUST(CALL(cuMemFreeAsync)(b, stream));
    MUST(CALL(cuStreamSynchronize)(stream));
    step("gone");
}

/* The same choice of a pool by place and kind (CUDA 13). */
static void pool_by_place(void)
{
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
    CUmemoryPool own;
    CUdeviceptr a;
    MUST(CALL(cuMemPoolCreate)(&own, &wanted));
    MUST(CALL(cuMemSetMemPool)(&here, CU_MEM_ALLOCATION_TYPE_PINNED, own));
    MUST(CALL(cuMemAllocAsync)(&a, 40 * MIB, stream));
    step("by_place");
    MUST(CALL(cuMemSetMemPool)(&here, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
    MUST(CALL(cuMemPoolDestroy)(own));
    step("piece_left");
    MUST(CALL(cuMemFreeAsync)(a, stream));
    MUST(CALL(cuStreamSynchronize)(stream));
    step("by_place_gone");
}

static void in_a_capture(void)
{
    CUdeviceptr a;
    CUgraph graph;
    MUST(CALL(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(CALL(cuMemAllocAsync)(&a, 50 * MIB, stream));
    MUST(CALL(cuMemFreeAsync)(a, stream));
    MUST(CALL(cuStreamEndCapture)(stream, &graph));
    step("captured");
    MUST(CALL(cuGraphDestroy)(graph));
}

int main(void)
{
    begin();
    MUST(CALL(cuDeviceGetDefaultMemPool)(&pool, 0));
    default_pool();
    at_the_cap();
    own_pool();
    pool_by_place();
    in_a_capture();
    step("end");
    return 0;
}
