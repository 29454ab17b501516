/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA program that does what it is told, one command per line on stdin, one answer per line on
 * stdout. It opens libcuda.so.1 the way the CUDA runtime does, so in the tests it gets the shim;
 * QGPU_TEST_STUB names the stub driver for the commands that control or count behind the shim's
 * back.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cuda.h>

#include "probe.h"
#include "stub.h"

#define SLOTS 128

void *cuda;
struct stub_state *state;
static int (*release_markers)(int);
CUcontext contexts[SLOTS];
CUstream streams[SLOTS];
static CUdeviceptr pointers[SLOTS];
static CUmemGenericAllocationHandle handles[SLOTS];

long arg(char **words, int at)
{
    return words[at] ? strtol(words[at], NULL, 0) : 0;
}

int launch_on(CUstream stream, long function, long times)
{
    int result = 0;
    for (long i = 0; i < times && !result; i++)
        result = CALL(cuLaunchKernel)((CUfunction)(uintptr_t)function, 1, 1, 1, 1, 1, 1, 0, stream,
                                      NULL, NULL);
    return result;
}

static pthread_barrier_t together; /* all threads live from their first launch to their last */

static void *launch_thread(void *times)
{
    static const struct timespec pause = {0, 1000};
    long left = (long)(intptr_t)times;
    CALL(cuCtxSetCurrent)(contexts[0]);
    CUstream stream;
    CALL(cuStreamCreate)(&stream, 0);
    pthread_barrier_wait(&together);
    for (; left > 0; left--) {
        launch_on(left % 2 ? stream : NULL, 0x10, 1);
        CUdeviceptr pointer;
        if (left % 4 == 0 && CALL(cuMemAlloc_v2)(&pointer, 4096) == CUDA_SUCCESS)
            CALL(cuMemFree_v2)(pointer);
        if (left % 64 == 0)
            CALL(cuCtxSynchronize)();
        if (left % 256 == 0) {
            CALL(cuStreamDestroy_v2)(stream);
            CALL(cuStreamCreate)(&stream, 0);
            nanosleep(&pause, NULL);
        }
    }
    pthread_barrier_wait(&together);
    return NULL;
}

/* A stream per request: created, used, destroyed. */
static int churn(long times)
{
    CUstream stream;
    for (long i = 0; i < times; i++) {
        CALL(cuStreamCreate)(&stream, 0);
        if (launch_on(stream, 0x10, 1) || CALL(cuStreamDestroy_v2)(stream))
            return 1;
    }
    return 0;
}

static int threads(long count, long times)
{
    pthread_t all[64];
    count = count < 64 ? count : 64;
    pthread_barrier_init(&together, NULL, (unsigned)count);
    for (long i = 0; i < count; i++)
        pthread_create(&all[i], NULL, launch_thread, (void *)(intptr_t)times);
    for (long i = 0; i < count; i++)
        pthread_join(all[i], NULL);
    return 0;
}

/* The child gets a CUDA of its own; the parent's result is the child's exit status. */
static int in_child(long bytes)
{
    int status = 0, pid = fork();
    if (pid == 0) {
        CUdeviceptr pointer;
        int result = CALL(cuInit)(0);
        if (!result)
            result = CALL(cuCtxCreate_v2)(&contexts[0], 0, 0);
        if (!result)
            result = CALL(cuMemAlloc_v2)(&pointer, (size_t)bytes);
        if (!result)
            result = launch_on(NULL, 0x10, 1);
        _exit(result);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* A child that no handler of fork(3) has seen uses its parent's CUDA, as it must not, and frees
 * what it got. */
static int in_clone(long bytes)
{
    int status = 0, pid = (int)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        CUdeviceptr pointer;
        size_t left, all;
        int result = CALL(cuMemAlloc_v2)(&pointer, (size_t)bytes);
        if (!result)
            result = launch_on(NULL, 0x10, 1);
        if (!result)
            result = CALL(cuCtxSynchronize)();
        if (!result)
            result = CALL(cuMemGetInfo_v2)(&left, &all);
        if (!result)
            result = CALL(cuMemFree_v2)(pointer);
        _exit(result);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Closes everything but stdio and takes the freed numbers for one file; later the file must still
 * be empty. */
static int close_all(const char *path)
{
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int fd = 3; fd < 512; fd++)
        if (fd != file)
            dup2(file, fd);
    return 0;
}

static int create_physical(int at, long bytes, long type, long id)
{
    CUmemAllocationProp property = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.id = (int)id}};
    property.location.type = type ? (CUmemLocationType)type : CU_MEM_LOCATION_TYPE_DEVICE;
    return CALL(cuMemCreate)(&handles[at], (size_t)bytes, &property, 0);
}

/* The stub makes no pools and gives nothing out of them: the names are ours. */
static CUmemoryPool pool_named(long at)
{
    return (CUmemoryPool)(uintptr_t)(0x50000 + 16 * at);
}

static int pool_command(char **w)
{
    int at = (int)(arg(w, 1) % SLOTS);
    CUmemoryPool pool = pool_named(strcmp(w[0], "from_pool") ? at : arg(w, 3));
    CUmemPoolProps property = {.allocType = (CUmemAllocationType)arg(w, 4),
                               .location = {.id = (int)arg(w, 3)}};
    property.location.type = (CUmemLocationType)arg(w, 2);
    /* pool POOL TYPE ID KIND: the bytes of a CUmemLocation; pinned is 1, managed 2 */
    if (!strcmp(w[0], "pool"))
        return CALL(cuMemPoolCreate)(&pool, &property);
    if (!strcmp(w[0], "get_pool")) /* the same, the driver's own */
        return CALL(cuMemGetDefaultMemPool)(&pool, &property.location, property.allocType);
    if (!strcmp(w[0], "pool_destroy"))
        return CALL(cuMemPoolDestroy)(pool);
    if (strcmp(w[0], "from_pool")) /* from_pool SLOT SIZE POOL */
        return -1;
    pointers[at] = 0x70000000u + 0x100u * (unsigned)at;
    return CALL(cuMemAllocFromPoolAsync)(&pointers[at], (size_t)arg(w, 2), pool, streams[0]);
}

static int memory_command(char **w)
{
    int at = (int)(arg(w, 1) % SLOTS);
    if (!strcmp(w[0], "alloc"))
        return CALL(cuMemAlloc_v2)(&pointers[at], (size_t)arg(w, 2));
    if (!strcmp(w[0], "alloc_async"))
        return CALL(cuMemAllocAsync)(&pointers[at], (size_t)arg(w, 2), streams[arg(w, 3) % SLOTS]);
    if (!strcmp(w[0], "managed"))
        return CALL(cuMemAllocManaged)(&pointers[at], (size_t)arg(w, 2), CU_MEM_ATTACH_GLOBAL);
    if (!strcmp(w[0], "free"))
        return CALL(cuMemFree_v2)(pointers[at]);
    if (!strcmp(w[0], "free_async"))
        return CALL(cuMemFreeAsync)(pointers[at], streams[arg(w, 2) % SLOTS]);
    if (!strcmp(w[0], "pitch")) {
        size_t pitch;
        return CALL(cuMemAllocPitch_v2)(&pointers[at], &pitch, (size_t)arg(w, 2), (size_t)arg(w, 3),
                                        4);
    }
    /* endpoint SLOT DEVICE AT SIZE: binds what "create SLOT" made to endpoint 7 */
    if (!strcmp(w[0], "endpoint"))
        return CALL(cuLogicalEndpointBindMem)(7, (int)arg(w, 2), (uint64_t)arg(w, 3), handles[at],
                                              0, (uint64_t)arg(w, 4), 0);
    if (!strcmp(w[0], "create")) /* create SLOT SIZE [TYPE ID]: the bytes of a CUmemLocation */
        return create_physical(at, arg(w, 2), arg(w, 3), arg(w, 4));
    if (!strcmp(w[0], "release"))
        return CALL(cuMemRelease)(handles[at]);
    if (!strcmp(w[0], "map"))
        return CALL(cuMemMap)((CUdeviceptr)arg(w, 2), (size_t)arg(w, 3), 0, handles[at], 0);
    if (!strcmp(w[0], "unmap"))
        return CALL(cuMemUnmap)((CUdeviceptr)arg(w, 1), (size_t)arg(w, 2));
    return pool_command(w);
}

static int stream_command(char **w)
{
    CUgraph graph;
    CUevent event = (CUevent)(uintptr_t)0x77;
    CUstream stream = streams[arg(w, 1) % SLOTS];
    if (!strcmp(w[0], "stream"))
        return CALL(cuStreamCreate)(&streams[arg(w, 1) % SLOTS], 0);
    if (!strcmp(w[0], "destroy"))
        return CALL(cuStreamDestroy_v2)(stream);
    if (!strcmp(w[0], "launch")) /* launch STREAM FUNCTION TIMES */
        return launch_on(stream, arg(w, 2), arg(w, 3));
    if (!strcmp(w[0], "sync"))
        return CALL(cuStreamSynchronize)(stream);
    if (!strcmp(w[0], "record"))
        return CALL(cuEventRecord)(event, stream);
    if (!strcmp(w[0], "capture"))
        return CALL(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (!strcmp(w[0], "end_capture"))
        return CALL(cuStreamEndCapture)(stream, &graph);
    if (!strcmp(w[0], "copy")) { /* copy STREAM BYTES [TIMES] */
        int result = CALL(cuMemcpyHtoDAsync_v2)(0x1000, &graph, (size_t)arg(w, 2), stream);
        for (long i = w[3] ? arg(w, 3) - 1 : 0; i > 0 && !result; i--)
            result = CALL(cuMemcpyHtoDAsync_v2)(0x1000, &graph, (size_t)arg(w, 2), stream);
        return result;
    }
    if (!strcmp(w[0], "graph"))
        return CALL(cuGraphLaunch)((CUgraphExec)(uintptr_t)arg(w, 2), stream);
    if (!strcmp(w[0], "ctx_sync"))
        return CALL(cuCtxSynchronize)();
    return memory_command(w);
}

/* The file and symbol behind an address: "libcuda.so.1:cuMemAlloc_v2" with the directory's last
 * part before it. */
static void say_origin(void *address)
{
    Dl_info info = {0};
    if (!address || !dladdr(address, &info) || !info.dli_fname) {
        puts("none");
        return;
    }
    printf("%s %s\n", strstr(info.dli_fname, "/shim/libcuda") ? "shim" : "driver",
           info.dli_sname ? info.dli_sname : "?");
}

static int say_command(char **w)
{
    size_t left = 0, all = 0;
    void *found = NULL;
    if (!strcmp(w[0], "info")) {
        int result = CALL(cuMemGetInfo_v2)(&left, &all);
        printf("%d %zu %zu\n", result, left, all);
    } else if (!strcmp(w[0], "total")) {
        int result = CALL(cuDeviceTotalMem_v2)(&all, 0);
        printf("%d %zu\n", result, all);
    } else if (!strcmp(w[0], "counts")) {
        struct stub_counts *c = &state->counts;
        printf("%lu %lu %lu %lu %lu %lu %lu\n", c->launches, c->writes, c->registers,
               c->event_records, c->allocs, c->copies, c->queries);
    } else if (!strcmp(w[0], "proc")) { /* proc NAME VERSION FLAGS */
        CUdriverProcAddressQueryResult status = 0;
        const char *name = strcmp(w[1], "-") ? w[1] : "";
        int result =
            CALL(cuGetProcAddress_v2)(name, &found, (int)arg(w, 2), (cuuint64_t)arg(w, 3), &status);
        printf("%d ", result);
        say_origin(found);
    } else if (!strcmp(w[0], "symbol")) {
        say_origin(dlsym(cuda, w[1]));
    } else {
        return 0;
    }
    return 1;
}

static int control_command(char **w)
{
    if (!strcmp(w[0], "hold"))
        return state->hold = (int)arg(w, 1), 0;
    if (!strcmp(w[0], "reach"))
        return release_markers((int)arg(w, 1));
    if (!strcmp(w[0], "elapsed_us"))
        return state->elapsed_ms = (float)arg(w, 1) / 1000.0f, 0;
    if (!strcmp(w[0], "devices"))
        return state->device_count = (int)arg(w, 1), 0;
    if (!strcmp(w[0], "version"))
        return state->version = (int)arg(w, 1), 0;
    if (!strcmp(w[0], "refuse_writes"))
        return state->refuse_writes = (int)arg(w, 1), 0;
    if (!strcmp(w[0], "refuse_allocs"))
        return state->refuse_allocs = (int)arg(w, 1), 0;
    if (!strcmp(w[0], "churn"))
        return churn(arg(w, 1));
    if (!strcmp(w[0], "threads"))
        return threads(arg(w, 1), arg(w, 2));
    if (!strcmp(w[0], "fork"))
        return in_child(arg(w, 1));
    if (!strcmp(w[0], "clone"))
        return in_clone(arg(w, 1));
    if (!strcmp(w[0], "close"))
        return close((int)arg(w, 1));
    if (!strcmp(w[0], "closeall"))
        return close_all(w[1]);
    if (!strcmp(w[0], "init"))
        return CALL(cuInit)(0);
    if (!strcmp(w[0], "ctx"))
        return CALL(cuCtxCreate_v2)(&contexts[arg(w, 1) % SLOTS], 0, (CUdevice)arg(w, 1));
    if (!strcmp(w[0], "ctx_destroy"))
        return CALL(cuCtxDestroy_v2)(contexts[arg(w, 1) % SLOTS]);
    int more = more_command(w);
    return more != NOT_MINE ? more : stream_command(w);
}

int main(void)
{
    char line[1024], *words[24];
    const char *stub_path = getenv("QGPU_TEST_STUB");
    void *behind = stub_path ? dlopen(stub_path, RTLD_NOW) : NULL;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        fprintf(stderr, "probe: %s\n", dlerror());
        return 1;
    }
    if (behind) {
        state = dlsym(behind, "stub");
        *(void **)&release_markers = dlsym(behind, "stub_release");
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof(line), stdin)) {
        int count = 0;
        for (char *word = strtok(line, " \n"); word && count < 23; word = strtok(NULL, " \n"))
            words[count++] = word;
        memset(&words[count], 0, sizeof(*words) * (size_t)(24 - count));
        if (count && !say_command(words))
            printf("%d\n", control_command(words));
    }
    return 0;
}
