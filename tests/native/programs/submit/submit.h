/* SPDX-License-Identifier: Apache-2.0
 *
 * What the small programs of test_shim_submit_groups.py share. Each takes one group of submitting
 * calls, one call at a time. Before a call it prints
 *     NAME KIND LAUNCHES BYTES TRUTH
 * and waits for a line: what must be counted, and what must appear in the card's own trace
 * ("kernel:1000,htod:4194304", "-": nothing). After it, "done"; after the next line it lets the
 * stream go, waits, looks at the result and prints "right".
 *
 *   held    the call waits at a closed gate; its stream stands behind a word, so that the work is
 *           there to be seen
 *   sync    the call waits at a closed gate, and for the work
 *   crowd   as held, from as many threads as launches
 *   order   the call passes a closed gate
 */
#ifndef QG_TEST_SUBMIT_H
#define QG_TEST_SUBMIT_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda.h>

#include "../must.h"

#define MIB   ((size_t)1 << 20)
#define SIZE  (4 * MIB)
#define PROBE 64u /* copies of this size are ours, to look at results */

static void *cuda;
static CUcontext context;
static CUmodule module;
__attribute__((unused)) static CUfunction work;
static CUstream stream;
static CUdeviceptr a, b, word; /* two buffers of SIZE, and the word that streams stand behind */
static unsigned char *host, *want;
static volatile uint32_t *word_host;
static uint32_t turn;
__attribute__((unused)) static uint64_t length = 1000; /* of the next kernel, in ns */

#define CALL(name) ((__typeof__(&name))submit_find(#name))

static inline void *submit_find(const char *name)
{
    void *found = dlsym(cuda, name);
    if (!found) {
        fprintf(stderr, "%s is not there\n", name);
        exit(2);
    }
    return found;
}

static inline void go_on(void)
{
    char line[64];
    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
        exit(5);
}

/* Context, kernel and stream, from the driver that is loaded already. */
static inline void open_work(void)
{
    static const char ptx[] =
        ".version 6.3\n.target sm_75\n.visible .entry qgpu_work(.param .u64 n)\n{ ret; }\n";
    MUST(CALL(cuInit)(0));
    MUST(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
    MUST(CALL(cuCtxSetCurrent)(context));
    MUST(CALL(cuModuleLoadData)(&module, ptx));
    MUST(CALL(cuModuleGetFunction)(&work, module, "qgpu_work"));
    MUST(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
}

static inline void begin(void)
{
    void *page;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(!cuda);
    open_work();
    MUST(CALL(cuMemAlloc_v2)(&a, SIZE));
    MUST(CALL(cuMemAlloc_v2)(&b, SIZE));
    MUST(CALL(cuMemHostAlloc)(&page, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    MUST(CALL(cuMemHostGetDevicePointer_v2)(&word, page, 0));
    MUST(CALL(cuMemHostAlloc)((void **)&host, SIZE, 0));
    word_host = page;
    want = calloc(1, SIZE);
    for (size_t i = 0; i < SIZE; i++)
        host[i] = want[i] = (unsigned char)(i * 7 + i / 251);
    MUST(CALL(cuMemcpyHtoD_v2)(a, host, SIZE));
    MUST(CALL(cuMemsetD8_v2)(b, 0, SIZE));
    MUST(CALL(cuCtxSynchronize)());
    printf("begin\n");
    go_on();
}

/* The stream stands until release(). */
static inline void hold(CUstream s)
{
    turn++;
    MUST(CALL(cuStreamWaitValue32_v2)(s, word, turn, CU_STREAM_WAIT_VALUE_GEQ));
}

static inline void release(void)
{
    *word_host = turn;
}

static inline void announce(const char *name, const char *kind, unsigned launches, size_t bytes,
                            const char *truth, ...)
{
    va_list list;
    printf("%s %s %u %zu ", name, kind, launches, bytes);
    va_start(list, truth);
    vprintf(truth, list);
    va_end(list);
    printf("\n");
    go_on();
}

/* Its work is in the stream now; what stands there is marked, as a program does that polls. */
static inline void done(CUstream s)
{
    CALL(cuStreamQuery)(s);
    printf("done\n");
    go_on();
    release();
    MUST(CALL(cuCtxSynchronize)());
}

static inline void right(void)
{
    printf("right\n");
}

/* Some places of a buffer, against what must be there. */
static inline void look(CUdeviceptr at, const unsigned char *expected, size_t size)
{
    unsigned char seen[PROBE];
    for (size_t i = 0; i < 16; i++) {
        size_t place = (size - PROBE) / 15 * i;
        MUST(CALL(cuMemcpyDtoH_v2)(seen, at + place, PROBE));
        if (memcmp(seen, expected + place, PROBE)) {
            fprintf(stderr, "wrong contents at %zu\n", place);
            exit(6);
        }
    }
}

static inline void blank(CUdeviceptr at, unsigned char value)
{
    static unsigned char small[4096];
    memset(small, value, PROBE);
    for (size_t i = 0; i < 16; i++) /* enough that look() cannot pass by what lay there before */
        MUST(CALL(cuMemcpyHtoD_v2)(at + (SIZE - PROBE) / 15 * i, small, PROBE));
}

#endif
