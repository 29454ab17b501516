/* SPDX-License-Identifier: Apache-2.0
 *
 * Fills, prefetches, discarded pages and attachments.
 */
#include "submit.h"

/* value: what each byte must be afterwards. */
#define FILL(name, kind, s, value, ...)                                                            \
    do {                                                                                           \
        blank(b, 0xee);                                                                            \
        memset(want, value, SIZE);                                                                 \
        if (!strcmp(kind, "held"))                                                                 \
            hold(s);                                                                               \
        announce(#name, kind, 1, SIZE, "memset:%zu", SIZE);                                        \
        MUST(CALL(name)(__VA_ARGS__));                                                             \
        done(s);                                                                                   \
        look(b, want, SIZE);                                                                       \
        right();                                                                                   \
    } while (0)

static void lines(void)
{
    FILL(cuMemsetD8_v2, "held", NULL, 1, b, 0x01, SIZE);
    FILL(cuMemsetD8_v2_ptds, "held", CU_STREAM_PER_THREAD, 2, b, 0x02, SIZE);
    FILL(cuMemsetD16_v2, "held", NULL, 3, b, 0x0303, SIZE / 2);
    FILL(cuMemsetD32_v2, "held", NULL, 4, b, 0x04040404, SIZE / 4);
    FILL(cuMemsetD8Async, "held", stream, 5, b, 0x05, SIZE, stream);
    FILL(cuMemsetD8Async_ptsz, "held", stream, 6, b, 0x06, SIZE, stream);
    FILL(cuMemsetD16Async, "held", stream, 7, b, 0x0707, SIZE / 2, stream);
    FILL(cuMemsetD32Async, "held", stream, 8, b, 0x08080808, SIZE / 4, stream);
    FILL(cuMemsetD32Async_ptsz, "held", stream, 9, b, 0x09090909, SIZE / 4, stream);
}

static void areas(void)
{
    FILL(cuMemsetD2D8_v2, "held", NULL, 1, b, 4096, 0x01, 4096, 1024);
    FILL(cuMemsetD2D16_v2, "held", NULL, 2, b, 4096, 0x0202, 2048, 1024);
    FILL(cuMemsetD2D32_v2, "held", NULL, 3, b, 4096, 0x03030303, 1024, 1024);
    FILL(cuMemsetD2D8Async, "held", stream, 4, b, 4096, 0x04, 4096, 1024, stream);
    FILL(cuMemsetD2D16Async, "held", stream, 5, b, 4096, 0x0505, 2048, 1024, stream);
    FILL(cuMemsetD2D32Async, "held", stream, 6, b, 4096, 0x06060606, 1024, 1024, stream);
    FILL(cuMemsetD2D32Async_ptsz, "held", stream, 7, b, 4096, 0x07070707, 1024, 1024, stream);
}

static void first_versions(void)
{
    CUdeviceptr keep = b;
    CUdeviceptr_v1 low;
    MUST(CALL(cuMemAlloc)(&low, SIZE));
    b = low;
    FILL(cuMemsetD8, "held", NULL, 1, low, 0x01, SIZE);
    FILL(cuMemsetD16, "held", NULL, 2, low, 0x0202, SIZE / 2);
    FILL(cuMemsetD32, "held", NULL, 3, low, 0x03030303, SIZE / 4);
    FILL(cuMemsetD2D8, "held", NULL, 4, low, 4096, 0x04, 4096, 1024);
    FILL(cuMemsetD2D16, "held", NULL, 5, low, 4096, 0x0505, 2048, 1024);
    FILL(cuMemsetD2D32, "held", NULL, 6, low, 4096, 0x06060606, 1024, 1024);
    b = keep;
}

static void small(void)
{
    /* worth a launch: what was summed up before goes with it */
    MUST(CALL(cuMemcpyHtoD_v2)(b, host, MIB - 4));
    announce("small", "order", 0, 0, "memset:%zu,htod:%zu", (size_t)4096, MIB - 4);
    MUST(CALL(cuMemsetD8Async)(b, 1, 4096, stream));
    done(stream);
    right();
}

/* Pages of managed memory: moving many is large work; advice, discarding and attaching take nothing
 * of the card. */
static void pages(void)
{
    CUdeviceptr managed;
    size_t sizes[] = {MIB, MIB}, first[] = {0};
    CUmemLocation to[] = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    MUST(CALL(cuMemAllocManaged)(&managed, SIZE, CU_MEM_ATTACH_GLOBAL));
    CUdeviceptr both[] = {managed, managed + 2 * MIB};
    memset((void *)(uintptr_t)managed, 0x5a, SIZE);
#define MOVE(name, kind, launches, bytes, ...)                                                     \
    do {                                                                                           \
        if (!strcmp(kind, "held"))                                                                 \
            hold(stream);                                                                          \
        announce(#name, kind, launches, bytes, "-");                                               \
        MUST(CALL(name)(__VA_ARGS__));                                                             \
        done(stream);                                                                              \
        MUST(((unsigned char *)(uintptr_t)managed)[SIZE - 1] != 0x5a);                             \
        right();                                                                                   \
    } while (0)
    MOVE(cuMemPrefetchAsync, "held", 1, SIZE, managed, SIZE, 0, stream);
    MOVE(cuMemPrefetchAsync_ptsz, "held", 1, SIZE, managed, SIZE, 0, stream);
    MOVE(cuMemPrefetchAsync_v2, "held", 1, SIZE, managed, SIZE, to[0], 0, stream);
    MOVE(cuMemPrefetchAsync_v2_ptsz, "held", 1, SIZE, managed, SIZE, to[0], 0, stream);
    MOVE(cuMemPrefetchBatchAsync, "held", 1, 2 * MIB, both, sizes, 2, to, first, 1, 0, stream);
    MOVE(cuMemPrefetchBatchAsync_ptsz, "held", 1, 2 * MIB, both, sizes, 2, to, first, 1, 0, stream);
    MOVE(cuMemDiscardAndPrefetchBatchAsync, "held", 1, 2 * MIB, both, sizes, 2, to, first, 1, 0,
         stream);
    MOVE(cuMemDiscardBatchAsync, "order", 0, 0, both, sizes, 2, 0, stream);
    MOVE(cuMemDiscardBatchAsync_ptsz, "order", 0, 0, both, sizes, 2, 0, stream);
    MOVE(cuMemAdvise, "order", 0, 0, managed, SIZE, CU_MEM_ADVISE_SET_READ_MOSTLY, 0);
    MOVE(cuMemAdvise_v2, "order", 0, 0, managed, SIZE, CU_MEM_ADVISE_SET_READ_MOSTLY, to[0]);
    MOVE(cuStreamAttachMemAsync, "order", 0, 0, stream, managed, 0, CU_MEM_ATTACH_GLOBAL);
    MOVE(cuStreamAttachMemAsync_ptsz, "order", 0, 0, stream, managed, 0, CU_MEM_ATTACH_GLOBAL);
}

int main(void)
{
    begin();
    lines();
    areas();
    first_versions();
    small();
    pages();
    return 0;
}
