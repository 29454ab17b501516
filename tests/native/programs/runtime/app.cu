/* SPDX-License-Identifier: Apache-2.0
 *
 * A program as users write it, compiled by nvcc: kernels in two streams and in a graph, a constant
 * and a device variable. One line of JSON for each word of standard input; with "work", launches
 * until SIGTERM. test_nvcc.py runs it.
 */
#include <csignal>
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>
#include <vector>

static const int N = 1 << 20, BLOCK = 256;

__constant__ float factors[28];
__device__ int total[3];

__global__ void scale(float *x, int n, float by)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        x[i] *= by * factors[i % 28];
}

template <typename T> __global__ void add(T *x, const T *y, int n)
{
    __shared__ T part[BLOCK];
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    part[threadIdx.x] = i < n ? y[i] : T(0);
    __syncthreads();
    if (i < n)
        x[i] += part[threadIdx.x];
    if (!i)
        atomicAdd(&total[0], 1);
}

static volatile std::sig_atomic_t stopped;

static void stop(int)
{
    stopped = 1;
}

static int fails;

static void must(cudaError_t status, const char *what)
{
    if (status == cudaSuccess)
        return;
    std::fprintf(stderr, "%s: %d %s\n", what, (int)status, cudaGetErrorString(status));
    fails++;
}
#define MUST(call) must(call, #call)

static void kernels(float *x, float *y, cudaStream_t stream)
{
    for (int i = 0; i < 10; i++) {
        scale<<<N / BLOCK, BLOCK, 0, stream>>>(x, N, 2.0f);
        MUST(cudaGetLastError());
        add<float><<<N / BLOCK, BLOCK, 0, stream>>>(x, y, N);
        MUST(cudaGetLastError());
    }
}

static void symbols()
{
    float values[28] = {1};
    void *at = nullptr;
    size_t constant = 0, variable = 0;
    MUST(cudaMemcpyToSymbol(factors, values, sizeof values));
    MUST(cudaGetSymbolSize(&constant, factors));
    MUST(cudaGetSymbolSize(&variable, total));
    MUST(cudaGetSymbolAddress(&at, total));
    std::printf("{\"constant\": %zu, \"variable\": %zu, \"address\": %d, ", constant, variable,
                at != nullptr);
}

static void attributes()
{
    cudaFuncAttributes seen = {};
    int blocks = 0;
    MUST(cudaFuncGetAttributes(&seen, (const void *)add<float>));
    MUST(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)add<float>, BLOCK,
                                                       0));
    std::printf("\"shared\": %zu, \"registers\": %d, \"threads\": %d, \"blocks\": %d, ",
                seen.sharedSizeBytes, seen.numRegs, seen.maxThreadsPerBlock, blocks);
}

static void graph(float *x, float *y)
{
    cudaStream_t stream;
    cudaGraph_t captured;
    cudaGraphExec_t ready;
    size_t nodes = 0;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    kernels(x, y, stream);
    MUST(cudaStreamEndCapture(stream, &captured));
    MUST(cudaGraphGetNodes(captured, nullptr, &nodes));
    MUST(cudaGraphInstantiate(&ready, captured, 0));
    for (int i = 0; i < 5; i++)
        MUST(cudaGraphLaunch(ready, stream));
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaGraphExecDestroy(ready));
    MUST(cudaGraphDestroy(captured));
    MUST(cudaStreamDestroy(stream));
    std::printf("\"nodes\": %zu, ", nodes);
}

static void once()
{
    float *x, *y;
    cudaEvent_t begin, end;
    float milliseconds = 0;
    std::vector<float> host(N, 1.0f);
    fails = 0;
    symbols();
    attributes();
    MUST(cudaMalloc(&x, N * sizeof *x));
    MUST(cudaMalloc(&y, N * sizeof *y));
    MUST(cudaMemcpy(x, host.data(), N * sizeof *x, cudaMemcpyHostToDevice));
    MUST(cudaMemcpy(y, host.data(), N * sizeof *y, cudaMemcpyHostToDevice));
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    MUST(cudaEventRecord(begin));
    kernels(x, y, nullptr);
    MUST(cudaEventRecord(end));
    MUST(cudaEventSynchronize(end));
    MUST(cudaEventElapsedTime(&milliseconds, begin, end));
    graph(x, y);
    MUST(cudaMemcpy(host.data(), x, N * sizeof *x, cudaMemcpyDeviceToHost));
    MUST(cudaDeviceSynchronize());
    MUST(cudaFree(x));
    MUST(cudaFree(y));
    std::printf("\"milliseconds\": %f, \"fails\": %d}\n", milliseconds, fails);
}

static void work()
{
    float *x;
    long launches = 0;
    fails = 0;
    MUST(cudaMalloc(&x, N * sizeof *x));
    for (; !stopped; launches++) {
        scale<<<N / BLOCK, BLOCK>>>(x, N, 2.0f);
        if (launches % 32 == 0)
            MUST(cudaStreamSynchronize(0));
        if (launches == 100) {
            std::puts("{\"works\": 1}");
            std::fflush(stdout);
        }
    }
    MUST(cudaDeviceSynchronize());
    MUST(cudaFree(x));
    std::printf("{\"launches\": %ld, \"fails\": %d}\n", launches, fails);
}

int main()
{
    char word[16];
    struct sigaction action = {};
    action.sa_handler = stop;
    sigaction(SIGTERM, &action, nullptr);
    while (std::scanf("%15s", word) == 1) {
        if (std::strcmp(word, "work") == 0)
            work();
        else
            once();
        std::fflush(stdout);
    }
    return 0;
}
