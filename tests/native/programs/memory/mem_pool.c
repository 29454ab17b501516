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

/* A part of the card's memory (CUDA 13.5), of a pool of ours and of the driver's. */
static void pool_in_a_domain(void)
{
    CUmemLocation part = {.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, .localized = {0, 1}};
    CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = part};
    CUmemoryPool own, its;
    CUdeviceptr a, b;
    MUST(CALL(cuMemPoolCreate)(&own, &wanted));
    MUST(CALL(cuMemAllocFromPoolAsync)(&a, 160 * MIB, own, stream));
    step("in_domain");
    REFUSED(CALL(cuMemAllocFromPoolAsync)(&b, 128 * MIB, own, stream));
    step("domain_refused");
    MUST(CALL(cuMemGetDefaultMemPool)(&its, &part, CU_MEM_ALLOCATION_TYPE_PINNED));
    REFUSED(CALL(cuMemAllocFromPoolAsync)(&b, 128 * MIB, its, stream));
    MUST(CALL(cuMemAllocFromPoolAsync)(&b, 32 * MIB, its, stream));
    step("domain_default");
    MUST(CALL(cuMemFreeAsync)(a, stream));
    MUST(CALL(cuMemFreeAsync)(b, stream));
    MUST(CALL(cuMemPoolTrimTo)(own, 0));
    step("domain_trimmed");
    MUST(CALL(cuMemPoolDestroy)(own));
    MUST(CALL(cuMemPoolTrimTo)(its, 0));
    step("domain_gone");
    part.localized.deviceId = 1; /* no such device, and none that was granted */
    wanted.location = part;
    REFUSED(CALL(cuMemPoolCreate)(&own, &wanted));
}

/* More than the cap comes out of it, and is there for the host. */
static void from_host(CUmemoryPool host, const char *name)
{
    CUdeviceptr a, b;
    char steps[5][32];
    static const char *const ends[] = {"", "_more", "_freed", "_trimmed", "_cap"};
    for (int i = 0; i < 5; i++)
        snprintf(steps[i], sizeof(steps[i]), "%s%s", name, ends[i]);
    threshold(host, UINT64_MAX);
    MUST(CALL(cuMemAllocFromPoolAsync)(&a, 512 * MIB, host, stream));
    step(steps[0]);
    ((volatile char *)(uintptr_t)a)[512 * MIB - 1] = 1;
    MUST(CALL(cuMemAllocFromPoolAsync)(&b, 8 * MIB, host, stream));
    step(steps[1]);
    MUST(CALL(cuMemFreeAsync)(a, stream));
    MUST(CALL(cuMemFree_v2)(b));
    MUST(CALL(cuStreamSynchronize)(stream));
    step(steps[2]);
    MUST(CALL(cuMemPoolTrimTo)(host, 0));
    step(steps[3]);
    MUST(CALL(cuMemAlloc_v2)(&a, 256 * MIB)); /* the whole cap is left for the card */
    step(steps[4]);
    MUST(CALL(cuMemFree_v2)(a));
}

static void host_pools(void)
{
    CUmemLocation place = {.type = CU_MEM_LOCATION_TYPE_HOST};
    CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = place};
    CUmemoryPool own, its, now;
    CUdeviceptr a;
    MUST(CALL(cuMemPoolCreate)(&own, &wanted));
    from_host(own, "host");
    MUST(CALL(cuMemSetMemPool)(&place, CU_MEM_ALLOCATION_TYPE_PINNED, own));
    MUST(CALL(cuMemGetMemPool)(&now, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
    MUST(now != own);
    MUST(CALL(cuMemAllocAsync)(&a, 20 * MIB, stream)); /* still the card's */
    step("host_set");
    MUST(CALL(cuMemFreeAsync)(a, stream));
    MUST(CALL(cuMemPoolTrimTo)(pool, 0));
    MUST(CALL(cuMemPoolDestroy)(own));
    place.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    wanted.location = place;
    MUST(CALL(cuMemPoolCreate)(&own, &wanted));
    from_host(own, "numa");
    MUST(CALL(cuMemAllocFromPoolAsync)(&a, 512 * MIB, own, stream));
    MUST(CALL(cuMemPoolDestroy)(own));
    step("numa_destroyed");
    MUST(CALL(cuMemFreeAsync)(a, stream));
    step("numa_gone");
    MUST(CALL(cuMemPoolCreate)(
        &own, &(CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}}));
    /* where a pool of the host may have been */
    MUST(CALL(cuMemAllocFromPoolAsync)(&a, 20 * MIB, own, stream));
    step("card_again");
    MUST(CALL(cuMemFreeAsync)(a, stream));
    MUST(CALL(cuMemPoolDestroy)(own));
    /* the driver's own */
    MUST(CALL(cuMemGetDefaultMemPool)(&its, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
    from_host(its, "default");
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
    pool_in_a_domain();
    host_pools();
    in_a_capture();
    step("end");
    return 0;
}
