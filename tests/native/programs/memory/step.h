/* SPDX-License-Identifier: Apache-2.0
 *
 * What the small programs of test_shim_memory_*.py share. Each calls one group of the driver's
 * functions and stops after each step: it prints `NAME CARD`, where CARD is what the card itself
 * says this process holds beyond its contexts, and goes on when the test, which has looked at the
 * ledger meanwhile, sends a line.
 */
#ifndef QG_TEST_STEP_H
#define QG_TEST_STEP_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda.h>

#include "../must.h"

#define MIB ((size_t)1 << 20)

static void *cuda;
static CUcontext context;
static CUstream stream;

/* Through the handle that dlopen gave, as every framework does. */
#define CALL(name) ((__typeof__(&name))step_find(#name))

static inline void *step_find(const char *name)
{
    void *found = dlsym(cuda, name);
    if (!found) {
        fprintf(stderr, "%s is not there\n", name);
        exit(2);
    }
    return found;
}

#define REFUSED(call)                                                                              \
    do {                                                                                           \
        int refused = (int)(call);                                                                 \
        if (refused != CUDA_ERROR_OUT_OF_MEMORY) {                                                 \
            fprintf(stderr, "%s:%d: %s answered %d, not out of memory\n", __FILE__, __LINE__,      \
                    #call, refused);                                                               \
            exit(4);                                                                               \
        }                                                                                          \
    } while (0)

struct step_process { /* nvmlProcessInfo_t */
    unsigned int pid;
    unsigned long long used;
    unsigned int instance, compute;
};

/* The device of the context, and of what step() says. */
static inline int step_device(void)
{
    const char *number = getenv("QGPU_TEST_DEVICE");
    return number ? atoi(number) : 0;
}

/* What the card's own NVML (QGPU_TEST_NVML, not the shim's) says. */
static inline unsigned long long step_truth(void)
{
    static void *nvml, *device;
    static unsigned long long contexts;
    struct step_process all[256];
    unsigned int count = 256;
    if (!nvml) {
        nvml = dlopen(getenv("QGPU_TEST_NVML"), RTLD_NOW);
        MUST(!nvml || ((int (*)(void))dlsym(nvml, "nvmlInit_v2"))());
        MUST(((int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(
            (unsigned)step_device(), &device));
    }
    MUST(((int (*)(void *, unsigned *, struct step_process *))dlsym(
        nvml, "nvmlDeviceGetComputeRunningProcesses_v3"))(device, &count, all));
    unsigned long long used = 0;
    for (unsigned int i = 0; i < count; i++)
        if (all[i].pid == (unsigned int)getpid())
            used = all[i].used;
    if (!contexts)
        contexts = used;
    return used - contexts;
}

static inline char *step(const char *name)
{
    static char line[4096];
    printf("%s %llu\n", name, step_truth());
    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
        exit(5);
    line[strcspn(line, "\n")] = 0;
    return line;
}

static inline void begin(void)
{
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(!cuda);
    MUST(CALL(cuInit)(0));
    MUST(CALL(cuDevicePrimaryCtxRetain)(&context, step_device()));
    MUST(CALL(cuCtxSetCurrent)(context));
    MUST(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    step("begin");
}

#endif
