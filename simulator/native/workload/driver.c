/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver, opened and resolved as the CUDA runtime does it: dlopen of libcuda.so.1, one dlsym,
 * then everything through cuGetProcAddress.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "workload.h"

/* A chain of dependent multiplications; the result is stored only if it is zero, which no compiler
 * can rule out. */
static const char ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
                          ".visible .global .align 8 .u64 qgpu_sink;\n"
                          ".visible .entry qgpu_work(.param .u64 iterations)\n"
                          "{\n"
                          "  .reg .pred %p<3>;\n"
                          "  .reg .b64 %rd<5>;\n"
                          "  ld.param.u64 %rd1, [iterations];\n"
                          "  mov.u64 %rd2, 0;\n"
                          "  mov.u64 %rd3, %clock64;\n"
                          "again:\n"
                          "  setp.ge.u64 %p1, %rd2, %rd1;\n"
                          "  @%p1 bra done;\n"
                          "  mad.lo.u64 %rd3, %rd3, 6364136223846793005, 1442695040888963407;\n"
                          "  add.u64 %rd2, %rd2, 1;\n"
                          "  bra again;\n"
                          "done:\n"
                          "  setp.ne.u64 %p2, %rd3, 0;\n"
                          "  @%p2 bra end;\n"
                          "  st.global.u64 [qgpu_sink], %rd3;\n"
                          "end:\n"
                          "  ret;\n"
                          "}\n";

typedef CUresult (*resolver_v1)(const char *, void **, int, cuuint64_t);
typedef CUresult (*resolver_v2)(const char *, void **, int, cuuint64_t,
                                CUdriverProcAddressQueryResult *);

struct resolver {
    resolver_v1 v1;
    resolver_v2 v2;
};

static void leave(enum exit_code code, const char *text)
{
    fprintf(stderr, "qgpu-workload: %s\n", text);
    exit(code);
}

static void *resolve(const struct resolver *resolver, const char *name, int version)
{
    void *function = NULL;
    char text[160];
    CUdriverProcAddressQueryResult found;
    CUresult status = resolver->v2 ? resolver->v2(name, &function, version, 0, &found)
                                   : resolver->v1(name, &function, version, 0);
    if (status != CUDA_SUCCESS || !function) {
        snprintf(text, sizeof text, "the driver has no %s for CUDA %d.%d; it is too old", name,
                 version / 1000, version % 1000 / 10);
        leave(EXIT_NO_DEVICE, text);
    }
    return function;
}

static void load(struct driver *driver, const struct options *options)
{
    struct resolver resolver = {0};
    char text[256];
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        snprintf(text, sizeof text, "no NVIDIA driver: %s", dlerror());
        leave(EXIT_NO_DEVICE, text);
    }
    *(void **)&resolver.v2 = dlsym(library, "cuGetProcAddress_v2");
    *(void **)&resolver.v1 = dlsym(library, "cuGetProcAddress");
    if (!resolver.v1 && !resolver.v2)
        leave(EXIT_NO_DEVICE,
              "libcuda.so.1 has no cuGetProcAddress; a driver for CUDA 11.4 or newer is needed");
#define X(name, version, parameters)                                                               \
    *(void **)&driver->p_##name = resolve(&resolver, #name, version);
    DRIVER_FUNCTIONS(X)
    if (options->graph) {
        GRAPH_FUNCTIONS(X)
    }
    if (options->copy) {
        COPY_FUNCTIONS(X)
    }
    if (options->pattern) {
        PATTERN_FUNCTIONS(X)
    }
#undef X
}

const char *driver_error(const struct driver *driver, CUresult status)
{
    const char *name = NULL;
    return driver->p_cuGetErrorName(status, &name) == CUDA_SUCCESS && name ? name
                                                                           : "an unknown error";
}

void driver_check(const struct driver *driver, CUresult status, const char *what)
{
    if (status == CUDA_SUCCESS)
        return;
    fprintf(stderr, "qgpu-workload: %s failed: %s (%d)\n", what, driver_error(driver, status),
            (int)status);
    exit(EXIT_DRIVER);
}

static void identify(struct driver *driver, CUdevice device)
{
    CUuuid uuid;
    const unsigned char *b = (const unsigned char *)uuid.bytes;
    driver_check(driver, driver->p_cuDeviceGetName(driver->name, sizeof driver->name, device),
                 "cuDeviceGetName");
    driver_check(driver, driver->p_cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid");
    snprintf(driver->uuid, sizeof driver->uuid,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
}

void driver_open(struct driver *driver, const struct options *options)
{
    CUcontext ctx;
    CUmodule module;
    CUdevice device;
    int count = 0;
    load(driver, options);
    CUresult status = driver->p_cuInit(0);
    if (status != CUDA_SUCCESS) {
        fprintf(stderr, "qgpu-workload: no card can be used: cuInit says %s\n",
                driver_error(driver, status));
        exit(EXIT_NO_DEVICE);
    }
    driver_check(driver, driver->p_cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (options->device >= count) {
        fprintf(stderr,
                "qgpu-workload: --device %d: this process sees %d card%s, numbered from 0\n",
                options->device, count, count == 1 ? "" : "s");
        exit(EXIT_NO_DEVICE);
    }
    driver_check(driver, driver->p_cuDeviceGet(&device, options->device), "cuDeviceGet");
    identify(driver, device);
    driver_check(driver, driver->p_cuDevicePrimaryCtxRetain(&ctx, device), "creating a context");
    driver_check(driver, driver->p_cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
    driver_check(driver, driver->p_cuModuleLoadData(&module, ptx), "loading the kernel");
    driver_check(driver, driver->p_cuModuleGetFunction(&driver->work, module, "qgpu_work"),
                 "finding the kernel");
    for (unsigned i = 0; i < options->streams; i++)
        driver_check(driver, driver->p_cuStreamCreate(&driver->streams[i], CU_STREAM_NON_BLOCKING),
                     "cuStreamCreate");
    for (uint64_t i = 0; i < options->in_flight; i++)
        driver_check(driver,
                     driver->p_cuEventCreate(&driver->in_flight[i], CU_EVENT_DISABLE_TIMING),
                     "cuEventCreate");
}

CUresult driver_launch(const struct driver *driver, CUstream stream, uint64_t iterations)
{
    void *parameters[] = {&iterations};
    return driver->p_cuLaunchKernel(driver->work, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

void driver_open_copies(struct driver *driver, const struct options *options)
{
    for (int i = 0; options->copy && i < 2; i++) {
        driver_check(driver, driver->p_cuMemAlloc(&driver->copies[i].card, options->copy),
                     "--copy: cuMemAlloc");
        driver_check(driver, driver->p_cuMemAllocHost(&driver->copies[i].host, options->copy),
                     "--copy: cuMemAllocHost");
        driver_check(driver,
                     driver->p_cuStreamCreate(&driver->copies[i].stream, CU_STREAM_NON_BLOCKING),
                     "cuStreamCreate");
    }
}

void driver_copy(const struct driver *driver, uint64_t bytes)
{
    driver_check(driver,
                 driver->p_cuMemcpyHtoDAsync(driver->copies[0].card, driver->copies[0].host, bytes,
                                             driver->copies[0].stream),
                 "copying to the card");
    driver_check(driver,
                 driver->p_cuMemcpyDtoHAsync(driver->copies[1].host, driver->copies[1].card, bytes,
                                             driver->copies[1].stream),
                 "copying from the card");
}

/* A graph keeps the lengths that were drawn at its capture. */
void driver_capture(struct driver *driver, const struct options *options,
                    const struct result *result, struct draw *draw, double *graph_us)
{
    CUgraph graph;
    driver_check(
        driver,
        driver->p_cuStreamBeginCapture(driver->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
        "cuStreamBeginCapture");
    for (uint64_t i = 0; i < options->kernels; i++) {
        double us = draw_kernel(draw, options);
        *graph_us += us;
        driver_check(
            driver,
            driver_launch(driver, driver->streams[0], kernel_iterations(options, result, us)),
            "capturing a kernel");
    }
    driver_check(driver, driver->p_cuStreamEndCapture(driver->streams[0], &graph),
                 "cuStreamEndCapture");
    driver_check(driver, driver->p_cuGraphInstantiateWithFlags(&driver->graph, graph, 0),
                 "instantiating the graph");
}

void driver_take_memory(struct driver *driver, const struct options *options)
{
    if (!options->memory)
        return;
    CUresult status = driver->p_cuMemAlloc(&driver->memory, options->memory);
    if (status != CUDA_SUCCESS) {
        fprintf(stderr, "qgpu-workload: --memory: %.1f GiB were refused: %s\n",
                (double)options->memory / (1u << 30), driver_error(driver, status));
        exit(EXIT_NO_MEMORY);
    }
    driver_check(driver, driver->p_cuMemsetD8(driver->memory, 0x5a, options->memory),
                 "writing the memory");
    driver_check(driver, driver->p_cuCtxSynchronize(), "cuCtxSynchronize");
}

/* In steps of 64 MiB, all freed again. */
void driver_alloc_past(struct driver *driver, const struct options *options, struct result *result)
{
    const uint64_t step = 64ull << 20;
    uint64_t steps = (options->alloc_past + step - 1) / step, n = 0;
    CUdeviceptr *taken = steps ? calloc(steps, sizeof *taken) : NULL;
    if (!steps)
        return;
    if (!taken)
        leave(EXIT_DRIVER, "--alloc-past: no host memory for the list of allocations");
    CUresult status = CUDA_SUCCESS;
    while (n < steps && (status = driver->p_cuMemAlloc(&taken[n], step)) == CUDA_SUCCESS)
        n++;
    result->refused = status != CUDA_SUCCESS;
    result->refused_at = n * step;
    snprintf(result->refusal, sizeof result->refusal, "%s", driver_error(driver, status));
    for (uint64_t i = 0; i < n; i++)
        driver_check(driver, driver->p_cuMemFree(taken[i]), "cuMemFree");
    free(taken);
    if (options->json)
        return;
    if (result->refused)
        printf("allocation past %.2f GiB refused: %s\n", (double)result->refused_at / (1u << 30),
               result->refusal);
    else
        printf("allocated %.2f GiB without refusal\n", (double)result->refused_at / (1u << 30));
    fflush(stdout);
}

/* A kernel goes ahead, so that the card is busy when it gets both events: else the launch's delay
 * is measured too. */
static double timed(struct driver *driver, CUevent *events, uint64_t iterations)
{
    float ms = 0;
    driver_check(driver, driver_launch(driver, driver->streams[0], 200000), "launching a kernel");
    driver_check(driver, driver->p_cuEventRecord(events[0], driver->streams[0]), "cuEventRecord");
    driver_check(driver, driver_launch(driver, driver->streams[0], iterations),
                 "launching a kernel");
    driver_check(driver, driver->p_cuEventRecord(events[1], driver->streams[0]), "cuEventRecord");
    driver_check(driver, driver->p_cuEventSynchronize(events[1]), "cuEventSynchronize");
    driver_check(driver, driver->p_cuEventElapsedTime(&ms, events[0], events[1]),
                 "cuEventElapsedTime");
    return (double)ms * 1e6;
}

/* The difference of a long and a short run has no launch cost in it; the smallest of each is the
 * least disturbed. */
uint64_t driver_calibrate(struct driver *driver, double kernel_us)
{
    const uint64_t few = 20000, many = 220000;
    CUevent events[2];
    double low = 1e18, high = 1e18;
    for (int i = 0; i < 2; i++)
        driver_check(driver, driver->p_cuEventCreate(&events[i], 0), "cuEventCreate");
    timed(driver, events, few);
    for (int i = 0; i < 7; i++) {
        double a = timed(driver, events, few), b = timed(driver, events, many);
        low = a < low ? a : low;
        high = b < high ? b : high;
    }
    double ns = (high - low) / (double)(many - few);
    if (!(ns > 1e-6))
        leave(EXIT_DRIVER, "the time of a kernel cannot be measured; give --iters");
    double iterations = kernel_us * 1e3 / ns;
    return iterations < 1 ? 1 : (uint64_t)(iterations + 0.5);
}
