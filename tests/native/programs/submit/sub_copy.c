/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies: every shape, direction and version. A small one passes; large ones, and many small ones
 * in one call, are work.
 */
#include "submit.h"

/* From `from` (which holds want) to `to`, which is blanked first; the contents of device buffers
 * are looked at. */
#define STEP(name, text, kind, s, bytes, truth, ...)                                               \
    do {                                                                                           \
        if (!strcmp(kind, "held"))                                                                 \
            hold(s);                                                                               \
        unsigned counted = strcmp(kind, "order") != 0;                                             \
        announce(text, kind, counted, counted ? (bytes) : 0, truth ":%zu", (size_t)(bytes));       \
        MUST(CALL(name)(__VA_ARGS__));                                                             \
        done(s);                                                                                   \
    } while (0)
#define TO_B(name, kind, s, truth, ...)                                                            \
    do {                                                                                           \
        blank(b, 0xee);                                                                            \
        STEP(name, #name, kind, s, SIZE, truth, __VA_ARGS__);                                      \
        look(b, want, SIZE);                                                                       \
        right();                                                                                   \
    } while (0)
#define TO_HOST(name, kind, s, ...)                                                                \
    do {                                                                                           \
        memset(back, 0xee, SIZE);                                                                  \
        STEP(name, #name, kind, s, SIZE, "dtoh", __VA_ARGS__);                                     \
        MUST(memcmp(back, want, SIZE));                                                            \
        right();                                                                                   \
    } while (0)

static unsigned char *back;

static void plain(void)
{
    TO_B(cuMemcpyHtoD_v2, "sync", NULL, "htod", b, host, SIZE);
    TO_B(cuMemcpyHtoD_v2_ptds, "sync", NULL, "htod", b, host, SIZE);
    TO_HOST(cuMemcpyDtoH_v2, "sync", NULL, back, a, SIZE);
    TO_HOST(cuMemcpyDtoH_v2_ptds, "sync", NULL, back, a, SIZE);
    TO_B(cuMemcpyDtoD_v2, "sync", NULL, "dtod", b, a, SIZE);
    TO_B(cuMemcpyDtoD_v2_ptds, "sync", NULL, "dtod", b, a, SIZE);
    TO_B(cuMemcpy, "sync", NULL, "dtod", b, a, SIZE);
    TO_B(cuMemcpy_ptds, "sync", NULL, "htod", b, (CUdeviceptr)(uintptr_t)host, SIZE);
    TO_B(cuMemcpyHtoDAsync_v2, "held", stream, "htod", b, host, SIZE, stream);
    TO_B(cuMemcpyHtoDAsync_v2_ptsz, "held", stream, "htod", b, host, SIZE, stream);
    TO_HOST(cuMemcpyDtoHAsync_v2, "held", stream, back, a, SIZE, stream);
    TO_HOST(cuMemcpyDtoHAsync_v2_ptsz, "held", stream, back, a, SIZE, stream);
    TO_B(cuMemcpyDtoDAsync_v2, "held", stream, "dtod", b, a, SIZE, stream);
    TO_B(cuMemcpyDtoDAsync_v2_ptsz, "held", stream, "dtod", b, a, SIZE, stream);
    TO_B(cuMemcpyAsync, "held", stream, "dtod", b, a, SIZE, stream);
    TO_B(cuMemcpyAsync_ptsz, "held", stream, "dtod", b, a, SIZE, stream);
    TO_B(cuMemcpyHtoDAsync_v2, "held", NULL, "htod", b, host, SIZE, NULL);
}

static void small(void)
{
    /* Worth a launch: it waits at the gate, but nothing of it is left to be counted when it
     * returns. */
    announce("htod_worth_a_launch", "sync", 0, 0, "htod:%zu", MIB - 4);
    MUST(CALL(cuMemcpyHtoD_v2)(b, host, MIB - 4));
    done(stream);
    right();
    STEP(cuMemcpyHtoDAsync_v2, "htod_async_worth_a_launch", "held", stream, MIB - 4, "htod", b,
         host, MIB - 4, stream);
    right();
    STEP(cuMemcpyHtoD_v2, "htod_small", "order", stream, 4096, "htod", b, host, 4096);
    right();
    STEP(cuMemcpyHtoD_v2, "htod_just_large", "sync", stream, MIB, "htod", b, host, MIB);
    right();
    STEP(cuMemcpyDtoDAsync_v2, "dtod_small", "order", stream, 4096, "dtod", b, a, 4096, stream);
    right();
}

/* Half of a buffer: 1024 rows of 2048 bytes at a pitch of 4096. */
static void shapes(void)
{
    CUDA_MEMCPY2D area = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = a,
                          .srcPitch = 4096,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = b,
                          .dstPitch = 4096,
                          .WidthInBytes = 2048,
                          .Height = 1024};
    CUDA_MEMCPY3D space = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = host,
                           .srcPitch = 4096,
                           .srcHeight = 256,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = b,
                           .dstPitch = 4096,
                           .dstHeight = 256,
                           .WidthInBytes = 2048,
                           .Height = 256,
                           .Depth = 4};
    CUDA_MEMCPY3D_PEER peer = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                               .srcDevice = a,
                               .srcPitch = 4096,
                               .srcHeight = 256,
                               .srcContext = context,
                               .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                               .dstDevice = b,
                               .dstPitch = 4096,
                               .dstHeight = 256,
                               .dstContext = context,
                               .WidthInBytes = 2048,
                               .Height = 256,
                               .Depth = 4};
#define SHAPE(name, kind, s, truth, ...)                                                           \
    do {                                                                                           \
        blank(b, 0xee);                                                                            \
        STEP(name, #name, kind, s, SIZE / 2, truth, __VA_ARGS__);                                  \
        look(b, want, 2048); /* the first row */                                                   \
        look(b + 1023 * 4096, want + 1023 * 4096, 2048);                                           \
        right();                                                                                   \
    } while (0)
    SHAPE(cuMemcpy2D_v2, "sync", NULL, "dtod", &area);
    SHAPE(cuMemcpy2D_v2_ptds, "sync", NULL, "dtod", &area);
    SHAPE(cuMemcpy2DUnaligned_v2, "sync", NULL, "dtod", &area);
    SHAPE(cuMemcpy2DAsync_v2, "held", stream, "dtod", &area, stream);
    SHAPE(cuMemcpy2DAsync_v2_ptsz, "held", stream, "dtod", &area, stream);
    SHAPE(cuMemcpy3D_v2, "sync", NULL, "htod", &space);
    SHAPE(cuMemcpy3D_v2_ptds, "sync", NULL, "htod", &space);
    SHAPE(cuMemcpy3DAsync_v2, "held", stream, "htod", &space, stream);
    SHAPE(cuMemcpy3DAsync_v2_ptsz, "held", stream, "htod", &space, stream);
    SHAPE(cuMemcpy3DPeer, "sync", NULL, "dtod", &peer);
    SHAPE(cuMemcpy3DPeerAsync, "held", stream, "dtod", &peer, stream);
    SHAPE(cuMemcpy3DPeerAsync_ptsz, "held", stream, "dtod", &peer, stream);
}

static void between_cards(void)
{
    CUcontext other;
    CUdeviceptr far;
    MUST(CALL(cuDevicePrimaryCtxRetain)(&other, 1));
    MUST(CALL(cuCtxSetCurrent)(other));
    MUST(CALL(cuMemAlloc_v2)(&far, SIZE));
    MUST(CALL(cuCtxSetCurrent)(context));
    STEP(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", "held", stream, SIZE, "peer", far, other, a,
         context, SIZE, stream);
    look(far, want, SIZE);
    right();
    TO_B(cuMemcpyPeer, "sync", NULL, "peer", b, context, far, other, SIZE);
    TO_B(cuMemcpyPeer_ptds, "sync", NULL, "peer", b, context, far, other, SIZE);
    TO_B(cuMemcpyPeerAsync_ptsz, "held", stream, "peer", b, context, far, other, SIZE, stream);
}

/* Two parts, each below a MiB, are one large submission. */
static void batches(void)
{
    size_t part = MIB - 4096, first[] = {0}, failed;
    CUdeviceptr to[] = {b, b + 2 * MIB}, from[] = {a, a + 2 * MIB};
    size_t sizes[] = {part, part};
    CUmemcpyAttributes attributes[1] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    CUDA_MEMCPY3D_BATCH_OP boxes[2];
    memset(boxes, 0, sizeof(boxes));
    for (int i = 0; i < 2; i++) {
        boxes[i].src.type = boxes[i].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
        boxes[i].src.op.ptr.ptr = from[i];
        boxes[i].dst.op.ptr.ptr = to[i];
        boxes[i].extent = (CUextent3D){part, 1, 1};
    }
#define BATCH(name, ...)                                                                           \
    do {                                                                                           \
        blank(b, 0xee);                                                                            \
        hold(stream);                                                                              \
        announce(#name, "held", 1, 2 * part, "dtod:%zu,dtod:%zu", part, part);                     \
        MUST(CALL(name)(__VA_ARGS__));                                                             \
        done(stream);                                                                              \
        look(b, want, part);                                                                       \
        look(b + 2 * MIB, want + 2 * MIB, part);                                                   \
        right();                                                                                   \
    } while (0)
    BATCH(cuMemcpyBatchAsync, to, from, sizes, 2, attributes, first, 1, &failed, stream);
    BATCH(cuMemcpyBatchAsync_ptsz, to, from, sizes, 2, attributes, first, 1, &failed, stream);
    BATCH(cuMemcpyBatchAsync_v2, to, from, sizes, 2, attributes, first, 1, stream);
    BATCH(cuMemcpy3DBatchAsync, 2, boxes, &failed, 0, stream);
    BATCH(cuMemcpy3DBatchAsync_v2, 2, boxes, 0, stream);
    BATCH(cuMemcpy3DBatchAsync_v2_ptsz, 2, boxes, 0, stream);
}

/* Many pieces, of which each alone would pass. */
static void small_batch(void)
{
    enum { COUNT = 32, PIECE = 4096 };
    CUdeviceptr to[COUNT], from[COUNT];
    size_t sizes[COUNT], first[] = {0};
    char truth[COUNT * 16] = "";
    CUmemcpyAttributes attributes[1] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    for (int i = 0; i < COUNT; i++) {
        to[i] = b + (size_t)i * PIECE;
        from[i] = a + (size_t)i * PIECE;
        sizes[i] = PIECE;
        strcat(truth, i ? ",dtod:4096" : "dtod:4096");
    }
    hold(stream);
    announce("small_batch", "held", 1, (size_t)COUNT * PIECE, "%s", truth);
    MUST(CALL(cuMemcpyBatchAsync_v2)(to, from, sizes, COUNT, attributes, first, 1, stream));
    done(stream);
    look(b, want, (size_t)COUNT * PIECE);
    right();
}

static void first_versions(void)
{
    CUdeviceptr_v1 low;
    MUST(CALL(cuMemAlloc)(&low, SIZE));
    CUDA_MEMCPY2D_v1 area = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                             .srcHost = host,
                             .srcPitch = 4096,
                             .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                             .dstDevice = low,
                             .dstPitch = 4096,
                             .WidthInBytes = 4096,
                             .Height = 1024};
    CUDA_MEMCPY3D_v1 space = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                              .srcHost = host,
                              .srcPitch = 4096,
                              .srcHeight = 256,
                              .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                              .dstDevice = low,
                              .dstPitch = 4096,
                              .dstHeight = 256,
                              .WidthInBytes = 4096,
                              .Height = 256,
                              .Depth = 4};
#define LOW(name, kind, s, truth, ...)                                                             \
    do {                                                                                           \
        blank(low, 0xee);                                                                          \
        STEP(name, #name, kind, s, SIZE, truth, __VA_ARGS__);                                      \
        look(low, want, SIZE);                                                                     \
        right();                                                                                   \
    } while (0)
    LOW(cuMemcpyHtoD, "sync", NULL, "htod", low, host, SIZE);
    LOW(cuMemcpyHtoDAsync, "held", stream, "htod", low, host, SIZE, stream);
    TO_HOST(cuMemcpyDtoH, "sync", NULL, back, low, SIZE);
    TO_HOST(cuMemcpyDtoHAsync, "held", stream, back, low, SIZE, stream);
    LOW(cuMemcpy2D, "sync", NULL, "htod", &area);
    LOW(cuMemcpy2DUnaligned, "sync", NULL, "htod", &area);
    LOW(cuMemcpy2DAsync, "held", stream, "htod", &area, stream);
    LOW(cuMemcpy3D, "sync", NULL, "htod", &space);
    LOW(cuMemcpy3DAsync, "held", stream, "htod", &space, stream);
    STEP(cuMemcpyDtoD, "cuMemcpyDtoD", "sync", NULL, 2 * MIB, "dtod", low, low + 2 * MIB, 2 * MIB);
    look(low, want + 2 * MIB, 2 * MIB);
    right();
    STEP(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync", "held", stream, MIB, "dtod", low, low + 3 * MIB,
         MIB, stream);
    look(low, want + 3 * MIB, MIB);
    right();
}

int main(void)
{
    begin();
    back = malloc(SIZE);
    plain();
    small();
    shapes();
    between_cards();
    batches();
    small_batch();
    first_versions();
    return 0;
}
