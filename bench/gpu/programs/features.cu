/* SPDX-License-Identifier: Apache-2.0
 *
 * One small deterministic program per feature of the runtime; each prints a checksum of what it computed.
 * usage: features plain|graph|cooperative|threads|vmm|pool|managed|ipc|loop SECONDS|illegal
 */
#include "common.cuh"

#include <cooperative_groups.h>
#include <cuda.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

static const size_t N = 1u << 20;
static const int BLOCKS = 256, THREADS = 128;

__global__ void mix(uint32_t *p, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = p[i] ^ seed ^ (uint32_t)i;
        for (int k = 0; k < 64; k++)
            x = x * 1664525u + 1013904223u;
        p[i] = x;
    }
}

__global__ void turn(uint32_t *p, size_t n, int rounds)
{
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, all = (size_t)gridDim.x * blockDim.x;
    for (int r = 0; r < rounds; r++) {
        uint32_t next = i < n ? p[(i + 1) % n] * 31 + (uint32_t)r : 0;
        grid.sync();
        for (size_t k = i; k < n; k += all)
            p[k] = k == i ? next : p[k] + 1;
        grid.sync();
    }
}

__global__ void write_at(volatile uint32_t *p) { *p = 1; }

static uint64_t sum_of(const uint32_t *card, size_t n, cudaStream_t stream = 0)
{
    std::vector<uint32_t> host(n);
    CHECK(cudaMemcpyAsync(host.data(), card, n * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    return fnv(host.data(), n * 4);
}

static uint64_t plain()
{
    uint32_t *p[4];
    cudaStream_t stream[4];
    cudaEvent_t done;
    CHECK(cudaEventCreate(&done));
    for (int i = 0; i < 4; i++) {
        CHECK(cudaStreamCreate(&stream[i]));
        CHECK(cudaMalloc(&p[i], N * 4));
        CHECK(cudaMemsetAsync(p[i], i, N * 4, stream[i]));
    }
    for (int round = 0; round < 50; round++)
        for (int i = 0; i < 4; i++) {
            mix<<<BLOCKS, THREADS, 0, stream[i]>>>(p[i], N, round * 4 + i);
            CHECK(cudaEventRecord(done, stream[i]));
            CHECK(cudaStreamWaitEvent(stream[(i + 1) % 4], done, 0));
            CHECK(cudaMemcpyAsync(p[(i + 1) % 4], p[i], N, cudaMemcpyDeviceToDevice, stream[(i + 1) % 4]));
        }
    CHECK(cudaDeviceSynchronize());
    uint64_t sum = 0;
    for (int i = 0; i < 4; i++) {
        sum = sum * 31 + sum_of(p[i], N);
        CHECK(cudaFree(p[i]));
    }
    return sum;
}

static uint64_t graph()
{
    uint32_t *p;
    cudaStream_t stream;
    cudaGraph_t made;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&p, N * 4));
    CHECK(cudaMemset(p, 1, N * 4));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 8; i++)
        mix<<<BLOCKS, THREADS, 0, stream>>>(p, N, i);
    CHECK(cudaMemcpyAsync(p, p + N / 2, N, cudaMemcpyDeviceToDevice, stream));
    uint32_t *own; /* memory of the graph itself */
    CHECK(cudaMallocAsync(&own, N * 4, stream));
    CHECK(cudaMemcpyAsync(own, p, N * 4, cudaMemcpyDeviceToDevice, stream));
    mix<<<BLOCKS, THREADS, 0, stream>>>(own, N, 99);
    CHECK(cudaMemcpyAsync(p, own, N * 4, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaFreeAsync(own, stream));
    CHECK(cudaStreamEndCapture(stream, &made));
    CHECK(cudaGraphInstantiate(&exec, made, 0));
    for (int i = 0; i < 50; i++)
        CHECK(cudaGraphLaunch(exec, stream));
    uint64_t sum = sum_of(p, N, stream);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(made));
    return sum;
}

static uint64_t cooperative()
{
    uint32_t *p;
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    CHECK(cudaMalloc(&p, N * 4));
    CHECK(cudaMemset(p, 3, N * 4));
    size_t n = 32768; /* few enough for one thread each on any card */
    int rounds = 20;
    void *args[] = {&p, &n, &rounds};
    for (int i = 0; i < 20; i++)
        CHECK(cudaLaunchCooperativeKernel((void *)turn, dim3(32), dim3(1024), args, 0, 0));
    return sum_of(p, n);
}

static void one_thread(uint64_t *sum, uint32_t seed)
{
    uint32_t *p;
    CHECK(cudaMalloc(&p, N * 4));
    CHECK(cudaMemsetAsync(p, (int)seed, N * 4, cudaStreamPerThread));
    for (uint32_t i = 0; i < 200; i++)
        mix<<<BLOCKS, THREADS, 0, cudaStreamPerThread>>>(p, N, seed + i);
    *sum = sum_of(p, N, cudaStreamPerThread);
    CHECK(cudaFree(p));
}

static uint64_t threads()
{
    uint64_t sums[4], all = 0;
    std::vector<std::thread> running;
    for (uint32_t i = 0; i < 4; i++)
        running.emplace_back(one_thread, &sums[i], i);
    for (std::thread &thread : running)
        thread.join();
    for (uint64_t sum : sums)
        all = all * 31 + sum;
    return all;
}

/* The driver's functions through the runtime, as libraries find them; this program is not linked with libcuda. */
template <typename T> static T entry(const char *name, unsigned version)
{
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found));
    if (!function) {
        printf("{\"failed\": \"%s\", \"error\": \"not in this driver\"}\n", name);
        _Exit(EXIT_CUDA);
    }
    return (T)function;
}

static void driver_check(CUresult status, const char *what, int line)
{
    if (status != CUDA_SUCCESS) {
        printf("{\"failed\": \"%s\", \"line\": %d, \"code\": %d}\n", what, line, (int)status);
        _Exit(EXIT_CUDA);
    }
}
#define DRIVER(call) driver_check((call), #call, __LINE__)

static uint64_t vmm()
{
    auto granularity = entry<decltype(&cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity", 10020);
    auto reserve = entry<decltype(&cuMemAddressReserve)>("cuMemAddressReserve", 10020);
    auto create = entry<decltype(&cuMemCreate)>("cuMemCreate", 10020);
    auto map = entry<decltype(&cuMemMap)>("cuMemMap", 10020);
    auto access = entry<decltype(&cuMemSetAccess)>("cuMemSetAccess", 10020);
    auto unmap = entry<decltype(&cuMemUnmap)>("cuMemUnmap", 10020);
    auto release = entry<decltype(&cuMemRelease)>("cuMemRelease", 10020);
    CUmemAllocationProp prop = {};
    CUmemAccessDesc allow = {};
    CUmemGenericAllocationHandle handle[4];
    CUdeviceptr at;
    size_t unit;
    CHECK(cudaFree(0));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = allow.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    allow.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(granularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    DRIVER(reserve(&at, 4 * unit, 0, 0, 0));
    for (int i = 0; i < 4; i++) {
        DRIVER(create(&handle[i], unit, &prop, 0));
        DRIVER(map(at + i * unit, unit, 0, handle[i], 0));
    }
    DRIVER(access(at, 4 * unit, &allow, 1));
    CHECK(cudaMemset((void *)at, 5, 4 * unit));
    for (uint32_t i = 0; i < 100; i++)
        mix<<<BLOCKS, THREADS>>>((uint32_t *)at, unit, i);
    uint64_t sum = sum_of((uint32_t *)at, 1u << 18);
    for (int i = 0; i < 4; i++) {
        DRIVER(unmap(at + i * unit, unit));
        DRIVER(release(handle[i]));
    }
    return sum;
}

static uint64_t pool()
{
    cudaMemPoolProps props = {};
    cudaMemPool_t mine;
    cudaStream_t stream;
    uint64_t sum = 0;
    CHECK(cudaStreamCreate(&stream));
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    CHECK(cudaMemPoolCreate(&mine, &props));
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t *p, *q;
        CHECK(cudaMallocAsync(&p, N * 4, stream));
        CHECK(cudaMallocFromPoolAsync(&q, N * 2 + i * 4096, mine, stream));
        CHECK(cudaMemsetAsync(p, (int)i, N * 4, stream));
        mix<<<BLOCKS, THREADS, 0, stream>>>(p, N, i);
        CHECK(cudaMemcpyAsync(q, p, N * 2, cudaMemcpyDeviceToDevice, stream));
        sum = sum * 31 + sum_of(q, N / 2, stream);
        CHECK(cudaFreeAsync(q, stream));
        CHECK(cudaFreeAsync(p, stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemPoolDestroy(mine));
    return sum;
}

static uint64_t managed()
{
    uint32_t *p; /* small: managed memory beyond the card's free memory must never be asked for */
    CHECK(cudaMallocManaged(&p, N * 4));
    memset(p, 7, N * 4);
    for (uint32_t i = 0; i < 20; i++) {
        mix<<<BLOCKS, THREADS>>>(p, N, i);
        CHECK(cudaDeviceSynchronize());
        p[i] += 1;
    }
    uint64_t sum = fnv(p, N * 4);
    CHECK(cudaFree(p));
    return sum;
}

static void ipc_child(int in, int out)
{
    cudaIpcMemHandle_t handle;
    uint32_t *p;
    char done = 1;
    if (read(in, &handle, sizeof handle) != (ssize_t)sizeof handle)
        _Exit(EXIT_CUDA);
    CHECK(cudaIpcOpenMemHandle((void **)&p, handle, cudaIpcMemLazyEnablePeerAccess));
    mix<<<BLOCKS, THREADS>>>(p, N, 77);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaIpcCloseMemHandle(p));
    _Exit(write(out, &done, 1) == 1 ? 0 : EXIT_CUDA);
}

static uint64_t ipc()
{
    int there[2], back[2], status;
    if (pipe(there) || pipe(back))
        exit(2);
    pid_t child = fork(); /* before the first call of CUDA */
    if (child == 0)
        ipc_child(there[0], back[1]);
    uint32_t *p;
    cudaIpcMemHandle_t handle;
    char done = 0;
    CHECK(cudaMalloc(&p, N * 4));
    CHECK(cudaMemset(p, 9, N * 4));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaIpcGetMemHandle(&handle, p));
    close(back[1]);
    if (write(there[1], &handle, sizeof handle) != (ssize_t)sizeof handle || read(back[0], &done, 1) != 1) {
        printf("{\"failed\": \"the other process\", \"error\": \"it ended early\"}\n");
        exit(EXIT_CUDA);
    }
    waitpid(child, &status, 0);
    return sum_of(p, N);
}

/* The neighbour of somebody's fault: the same work again and again, each result compared with the first. */
static int loop(double seconds)
{
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9), first = graph(), rounds = 1, wrong = 0, longest = 0;
    while (now_ns() < end) {
        uint64_t start = now_ns();
        wrong += graph() != first;
        rounds++;
        longest = now_ns() - start > longest ? now_ns() - start : longest;
    }
    printf("{\"sum\": \"%016llx\", \"rounds\": %llu, \"wrong\": %llu, \"longest_ms\": %.3f}\n", (unsigned long long)first,
           (unsigned long long)rounds, (unsigned long long)wrong, (double)longest / 1e6);
    return wrong ? EXIT_CUDA : 0;
}

static uint64_t illegal()
{
    CHECK(cudaFree(0));
    write_at<<<1, 1>>>((uint32_t *)16);
    CHECK(cudaDeviceSynchronize());
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        uint64_t (*run)();
    } table[] = {{"plain", plain}, {"graph", graph}, {"cooperative", cooperative}, {"threads", threads}, {"vmm", vmm},
                 {"pool", pool}, {"managed", managed}, {"ipc", ipc}, {"illegal", illegal}};
    if (argc == 3 && !strcmp(argv[1], "loop"))
        return loop(atof(argv[2]));
    for (auto &row : table)
        if (argc == 2 && !strcmp(argv[1], row.name)) {
            printf("{\"feature\": \"%s\", \"sum\": \"%016llx\"}\n", row.name, (unsigned long long)row.run());
            return 0;
        }
    fprintf(stderr, "usage: features plain|graph|cooperative|threads|vmm|pool|managed|ipc|illegal|loop SECONDS\n");
    return 2;
}
