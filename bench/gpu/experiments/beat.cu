/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of the experiments. The product builds without nvcc, so beat.ptx beside this file is what is used; it was made by
 *   nvcc -ptx -arch=compute_75 -O2 beat.cu
 * and its .version set back to the oldest that knows all its instructions (tests/gpu/test_gpu_stops.py assembles it).
 */
typedef unsigned long long u64;
const int CHUNK = 256, MAX_THREADS = 256, LOOK = 64;
const u64 GAP_NS = 20000; /* a longer pause between two chunks means that the block was off the card */

struct Board { /* shared with the host */
    volatile u64 beat;
    volatile unsigned leave;
};
struct Gap {
    u64 before, after;
};
struct Block { /* what one block tells at its end */
    u64 begin, end, chunks;
    unsigned gaps, pad;
};

__device__ __forceinline__ u64 card_ns()
{
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* Registers, shared memory and barriers carry the sum, so a suspension that loses any of them shows in it. Ends after so
 * many chunks, or when the host says leave. */
extern "C" __global__ void qgpu_beat(u64 chunks, Board *board, Gap *gaps, unsigned room, Block *blocks, u64 *sums)
{
    __shared__ u64 other[MAX_THREADS];
    __shared__ unsigned leave;
    u64 x = blockIdx.x * (u64)blockDim.x + threadIdx.x, last = card_ns(), done = 0;
    Block told = {last, last, 0, 0, 0};
    if (threadIdx.x == 0)
        leave = 0;
    for (; done < chunks; done++) {
        for (int i = 0; i < CHUNK; i++)
            x = x * 6364136223846793005u + 1442695040888963407u;
        other[threadIdx.x] = x;
        __syncthreads();
        x ^= other[(threadIdx.x + 1) % blockDim.x] >> 7;
        if (threadIdx.x == 0) {
            u64 now = card_ns();
            if (now - last > GAP_NS && told.gaps < room)
                gaps[blockIdx.x * (u64)room + told.gaps++] = {last, now};
            last = now;
            if (blockIdx.x == 0)
                board->beat = now;
            if (done % LOOK == 0)
                leave = board->leave;
        }
        __syncthreads();
        if (leave) {
            done++;
            break;
        }
    }
    sums[blockIdx.x * (u64)blockDim.x + threadIdx.x] = x;
    if (threadIdx.x == 0) {
        told.end = last;
        told.chunks = done;
        blocks[blockIdx.x] = told;
    }
}

extern "C" __global__ void qgpu_first(volatile u64 *told)
{
    if ((blockIdx.x | threadIdx.x) == 0)
        *told = card_ns();
}

/* The card answers the host's word with its clock, so often that the quickest answer is near the truth. */
extern "C" __global__ void qgpu_answer(volatile unsigned *ask, volatile u64 *told, unsigned rounds)
{
    u64 give_up = card_ns() + 200000000u;
    for (unsigned i = 1; i <= rounds; i++) {
        while (*ask < i && card_ns() < give_up) {
        }
        told[0] = card_ns();
        __threadfence_system();
        told[1] = i;
        __threadfence_system();
    }
}

__device__ u64 sink;

/* The simulator runs no code: it knows this name and takes the number as the kernel's length. */
extern "C" __global__ void qgpu_work(u64 iterations)
{
    u64 x = clock64();
    for (u64 i = 0; i < iterations; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    if (x == 0)
        sink = x;
}
