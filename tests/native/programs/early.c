/* SPDX-License-Identifier: Apache-2.0
 *
 * A library whose constructor uses CUDA before the shim's own constructor ran.
 */
#include <dlfcn.h>
#include <stdio.h>

#include <cuda.h>

#define CALL(name) ((__typeof__(&name))dlsym(cuda, #name))

__attribute__((constructor)) static void early(void)
{
    CUcontext context;
    CUdeviceptr pointer;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int init = CALL(cuInit)(0), create = CALL(cuCtxCreate_v2)(&context, 0, 0);
    int small = CALL(cuMemAlloc_v2)(&pointer, 1 << 20),
        large = CALL(cuMemAlloc_v2)(&pointer, (size_t)60 << 30);
    fprintf(stderr, "early %d %d %d %d\n", init, create, small, large);
}
