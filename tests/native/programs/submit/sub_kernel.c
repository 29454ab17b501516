/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel launches: every variant, default streams, several threads, several cards.
 */
#include <pthread.h>

#include "submit.h"

static void *params[] = {&length};

#define GRID 1, 1, 1, 1, 1, 1
#define KERNEL(name, text, s, ...)                                                                 \
    do {                                                                                           \
        length += 1000;                                                                            \
        hold(s);                                                                                   \
        announce(text, "held", 1, 0, "kernel:%llu", (unsigned long long)length);                   \
        MUST(CALL(name)(__VA_ARGS__));                                                             \
        done(s);                                                                                   \
        right();                                                                                   \
    } while (0)

static void variants(void)
{
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 1,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};
    size_t size = sizeof(length);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &length, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    KERNEL(cuLaunchKernel, "kernel", stream, work, GRID, 0, stream, params, NULL);
    KERNEL(cuLaunchKernel, "buffer", stream, work, GRID, 0, stream, NULL, extra);
    KERNEL(cuLaunchKernel_ptsz, "kernel_ptsz", stream, work, GRID, 0, stream, params, NULL);
    KERNEL(cuLaunchKernelEx, "ex", stream, &config, work, params, NULL);
    KERNEL(cuLaunchKernelEx_ptsz, "ex_ptsz", stream, &config, work, params, NULL);
    KERNEL(cuLaunchCooperativeKernel, "cooperative", stream, work, GRID, 0, stream, params);
    KERNEL(cuLaunchCooperativeKernel_ptsz, "cooperative_ptsz", stream, work, GRID, 0, stream,
           params);
}

static void default_streams(void)
{
    KERNEL(cuLaunchKernel, "legacy", NULL, work, GRID, 0, NULL, params, NULL);
    KERNEL(cuLaunchKernel, "legacy_handle", CU_STREAM_LEGACY, work, GRID, 0, CU_STREAM_LEGACY,
           params, NULL);
    KERNEL(cuLaunchKernel_ptsz, "per_thread", CU_STREAM_PER_THREAD, work, GRID, 0, NULL, params,
           NULL);
    KERNEL(cuLaunchKernel, "per_thread_handle", CU_STREAM_PER_THREAD, work, GRID, 0,
           CU_STREAM_PER_THREAD, params, NULL);
}

static void old(void)
{
#define OLD(name, s, ...)                                                                          \
    do {                                                                                           \
        uint64_t next = length + 1000;                                                             \
        MUST(CALL(cuParamSetv)(work, 0, &next, sizeof(next)));                                     \
        KERNEL(name, #name, s, __VA_ARGS__);                                                       \
    } while (0)
    MUST(CALL(cuFuncSetBlockShape)(work, 1, 1, 1));
    MUST(CALL(cuParamSetSize)(work, sizeof(length)));
    OLD(cuLaunch, NULL, work);
    OLD(cuLaunchGrid, NULL, work, 1, 1);
    OLD(cuLaunchGridAsync, stream, work, 1, 1, stream);
}

static void several_cards(void)
{
    CUcontext other;
    CUmodule there;
    CUfunction theirs;
    CUstream second;
    MUST(CALL(cuDevicePrimaryCtxRetain)(&other, 1));
    MUST(CALL(cuCtxSetCurrent)(other));
    MUST(CALL(cuModuleLoadData)(
        &there,
        ".version 6.3\n.target sm_75\n.visible .entry qgpu_work(.param .u64 n)\n{ ret; }\n"));
    MUST(CALL(cuModuleGetFunction)(&theirs, there, "qgpu_work"));
    MUST(CALL(cuStreamCreate)(&second, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuCtxSetCurrent)(context));
    CUDA_LAUNCH_PARAMS list[] = {{work, GRID, 0, stream, params},
                                 {theirs, GRID, 0, second, params}};
    KERNEL(cuLaunchCooperativeKernelMultiDevice, "multi_one", stream, list, 1, 0);
    length += 1000;
    hold(stream);
    announce("multi_two", "held", 1, 0, "kernel:%llu,kernel:%llu", (unsigned long long)length,
             (unsigned long long)length);
    MUST(CALL(cuLaunchCooperativeKernelMultiDevice)(list, 2, 0));
    done(stream);
    MUST(CALL(cuStreamSynchronize)(second));
    right();
}

enum { THREADS = 24 }; /* more than a process has lanes */

static void *one_launch(void *arg)
{
    static CUstream streams[THREADS];
    CUstream *mine = &streams[(intptr_t)arg];
    MUST(CALL(cuCtxSetCurrent)(context));
    MUST(CALL(cuStreamCreate)(mine, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuLaunchKernel)(work, GRID, 0, *mine, params, NULL));
    MUST(CALL(cuStreamSynchronize)(*mine));
    return NULL;
}

static void crowd(void)
{
    pthread_t threads[THREADS];
    char truth[THREADS * 16] = "";
    length += 1000;
    for (int i = 0; i < THREADS; i++)
        sprintf(truth + strlen(truth), "%skernel:%llu", i ? "," : "", (unsigned long long)length);
    announce("threads", "crowd", THREADS, 0, "%s", truth);
    for (intptr_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, one_launch, (void *)i));
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL));
    done(stream);
    right();
}

int main(void)
{
    begin();
    variants();
    default_streams();
    old();
    several_cards();
    crowd();
    return 0;
}
