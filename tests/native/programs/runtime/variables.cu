/* SPDX-License-Identifier: Apache-2.0
 *
 * A program with large variables, compiled by nvcc. For each word of standard input it launches its
 * kernel, raises the heap of malloc(), asks for a heap that is too large, and resets the card; one
 * line of JSON says how many MiB more the card has in use after each. test_nvcc.py runs it.
 */
#include <cstdio>
#include <cuda_runtime.h>

static const size_t MIB = 1 << 20;

/* a little less than whole pieces of the card: the simulated driver needs some bytes itself */
__device__ float table[16 * MIB - 1024];
__managed__ char common[8 * MIB - 4096];

__global__ void use()
{
    table[threadIdx.x] += common[threadIdx.x];
}

static long used(void)
{
    size_t left = 0, all = 0;
    cudaMemGetInfo(&left, &all);
    return (long)((all - left) / MIB);
}

int main(void)
{
    char line[64];
    while (std::fgets(line, sizeof(line), stdin)) {
        cudaFree(nullptr);
        long before = used();
        use<<<1, 32>>>();
        int launched = (int)cudaDeviceSynchronize();
        long kernel = used();
        int raised = (int)cudaDeviceSetLimit(cudaLimitMallocHeapSize, 72 * MIB);
        long heap = used();
        int large = (int)cudaDeviceSetLimit(cudaLimitMallocHeapSize, 5000 * MIB);
        cudaDeviceReset();
        std::printf("{\"status\": [%d, %d, %d], \"used\": [%ld, %ld, %ld]}\n", launched, raised,
                    large, kernel - before, heap - before, used() - before);
        std::fflush(stdout);
    }
    return 0;
}
