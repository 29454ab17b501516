/* SPDX-License-Identifier: Apache-2.0
 *
 * What cudart.c does, with the runtime inside: test_shim_cudart.py compiles it with nvcc.
 */
#include <cstdio>
#include <cuda_runtime.h>

int main()
{
    int version = 0, count = -1;
    cudaError_t told = cudaDriverGetVersion(&version), counted = cudaGetDeviceCount(&count);
    std::printf("%d %d %d %d\n", (int)told, version, (int)counted, count);
    return 0;
}
