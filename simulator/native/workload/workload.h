/* SPDX-License-Identifier: Apache-2.0
 *
 * qgpu-workload: a program for demos, tests and benchmarks that loads a card in a chosen pattern.
 * It speaks the CUDA driver API only, resolved as the CUDA runtime does it, and runs unchanged on
 * real and on simulated cards.
 */
#ifndef QGPU_WORKLOAD_H
#define QGPU_WORKLOAD_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum exit_code {
    EXIT_OK = 0,
    EXIT_DRIVER = 1,
    EXIT_USAGE = 2,
    EXIT_NO_DEVICE = 3,
    EXIT_NO_MEMORY = 4,
    EXIT_CHANGED = 5
};

#define MAX_STREAMS   256u
#define MAX_MIX       16u /* lengths of --kernel-mix */
#define MAX_IN_FLIGHT 1024u

struct options {
    double kernel_us, busy_s, idle_s, length_s;
    double gap_s;          /* away from the card after each request */
    double period_s, duty; /* a fixed clock of bursts; 0: busy_s and idle_s follow each other */
    double poisson;        /* requests per second, 0: one after another */
    double mix[MAX_MIX];   /* lengths of kernels in microseconds, drawn for each kernel */
    unsigned nmix;
    uint64_t kernels, requests, warmup, sync_every, iterations, memory, alloc_past, seed, in_flight,
        start_at, copy, pattern;
    unsigned streams, procs;
    int device;
    const char *log;
    bool has_requests, json, progress, log_requests, graph;
};

/* Every function that is used: base name, the CUDA version whose ABI is meant, type of the pointer.
 */
#define DRIVER_FUNCTIONS(X)                                                                        \
    X(cuInit, 2000, (unsigned))                                                                    \
    X(cuDeviceGet, 2000, (CUdevice *, int))                                                        \
    X(cuDeviceGetCount, 2000, (int *))                                                             \
    X(cuDeviceGetName, 2000, (char *, int, CUdevice))                                              \
    X(cuDeviceGetUuid, 11040, (CUuuid *, CUdevice))                                                \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))                                     \
    X(cuDevicePrimaryCtxRelease, 11000, (CUdevice))                                                \
    X(cuCtxSetCurrent, 4000, (CUcontext))                                                          \
    X(cuCtxSynchronize, 2000, (void))                                                              \
    X(cuModuleLoadData, 2000, (CUmodule *, const void *))                                          \
    X(cuModuleGetFunction, 2000, (CUfunction *, CUmodule, const char *))                           \
    X(cuLaunchKernel, 4000,                                                                        \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
       void **, void **))                                                                          \
    X(cuStreamCreate, 2000, (CUstream *, unsigned))                                                \
    X(cuStreamSynchronize, 2000, (CUstream))                                                       \
    X(cuEventCreate, 2000, (CUevent *, unsigned))                                                  \
    X(cuEventRecord, 2000, (CUevent, CUstream))                                                    \
    X(cuEventSynchronize, 2000, (CUevent))                                                         \
    X(cuEventElapsedTime, 2000, (float *, CUevent, CUevent))                                       \
    X(cuMemAlloc, 3020, (CUdeviceptr *, size_t))                                                   \
    X(cuMemFree, 3020, (CUdeviceptr))                                                              \
    X(cuMemsetD8, 3020, (CUdeviceptr, unsigned char, size_t))                                      \
    X(cuGetErrorName, 6000, (CUresult, const char **))

/* Only resolved for --graph: a driver without them runs everything else. */
#define GRAPH_FUNCTIONS(X)                                                                         \
    X(cuStreamBeginCapture, 10010, (CUstream, CUstreamCaptureMode))                                \
    X(cuStreamEndCapture, 10000, (CUstream, CUgraph *))                                            \
    X(cuGraphInstantiateWithFlags, 11040, (CUgraphExec *, CUgraph, unsigned long long))            \
    X(cuGraphLaunch, 10000, (CUgraphExec, CUstream))

/* Only resolved for --copy. */
#define COPY_FUNCTIONS(X)                                                                          \
    X(cuMemAllocHost, 3020, (void **, size_t))                                                     \
    X(cuMemcpyHtoDAsync, 3020, (CUdeviceptr, const void *, size_t, CUstream))                      \
    X(cuMemcpyDtoHAsync, 3020, (void *, CUdeviceptr, size_t, CUstream))

/* Only resolved for --pattern. */
#define PATTERN_FUNCTIONS(X)                                                                       \
    X(cuMemcpyHtoD, 3020, (CUdeviceptr, const void *, size_t))                                     \
    X(cuMemcpyDtoH, 3020, (void *, CUdeviceptr, size_t))

struct driver {
#define X(name, version, parameters) CUresult(*p_##name) parameters;
    DRIVER_FUNCTIONS(X)
    GRAPH_FUNCTIONS(X)
    COPY_FUNCTIONS(X)
    PATTERN_FUNCTIONS(X)
#undef X
    CUfunction work;
    CUgraphExec graph; /* one request, with --graph */
    CUstream streams[MAX_STREAMS];
    CUevent in_flight[MAX_IN_FLIGHT];
    CUdeviceptr memory;
    CUdeviceptr pattern[8]; /* of --pattern */
    struct {
        CUdeviceptr card;
        void *host;
        CUstream stream;
    } copies[2]; /* to the card and back, with --copy */
    char name[96], uuid[48];
};

/* Draws that are the same for the same seed on every machine. */
struct draw {
    uint64_t state;
};

struct result {
    uint64_t kernels, requests, bursts, errors, refused_at, iterations;
    uint64_t pattern_pages, pattern_wrong;
    /* busy: inside bursts, from the first launch to the last completion */
    uint64_t start_ns, end_ns, busy_ns;
    double kernel_us; /* sum over all counted kernels */
    bool refused;
    char refusal[64];
    uint64_t *latency; /* ns; a random sample once it is full */
    uint64_t nlatency, seen;
};

void parse_options(struct options *options, int argc, char **argv);

/* Each prints a sentence and leaves the process with an exit code of its own when it fails. */
void driver_open(struct driver *driver, const struct options *options);
void driver_check(const struct driver *driver, CUresult status, const char *what);
const char *driver_error(const struct driver *driver, CUresult status);
void driver_take_memory(struct driver *driver, const struct options *options);
void driver_take_pattern(struct driver *driver, const struct options *options,
                         struct result *result);
void driver_compare_pattern(const struct driver *driver, const struct options *options,
                            struct result *result);
void driver_alloc_past(struct driver *driver, const struct options *options, struct result *result);
uint64_t driver_calibrate(struct driver *driver, double kernel_us); /* iterations of one kernel */
CUresult driver_launch(const struct driver *driver, CUstream stream, uint64_t iterations);

void driver_open_copies(struct driver *driver, const struct options *options);
void driver_copy(const struct driver *driver, uint64_t bytes); /* both ways, beside whatever runs */
void driver_capture(struct driver *driver, const struct options *options,
                    const struct result *result, struct draw *draw, double *graph_us);

void draw_seed(struct draw *draw, uint64_t seed);
uint64_t draw_u64(struct draw *draw);
double draw_exponential(struct draw *draw, double mean);
/* length of the next kernel in microseconds */
double draw_kernel(struct draw *draw, const struct options *options);
uint64_t kernel_iterations(const struct options *options, const struct result *result,
                           double kernel_us);

/* Runs the program in --procs processes and returns in each of the children; the parent leaves with
 * the worst status. */
void fork_processes(struct options *options);

/* SIGTERM and SIGINT end the load early; it reports what it did. Call it before the first call of
 * the driver: kernels are launched before run(), to measure how long they take. */
void catch_stops(void);
void run(struct driver *driver, const struct options *options, struct result *result);
void report(const struct driver *driver, const struct options *options, struct result *result);
uint64_t now_ns(void);

#endif
