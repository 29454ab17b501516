/* SPDX-License-Identifier: Apache-2.0
 *
 * What the test programs share: errors as one JSON line, checksums, and the card's clock.
 */
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <cuda_runtime.h>
#include <vector>

enum { EXIT_CUDA = 10 };

static inline void cuda_check(cudaError_t status, const char *what, int line)
{
    if (status == cudaSuccess)
        return;
    printf("{\"failed\": \"%s\", \"line\": %d, \"error\": \"%s\", \"code\": %d}\n", what, line,
           cudaGetErrorName(status), (int)status);
    fflush(stdout);
    _Exit(EXIT_CUDA);
}
#define CHECK(call) cuda_check((call), #call, __LINE__)

static inline uint64_t now_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void sleep_until(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr)) {
    }
}

static inline uint64_t fnv(const void *data, size_t size, uint64_t sum = 0xcbf29ce484222325u)
{
    const unsigned char *bytes = (const unsigned char *)data;
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ bytes[i]) * 0x100000001b3u;
    return sum;
}

__device__ __forceinline__ uint64_t card_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
