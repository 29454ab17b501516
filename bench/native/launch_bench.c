/* SPDX-License-Identifier: Apache-2.0
 *
 * What the shim adds to a launch and to an allocation. Calls through the shim and straight into the
 * stub driver are timed in short alternating runs, so that frequency and neighbours hit both alike;
 * the figure is the median of the differences.
 *
 * With 8 threads each thread has a stream of its own and is timed by its own processor time, so
 * that a machine with fewer processors gives the cost of a call and not that of waiting for a
 * processor or for each other.
 *
 * Usage: launch-bench [--live N] [--pairs N] [--window-us N] [--kernel-us N]; needs root (only root
 * can make a grant). Prints `name value` lines; beside each figure the unit of the machine in the
 * same run (bench/noise/calibrate.h). --window-us is what the gate's window holds: 20000 (the
 * default) of a tenant alone on its card, less of one that has neighbours; 0: a gate without a
 * window, as where isolation is off. --live -1 leaves out allocations.
 *
 * Kernels take --kernel-us (10) by the stub's events, and its card does them at once: a launch
 * finds every earlier marker reached and never waits for room in the window. What is timed is the
 * bookkeeping of a launch that may go on.
 */
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cuda.h>

#include "calibrate.h"
#include "mini_arbiter.h"
#include "policy/policy.h"
#include "qg_time.h"
#include "stub.h"

#define CALLS     2000 /* per run */
#define CAP       ((uint64_t)40 << 30)
#define MAX_PAIRS 4096
#define THREADS   8

typedef CUresult (*launch_t)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, CUstream, void **, void **);
typedef CUresult (*alloc_t)(CUdeviceptr *, size_t);
typedef CUresult (*free_t)(CUdeviceptr);

struct api {
    launch_t launch;
    alloc_t alloc;
    free_t free;
    CUstream stream;
};

static double time_launches(const struct api *api)
{
    uint64_t start = qg_now_ns();
    for (int i = 0; i < CALLS; i++)
        api->launch((CUfunction)0x10, 1, 1, 1, 1, 1, 1, 0, api->stream, NULL, NULL);
    return (double)(qg_now_ns() - start) / CALLS;
}

static double time_allocs(const struct api *api)
{
    CUdeviceptr pointer;
    uint64_t start = qg_now_ns();
    for (int i = 0; i < CALLS; i++) {
        api->alloc(&pointer, 4096);
        api->free(pointer);
    }
    return (double)(qg_now_ns() - start) / CALLS;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare);
    return values[count / 2];
}

static void figure(const char *name, double (*timed)(const struct api *), const struct api *shim,
                   const struct api *direct, int pairs)
{
    static double difference[MAX_PAIRS], base[MAX_PAIRS], unit[MAX_PAIRS];
    timed(shim);
    timed(direct);
    for (int i = 0; i < pairs; i++) {
        double through = i % 2 ? timed(shim) : 0;
        base[i] = timed(direct);
        difference[i] = (i % 2 ? through : timed(shim)) - base[i];
        unit[i] = qb_unit_ns(qg_now_ns);
    }
    printf("%s %.1f\n", name, median(difference, pairs));
    printf("%s_direct %.1f\n", name, median(base, pairs));
    printf("%s_unit %.3f\n", name, median(unit, pairs));
}

static uint64_t thread_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double thread_launches(launch_t launch, CUstream stream)
{
    uint64_t start = thread_ns();
    for (int i = 0; i < CALLS; i++)
        launch((CUfunction)0x10, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    return (double)(thread_ns() - start) / CALLS;
}

struct worker {
    const struct api *shim, *direct;
    CUresult (*set)(CUcontext), (*create)(CUstream *, unsigned int);
    CUcontext context;
    pthread_barrier_t *start;
    double *difference, *unit;
    int pairs;
};

static void *launch_worker(void *of)
{
    struct worker *w = of;
    CUstream stream = NULL;
    w->set(w->context);
    w->create(&stream, 0);
    thread_launches(w->shim->launch, stream);
    pthread_barrier_wait(w->start);
    for (int i = 0; i < w->pairs; i++) {
        double through = i % 2 ? thread_launches(w->shim->launch, stream) : 0;
        double base = thread_launches(w->direct->launch, stream);
        w->difference[i] = (i % 2 ? through : thread_launches(w->shim->launch, stream)) - base;
        w->unit[i] = qb_unit_ns(thread_ns);
    }
    return NULL;
}

/* All threads at once; the stub counts nothing meanwhile, because its one counter would be what
 * they wait for. */
static void figure_of_threads(struct worker w, int pairs, int *counting)
{
    static double difference[THREADS * MAX_PAIRS], unit[THREADS * MAX_PAIRS];
    pthread_t threads[THREADS];
    struct worker workers[THREADS];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, THREADS);
    *counting = 0;
    for (int i = 0; i < THREADS; i++) {
        workers[i] = w;
        workers[i].start = &start;
        workers[i].pairs = pairs;
        workers[i].difference = &difference[i * pairs];
        workers[i].unit = &unit[i * pairs];
        pthread_create(&threads[i], NULL, launch_worker, &workers[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    *counting = 1;
    printf("launch_overhead_ns_8t %.1f\n", median(difference, THREADS * pairs));
    printf("launch_overhead_ns_8t_unit %.3f\n", median(unit, THREADS * pairs));
}

static struct api from(void *handle)
{
    struct api api = {(launch_t)dlsym(handle, "cuLaunchKernel"),
                      (alloc_t)dlsym(handle, "cuMemAlloc_v2"),
                      (free_t)dlsym(handle, "cuMemFree_v2"), NULL};
    return api;
}

/* A shim without an arbiter waits for none, which would flatter it: its pages must be mapped. */
static int registered(void)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof(line), maps))
        found |= strstr(line, "/memfd:gate") != NULL;
    if (maps)
        fclose(maps);
    return found;
}

static int time_memory(const struct api *shim, const struct api *direct, int live, int pairs)
{
    CUdeviceptr pointer;
    figure("alloc_pair_overhead_ns", time_allocs, shim, direct, pairs);
    for (int i = 0; i < live; i++)
        if (shim->alloc(&pointer, 4096) != CUDA_SUCCESS)
            return 1;
    figure("alloc_pair_live_overhead_ns", time_allocs, shim, direct, pairs);
    return 0;
}

/* Inside the "job": the shim is preloaded. */
static int measure(const char *stub_path, int live, int pairs, int kernel_us)
{
    CUresult (*init)(unsigned int);
    CUresult (*create)(CUcontext *, unsigned int, CUdevice);
    CUresult (*stream)(CUstream *, unsigned int);
    void *shim_handle = dlopen("libcuda.so.1", RTLD_NOW),
         *stub_handle = dlopen(stub_path, RTLD_NOW);
    if (!shim_handle || !stub_handle) {
        fprintf(stderr, "launch-bench: %s\n", dlerror());
        return 1;
    }
    struct api shim = from(shim_handle), direct = from(stub_handle);
    if (shim.launch == direct.launch) {
        fprintf(stderr, "launch-bench: the shim is not preloaded; there is nothing to compare\n");
        return 1;
    }
    *(void **)&init = dlsym(shim_handle, "cuInit");
    *(void **)&create = dlsym(shim_handle, "cuCtxCreate_v2");
    *(void **)&stream = dlsym(shim_handle, "cuStreamCreate");
    CUcontext context;
    if (init(0) || create(&context, 0, 0) || stream(&shim.stream, 0)) {
        fprintf(stderr, "launch-bench: the stub driver did not start\n");
        return 1;
    }
    direct.stream = shim.stream;
    if (!registered()) {
        fprintf(stderr, "launch-bench: the shim did not register with the benchmark's arbiter\n");
        return 1;
    }
    struct stub_state *stub = dlsym(stub_handle, "stub");
    stub->elapsed_ms = (float)kernel_us / 1000;
    figure("launch_overhead_ns", time_launches, &shim, &direct, pairs);
    struct worker worker = {.shim = &shim, .direct = &direct, .create = stream, .context = context};
    *(void **)&worker.set = dlsym(shim_handle, "cuCtxSetCurrent");
    figure_of_threads(worker, (pairs + 3) / 4, &stub->counting);
    shim.stream = NULL;
    figure("launch_default_stream_overhead_ns", time_launches, &shim, &direct, pairs);
    return live < 0 ? 0 : time_memory(&shim, &direct, live, pairs);
}

static int setup_and_exec(char **argv, const char *build, const char *stub_path, int window_us)
{
    char dir[] = "/tmp/qgpu-bench-XXXXXX", path[PATH_MAX + 64], number[16];
    if (!mkdtemp(dir))
        return 1;
    int arbiter = mini_arbiter(dir, CAP, (uint32_t)window_us),
        grant = mini_grant(dir, stub_path, CAP), status = 0;
    if (arbiter < 0 || grant < 0 || geteuid() != 0) {
        fprintf(stderr, "launch-bench: needs root, because only root can make a grant that the "
                        "shim believes\n");
        return 1;
    }
    snprintf(number, sizeof(number), "%d", grant);
    snprintf(path, sizeof(path), "%s/shim/libcuda.so.1", build);
    int pid = fork();
    if (pid == 0) {
        setenv("QGPU_GRANT_FD", number, 1);
        setenv("LD_PRELOAD", path, 1);
        setenv("QGPU_BENCH_STUB", stub_path, 1);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    kill(arbiter, SIGKILL);
    waitpid(arbiter, NULL, 0);
    snprintf(path, sizeof(path), "%s/%s", dir, QG_SOCK_REGISTER);
    unlink(path);
    rmdir(dir);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
    int live = 100000, pairs = 401, window_us = QP_LONE_WINDOW_US, kernel_us = 10;
    char self[PATH_MAX] = "", stub_path[PATH_MAX + 32], *inside = getenv("QGPU_BENCH_STUB");
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--live"))
            live = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--pairs"))
            pairs = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--window-us"))
            window_us = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--kernel-us"))
            kernel_us = atoi(argv[i + 1]);
    }
    if (pairs < 1 || pairs > MAX_PAIRS || live < -1 || window_us < 0 || kernel_us < 1) {
        fprintf(stderr,
                "launch-bench: --pairs takes 1 to %d, --live -1 or more, --window-us 0 or more, "
                "--kernel-us 1 or "
                "more\n",
                MAX_PAIRS);
        return 2;
    }
    if (inside)
        return measure(inside, live, pairs, kernel_us);
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
        return 1;
    char *here = dirname(self);
    snprintf(stub_path, sizeof(stub_path), "%s/stub/libcuda.so.1", here);
    return setup_and_exec(argv, dirname(here), stub_path, window_us);
}
