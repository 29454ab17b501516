/* SPDX-License-Identifier: Apache-2.0
 *
 * Physical memory by handle: it lives until its last reference, mapping and other use are gone.
 */
#include "step.h"

static const CUmemAllocationProp here = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};

static void mappings(void)
{
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr space;
    REFUSED(CALL(cuMemCreate)(&handle, 258 * MIB, &here, 0));
    MUST(CALL(cuMemCreate)(&handle, 64 * MIB, &here, 0));
    step("created");
    MUST(CALL(cuMemAddressReserve)(&space, 128 * MIB, 0, 0, 0));
    MUST(CALL(cuMemMap)(space, 64 * MIB, 0, handle, 0));
    MUST(CALL(cuMemMap)(space + 64 * MIB, 32 * MIB, 0, handle, 0));
    MUST(CALL(cuMemRelease)(handle));
    step("mapped_twice");
    MUST(CALL(cuMemUnmap)(space, 64 * MIB));
    step("unmapped_once");
    MUST(CALL(cuMemRetainAllocationHandle)(&again, (void *)(space + 64 * MIB)));
    MUST(CALL(cuMemUnmap)(space + 64 * MIB, 32 * MIB));
    step("retained");
    MUST(CALL(cuMemRelease)(again));
    step("released");
    MUST(CALL(cuMemAddressFree)(space, 128 * MIB));
}

static const CUmemAllocationProp of_host = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .location = {.type = CU_MEM_LOCATION_TYPE_HOST},
};

/* One handle of that kind and one of the card, unmapped with one call. */
static void two_handles_one_range(const CUmemAllocationProp *first, const char *mapped,
                                  const char *unmapped)
{
    CUmemGenericAllocationHandle a, b;
    CUdeviceptr space;
    MUST(CALL(cuMemCreate)(&a, 32 * MIB, first, 0));
    MUST(CALL(cuMemCreate)(&b, 16 * MIB, &here, 0));
    MUST(CALL(cuMemAddressReserve)(&space, 48 * MIB, 0, 0, 0));
    MUST(CALL(cuMemMap)(space, 32 * MIB, 0, a, 0));
    MUST(CALL(cuMemMap)(space + 32 * MIB, 16 * MIB, 0, b, 0));
    MUST(CALL(cuMemRelease)(a));
    MUST(CALL(cuMemRelease)(b));
    step(mapped);
    MUST(CALL(cuMemUnmap)(space, 48 * MIB));
    step(unmapped);
    MUST(CALL(cuMemAddressFree)(space, 48 * MIB));
}

/* The driver itself, which the shim has opened: a library that brings its own way to it unmaps
 * unseen. */
static CUresult unmapped_unseen(CUdeviceptr at, size_t size)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s", getenv("QGPU_TEST_NVML"));
    strcpy(strrchr(path, '/') + 1, "libcuda.so.1");
    void *driver = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    MUST(!driver);
    return ((__typeof__(&cuMemUnmap))dlsym(driver, "cuMemUnmap"))(at, size);
}

static void left_over(void)
{
    CUmemGenericAllocationHandle a, b;
    CUdeviceptr space;
    MUST(CALL(cuMemAddressReserve)(&space, 32 * MIB, 0, 0, 0));
    MUST(CALL(cuMemCreate)(&a, 16 * MIB, &here, 0));
    MUST(CALL(cuMemMap)(space, 16 * MIB, 0, a, 0));
    MUST(unmapped_unseen(space, 16 * MIB));
    MUST(CALL(cuMemRelease)(a));
    MUST(CALL(cuMemCreate)(&b, 32 * MIB, &here, 0));
    MUST(CALL(cuMemMap)(space, 32 * MIB, 0, b, 0)); /* so the first is there no more */
    MUST(CALL(cuMemRelease)(b));
    step("left_over");
    MUST(CALL(cuMemUnmap)(space, 32 * MIB));
    step("left_over_gone");
    MUST(CALL(cuMemAddressFree)(space, 32 * MIB));
}

/* A part of the card (CUDA 13.5) is memory of the card; memory of the host is none. */
static void other_places(void)
{
    static const CUmemLocation host[] = {{.type = CU_MEM_LOCATION_TYPE_HOST},
                                         {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA}};
    static const char *const steps[] = {"host_created", "numa_created"};
    CUmemAllocationProp wanted = here;
    CUmemGenericAllocationHandle handle, other;
    CUdeviceptr space;
    wanted.location =
        (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, .localized = {0, 1}};
    REFUSED(CALL(cuMemCreate)(&handle, 258 * MIB, &wanted, 0));
    MUST(CALL(cuMemCreate)(&handle, 192 * MIB, &wanted, 0));
    step("in_domain");
    REFUSED(CALL(cuMemCreate)(&other, 66 * MIB, &wanted, 0));
    REFUSED(CALL(cuMemCreate)(&other, 66 * MIB, &here, 0));
    step("domain_refused");
    MUST(CALL(cuMemAddressReserve)(&space, 192 * MIB, 0, 0, 0));
    MUST(CALL(cuMemMap)(space, 192 * MIB, 0, handle, 0));
    MUST(CALL(cuMemRelease)(handle));
    step("domain_mapped");
    MUST(CALL(cuMemUnmap)(space, 192 * MIB));
    step("domain_gone");
    wanted.location.localized.deviceId = 1; /* not granted */
    REFUSED(CALL(cuMemCreate)(&handle, 2 * MIB, &wanted, 0));
    for (int i = 0; i < 2; i++) {
        wanted.location = host[i];
        MUST(CALL(cuMemCreate)(&handle, 512 * MIB, &wanted, 0));
        step(steps[i]);
        MUST(CALL(cuMemMap)(space, 192 * MIB, 0, handle, 0));
        MUST(CALL(cuMemRelease)(handle));
        MUST(CALL(cuMemUnmap)(space, 192 * MIB));
    }
    step("host_gone");
    MUST(CALL(cuMemAddressFree)(space, 192 * MIB));
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
    MUST(CALL(cuMemMapArrayAsync)(&tile, 1, stream));
    MUST(CALL(cuMemRelease)(handle));
    step("in_array");
    MUST(CALL(cuArrayDestroy)(array));
    step("array_gone");
}

static CUmemGenericAllocationHandle team(unsigned int devices)
{
    CUmulticastObjectProp wanted = {.numDevices = devices, .size = 64 * MIB};
    CUmemGenericAllocationHandle object;
    MUST(CALL(cuMulticastCreate)(&object, &wanted));
    MUST(CALL(cuMulticastAddDevice)(object, 0));
    return object;
}

/* What is bound outlives its handle, and its mapping. */
static void multicast(void)
{
    CUmemGenericAllocationHandle object = team(1), handle, mapped;
    CUdeviceptr space;
    step("team");
    MUST(CALL(cuMemCreate)(&handle, 8 * MIB, &here, 0));
    MUST(CALL(cuMulticastBindMem)(object, 0, handle, 0, 8 * MIB, 0));
    MUST(CALL(cuMemRelease)(handle));
    step("bound");
    MUST(CALL(cuMemCreate)(&mapped, 16 * MIB, &here, 0));
    MUST(CALL(cuMemAddressReserve)(&space, 80 * MIB, 0, 0, 0));
    MUST(CALL(cuMemMap)(space, 16 * MIB, 0, mapped, 0));
    MUST(CALL(cuMemRelease)(mapped));
    MUST(CALL(cuMulticastBindAddr)(object, 16 * MIB, space + 4 * MIB, 8 * MIB, 0));
    MUST(CALL(cuMulticastBindAddr_v2)(object, 0, 32 * MIB, space, 4 * MIB, 0));
    MUST(CALL(cuMemUnmap)(space, 16 * MIB));
    step("bound_by_address");
    MUST(CALL(cuMulticastUnbind)(object, 0, 16 * MIB, 8 * MIB));
    step("bound_elsewhere");
    MUST(CALL(cuMulticastUnbind)(object, 0, 32 * MIB, 4 * MIB));
    step("unbound");
    MUST(CALL(cuMemMap)(space, 64 * MIB, 0, object, 0)); /* addresses of the team cost nothing */
    step("team_mapped");
    MUST(CALL(cuMemRelease)(object));
    step("team_lives");
    MUST(CALL(cuMemUnmap)(space, 64 * MIB));
    step("team_gone"); /* and what was still bound to it */
    object = team(1);
    MUST(CALL(cuMemCreate)(&handle, 8 * MIB, &here, 0));
    MUST(CALL(cuMulticastBindMem_v2)(object, 0, 0, handle, 0, 8 * MIB, 0));
    MUST(CALL(cuMemRelease)(handle));
    MUST(CALL(cuMemRelease)(object));
    step("second_team_gone");
    /* bound without saying the device: it is that of the memory, told by its part */
    object = team(1);
    CUmemAllocationProp part = here;
    part.location =
        (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, .localized = {0, 1}};
    MUST(CALL(cuMemCreate)(&handle, 8 * MIB, &part, 0));
    MUST(CALL(cuMulticastBindMem)(object, 0, handle, 0, 8 * MIB, 0));
    MUST(CALL(cuMemRelease)(handle));
    step("part_bound");
    MUST(CALL(cuMulticastUnbind)(object, 0, 0, 8 * MIB));
    step("part_unbound");
    MUST(CALL(cuMemRelease)(object));
    MUST(CALL(cuMemAddressFree)(space, 80 * MIB));
}

int main(void)
{
    begin();
    mappings();
    two_handles_one_range(&here, "range", "range_gone");
    two_handles_one_range(&of_host, "mixed", "mixed_gone"); /* which is not charged */
    left_over();
    other_places();
    sparse_array();
    multicast();
    return 0;
}
