/* SPDX-License-Identifier: Apache-2.0
 *
 * card.h.
 */
#include "card.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rm_own.h"

struct driver driver;

extern const char beat_ptx[];
__asm__(".section .rodata\n.global beat_ptx\nbeat_ptx:\n.incbin "
        "\"bench/gpu/experiments/beat.ptx\"\n.byte 0\n.previous\n");

void die(const char *what, int code)
{
    printf("{\"failed\": \"%s\", \"code\": %d}\n", what, code);
    exit(3);
}

void check(CUresult status, const char *what)
{
    if (status != CUDA_SUCCESS)
        die(what, (int)status);
}

static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        die("libcuda.so.1 cannot be loaded", 0);
#define X(name, symbol)                                                                            \
    *(void **)&driver.name = dlsym(library, #symbol);                                              \
    if (!driver.name)                                                                              \
        die("libcuda has no " #symbol, 0);
    CARD_FUNCTIONS(X)
#undef X
}

static CUfunction function_of(CUmodule module, const char *name)
{
    CUfunction found;
    check(driver.cuModuleGetFunction(&found, module, name), name);
    return found;
}

void card_open(struct card *card)
{
    CUmodule module;
    int sms = 0;
    memset(card, 0, sizeof *card);
    card->model = getenv("QGPU_SIM_DIR") != NULL;
    load();
    check(driver.cuInit(0), "cuInit");
    check(driver.cuDevicePrimaryCtxRetain(&card->context, 0), "a context");
    check(driver.cuCtxSetCurrent(card->context), "cuCtxSetCurrent");
    check(driver.cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0),
          "cuDeviceGetAttribute");
    check(driver.cuModuleLoadData(&module, beat_ptx), "beat.ptx");
    card->beat = function_of(module, "qgpu_beat");
    card->first = function_of(module, "qgpu_first");
    card->answer = function_of(module, "qgpu_answer");
    card->work = function_of(module, "qgpu_work");
    card->blocks = sms > 0 ? (unsigned)sms : 1;
    check(driver.cuStreamCreate(&card->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(driver.cuEventCreate(&card->event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    check(driver.cuMemHostAlloc((void **)&card->board, sizeof *card->board,
                                CU_MEMHOSTALLOC_DEVICEMAP),
          "host memory");
    check(driver.cuMemAlloc(&card->gaps, card->blocks * CHUNK_ROOM * sizeof(struct gap)), "memory");
    check(driver.cuMemAlloc(&card->told, card->blocks * sizeof(struct block)), "memory");
    check(driver.cuMemAlloc(&card->sums, card->blocks * THREADS * sizeof(uint64_t)), "memory");
    memset(card->board, 0, sizeof *card->board);
    if (!card->model) /* the first run loads the code */
        card_beat(card, 10);
    check(driver.cuStreamSynchronize(card->stream), "the first kernel");
}

void card_launch(struct card *card, CUfunction function, unsigned blocks, unsigned threads,
                 void **arguments)
{
    check(driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, card->stream, arguments,
                                NULL),
          "a launch");
}

void card_beat(struct card *card, uint64_t chunks)
{
    unsigned room = CHUNK_ROOM;
    struct board *board = card->board;
    void *all[] = {&chunks, &board, &card->gaps, &room, &card->told, &card->sums};
    if (card->model)
        card_launch(card, card->work, 1, 1, (void *[]){&chunks});
    else
        card_launch(card, card->beat, card->blocks, THREADS, all);
}

void card_told(struct card *card, struct block *blocks, struct gap *gaps, uint64_t *sum)
{
    size_t count = (size_t)card->blocks * THREADS;
    check(driver.cuStreamSynchronize(card->stream), "the end of the kernel");
    if (blocks)
        check(driver.cuMemcpyDtoH(blocks, card->told, card->blocks * sizeof *blocks), "a copy");
    if (gaps)
        check(driver.cuMemcpyDtoH(gaps, card->gaps, card->blocks * CHUNK_ROOM * sizeof *gaps),
              "a copy");
    if (!sum)
        return;
    uint64_t *sums = malloc(count * sizeof *sums);
    if (!sums)
        die("memory", 0);
    check(driver.cuMemcpyDtoH(sums, card->sums, count * sizeof *sums), "a copy");
    *sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count; i++)
        *sum = (*sum ^ sums[i]) * 0x100000001b3u;
    free(sums);
}

struct clock_pair card_clocks(struct card *card)
{
    unsigned rounds = 100;
    volatile unsigned *ask;
    volatile uint64_t *told;
    struct clock_pair best = {own_now(), 0, UINT64_MAX};
    if (card->model)
        return (struct clock_pair){best.host, best.host, 0};
    check(driver.cuMemHostAlloc((void **)&ask, sizeof *ask, CU_MEMHOSTALLOC_DEVICEMAP),
          "host memory");
    check(driver.cuMemHostAlloc((void **)&told, 2 * sizeof *told, CU_MEMHOSTALLOC_DEVICEMAP),
          "host memory");
    *ask = 0;
    told[0] = told[1] = 0;
    card_launch(card, card->answer, 1, 1, (void *[]){&ask, &told, &rounds});
    uint64_t give_up = own_now() + 1000000000u;
    for (unsigned i = 1; i <= rounds; i++) {
        uint64_t before = own_now();
        *ask = i;
        while (told[1] != i && own_now() < give_up) {
        }
        uint64_t after = own_now(), at = told[0];
        if (told[1] == i && after - before < best.doubt)
            best = (struct clock_pair){(before + after) / 2, at, after - before};
    }
    check(driver.cuStreamSynchronize(card->stream), "the clocks");
    return best;
}
