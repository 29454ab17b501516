/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear, pitched, managed and host memory, arrays and mipmaps, the first versions of the calls.
 */
#include "step.h"

/* All who tell of memory tell the same. */
static void told(size_t used)
{
    size_t left, all, size;
    MUST(CALL(cuMemGetInfo_v2)(&left, &all));
    MUST(CALL(cuDeviceTotalMem_v2)(&size, 0));
    MUST(all != size || left != all - used);
}

static void linear(void)
{
    CUdeviceptr pointer, other, managed;
    told(0);
    MUST(CALL(cuMemAlloc_v2)(&pointer, 64 * MIB));
    step("alloc");
    MUST(CALL(cuMemAllocManaged)(&managed, 32 * MIB, CU_MEM_ATTACH_GLOBAL));
    step("managed");
    REFUSED(CALL(cuMemAlloc_v2)(&other, 161 * MIB));
    step("refused");
    told(96 * MIB);
    MUST(CALL(cuMemAlloc_v2)(&other, 160 * MIB));
    step("full");
    MUST(CALL(cuMemFree_v2)(other));
    MUST(CALL(cuMemFree_v2)(managed));
    MUST(CALL(cuMemFree_v2)(pointer));
    MUST(CALL(cuMemFree_v2)(0));
    MUST(CALL(cuMemFree_v2)(0x1234) != CUDA_ERROR_INVALID_VALUE);
    step("free");
}

static void first_versions(void)
{
    CUdeviceptr_v1 pointer, pitched;
    unsigned int pitch, left, all;
    MUST(CALL(cuMemAlloc)(&pointer, 4 * MIB));
    step("v1_alloc");
    MUST(CALL(cuMemAllocPitch)(&pitched, &pitch, 1000, 4096, 4));
    MUST(pitch != 1024);
    step("v1_pitch");
    MUST(CALL(cuMemGetInfo)(&left, &all));
    MUST(all != 256 * MIB || left != 248 * MIB);
    MUST(CALL(cuMemFree)(pointer));
    MUST(CALL(cuMemFree)(pitched));
    step("v1_free");
}

static void pitched(void)
{
    CUdeviceptr pointer;
    size_t pitch;
    MUST(CALL(cuMemAllocPitch_v2)(&pointer, &pitch, 513, 2048, 4));
    MUST(pitch != 1024);
    step("pitch");
    REFUSED(CALL(cuMemAllocPitch_v2)(&pointer, &pitch, SIZE_MAX, SIZE_MAX, 4));
    MUST(CALL(cuMemFree_v2)(pointer));
    step("pitch_free");
}

static void host(void)
{
    void *page_locked, *mine = aligned_alloc(4096, MIB);
    MUST(CALL(cuMemHostAlloc)(&page_locked, 512 * MIB, 0));
    MUST(CALL(cuMemHostRegister_v2)(mine, MIB, 0));
    step("host");
    MUST(CALL(cuMemHostUnregister)(mine));
    MUST(CALL(cuMemFreeHost)(page_locked));
    free(mine);
}

static void arrays(void)
{
    CUarray flat, deep, sparse;
    CUmipmappedArray mipmap;
    CUDA_ARRAY_DESCRIPTOR two = {
        .Width = 100, .Height = 8192, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUDA_ARRAY3D_DESCRIPTOR three = {
        .Width = 512, .Height = 512, .Depth = 8, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    MUST(CALL(cuArrayCreate_v2)(&flat, &two)); /* rows of 400 bytes lie 512 apart: 4 MiB, not 3.1 */
    step("array");
    MUST(CALL(cuArray3DCreate_v2)(&deep, &three));
    step("array_3d");
    three.Depth = 0;
    three.Width = three.Height = 1024;
    MUST(CALL(cuMipmappedArrayCreate)(&mipmap, &three, 2)); /* 16 + 4 MiB */
    step("mipmap");
    three.Flags = CUDA_ARRAY3D_SPARSE;
    MUST(CALL(cuArray3DCreate_v2)(&sparse, &three));
    step("sparse");
    MUST(CALL(cuArrayDestroy)(sparse));
    MUST(CALL(cuArrayDestroy)(flat));
    MUST(CALL(cuArrayDestroy)(deep));
    MUST(CALL(cuMipmappedArrayDestroy)(mipmap));
    step("array_free");
}

static void contexts(void)
{
    CUcontext other;
    CUdeviceptr pointer;
    MUST(CALL(cuCtxCreate_v2)(&other, 0, 0));
    MUST(CALL(cuMemAlloc_v2)(&pointer, 16 * MIB));
    step("second_context");
    MUST(CALL(cuCtxDestroy_v2)(other));
    MUST(CALL(cuCtxSetCurrent)(context));
    step("context_gone");
}

int main(void)
{
    begin();
    linear();
    first_versions();
    pitched();
    host();
    arrays();
    contexts();
    return 0;
}
