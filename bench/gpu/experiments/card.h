/* SPDX-License-Identifier: Apache-2.0
 *
 * A card through the driver API, for the experiments: a context, the kernels of beat.ptx, and the
 * card's clock beside the host's.
 */
#ifndef QGPU_EXPERIMENT_CARD_H
#define QGPU_EXPERIMENT_CARD_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define CHUNK_ROOM 4096u /* gaps that a block can note */
#define THREADS    128u

struct board { /* as in beat.cu */
    volatile uint64_t beat;
    volatile uint32_t leave;
};
struct gap {
    uint64_t before, after;
};
struct block {
    uint64_t begin, end, chunks;
    uint32_t gaps, pad;
};

struct clock_pair { /* both clocks at the same moment, and how far that can be wrong */
    uint64_t host, card, doubt;
};

/* `model`: the simulator's card, which runs no code: a kernel is then a length of time, and its
 * trace tells the rest. */
struct card {
    CUcontext context;
    CUstream stream;
    CUfunction beat, first, answer, work;
    CUevent event;
    bool model;
    unsigned blocks;
    struct board *board;
    CUdeviceptr gaps, told, sums;
};

#define CARD_FUNCTIONS(X)                                                                          \
    X(cuInit, cuInit)                                                                              \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)                                          \
    X(cuCtxSetCurrent, cuCtxSetCurrent)                                                            \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute)                                                  \
    X(cuModuleLoadData, cuModuleLoadData)                                                          \
    X(cuModuleGetFunction, cuModuleGetFunction)                                                    \
    X(cuStreamCreate, cuStreamCreate)                                                              \
    X(cuStreamSynchronize, cuStreamSynchronize)                                                    \
    X(cuStreamQuery, cuStreamQuery)                                                                \
    X(cuEventCreate, cuEventCreate)                                                                \
    X(cuEventRecord, cuEventRecord)                                                                \
    X(cuLaunchKernel, cuLaunchKernel)                                                              \
    X(cuMemHostAlloc, cuMemHostAlloc)                                                              \
    X(cuMemAlloc, cuMemAlloc_v2)                                                                   \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2)                                                               \
    X(cuStreamWriteValue32, cuStreamWriteValue32_v2)

struct driver {
#define X(name, symbol) __typeof__(&symbol) name;
    CARD_FUNCTIONS(X)
#undef X
};
extern struct driver driver;

void die(const char *what, int code) __attribute__((noreturn));
void check(CUresult status, const char *what);

/* Ends the program with a JSON line that says what failed. */
void card_open(struct card *card);

/* So many chunks (on the model: nanoseconds), or until board->leave. */
void card_beat(struct card *card, uint64_t chunks);

/* When the last block of the last beat ended, NULL-able parts: per block what it told, its gaps,
 * all sums folded. */
void card_told(struct card *card, struct block *blocks, struct gap *gaps, uint64_t *sum);

struct clock_pair card_clocks(struct card *card);
void card_launch(struct card *card, CUfunction function, unsigned blocks, unsigned threads,
                 void **arguments);

#endif
