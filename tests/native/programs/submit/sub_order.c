/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands in a stream and takes nothing of the card: words, host functions, callbacks, events.
 * It passes a closed gate, and what it signals arrives while the gate is closed.
 */
#include <time.h>

#include "submit.h"

static volatile uint64_t *free_word; /* beside the word that streams stand behind */
static CUdeviceptr free_at;

/* Each of them makes a word take its value; it must come although the gate is still closed. */
#define REACHES(value)                                                                             \
    do {                                                                                           \
        for (int i = 0; *free_word != (value); i++) {                                              \
            struct timespec ms = {0, 1000000};                                                     \
            MUST(i > 10000);                                                                       \
            nanosleep(&ms, NULL);                                                                  \
        }                                                                                          \
    } while (0)
#define ORDER(text, call, value)                                                                   \
    do {                                                                                           \
        *free_word = 0;                                                                            \
        announce(text, "order", 0, 0, "-");                                                        \
        MUST(call);                                                                                \
        REACHES(value);                                                                            \
        done(stream);                                                                              \
        right();                                                                                   \
    } while (0)

static void writes(void)
{
    CUstreamBatchMemOpParams ops[2];
    memset(ops, 0, sizeof(ops));
    ops[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[0].writeValue.address = free_at;
    ops[0].writeValue.value = 11;
    ops[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[1].waitValue.address = free_at;
    ops[1].waitValue.value = 11;
    ops[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    ORDER("write32", CALL(cuStreamWriteValue32)(stream, free_at, 1, 0), 1);
    ORDER("write32_ptsz", CALL(cuStreamWriteValue32_ptsz)(stream, free_at, 2, 0), 2);
    ORDER("write32_v2", CALL(cuStreamWriteValue32_v2)(stream, free_at, 3, 0), 3);
    ORDER("write32_v2_ptsz", CALL(cuStreamWriteValue32_v2_ptsz)(stream, free_at, 4, 0), 4);
    ORDER("write64", CALL(cuStreamWriteValue64)(stream, free_at, 1ull << 40, 0), 1ull << 40);
    ORDER("write64_v2", CALL(cuStreamWriteValue64_v2)(stream, free_at, 3ull << 40, 0), 3ull << 40);
    ORDER("write64_v2_ptsz", CALL(cuStreamWriteValue64_v2_ptsz)(stream, free_at, 5ull << 40, 0),
          5ull << 40);
    ORDER("batch", CALL(cuStreamBatchMemOp)(stream, 2, ops, 0), 11);
    ORDER("batch_v2", CALL(cuStreamBatchMemOp_v2)(stream, 2, ops, 0), 11);
    ORDER("batch_v2_ptsz", CALL(cuStreamBatchMemOp_v2_ptsz)(stream, 2, ops, 0), 11);
}

/* A wait before a write: the write comes when the program says so. */
static void waits(void)
{
#define WAITS(name)                                                                                \
    do {                                                                                           \
        turn++;                                                                                    \
        ORDER(#name,                                                                               \
              (CALL(name)(stream, word, turn, CU_STREAM_WAIT_VALUE_GEQ),                           \
               CALL(cuStreamWriteValue32)(stream, free_at, 21, 0), release(), 0),                  \
              21);                                                                                 \
    } while (0)
    WAITS(cuStreamWaitValue32);
    WAITS(cuStreamWaitValue32_ptsz);
    WAITS(cuStreamWaitValue32_v2);
    WAITS(cuStreamWaitValue64);
    WAITS(cuStreamWaitValue64_v2);
}

static void CUDA_CB called(void *data)
{
    *free_word = (uint64_t)(uintptr_t)data;
}

static void CUDA_CB called_back(CUstream s, CUresult status, void *data)
{
    (void)s;
    *free_word = status ? 0 : (uint64_t)(uintptr_t)data;
}

static void functions(void)
{
    ORDER("host", CALL(cuLaunchHostFunc)(stream, called, (void *)31), 31);
    ORDER("host_ptsz", CALL(cuLaunchHostFunc_ptsz)(stream, called, (void *)32), 32);
    ORDER("callback", CALL(cuStreamAddCallback)(stream, called_back, (void *)33, 0), 33);
    ORDER("callback_ptsz", CALL(cuStreamAddCallback_ptsz)(stream, called_back, (void *)34, 0), 34);
}

/* Two streams: what the second writes waits for an event of the first. */
static void events(void)
{
    CUstream second;
    CUevent event;
    MUST(CALL(cuStreamCreate)(&second, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
#define EVENT(text, record, wait, value)                                                           \
    ORDER(text, (record) || (wait) || CALL(cuStreamWriteValue32)(second, free_at, value, 0), value)
    EVENT("event", CALL(cuEventRecord)(event, stream), CALL(cuStreamWaitEvent)(second, event, 0),
          41);
    EVENT("event_ptsz", CALL(cuEventRecord_ptsz)(event, stream),
          CALL(cuStreamWaitEvent_ptsz)(second, event, 0), 42);
    EVENT("event_flags", CALL(cuEventRecordWithFlags)(event, stream, 0),
          CALL(cuStreamWaitEvent)(second, event, 0), 43);
    EVENT("event_sync", CALL(cuEventRecord)(event, stream),
          CALL(cuEventSynchronize)(event) || CALL(cuEventQuery)(event), 44);
    EVENT("stream_sync", CALL(cuStreamSynchronize)(stream), CALL(cuStreamSynchronize_ptsz)(stream),
          45);
    EVENT("context_sync", CALL(cuCtxSynchronize)(), 0, 46);
}

/* An event behind a kernel that stands: it is not done before, and done after. Timing it gives the
 * kernel's length. */
static void around_a_kernel(void)
{
    void *params[] = {&length};
    CUevent from, to;
    float ms;
    MUST(CALL(cuEventCreate)(&from, 0));
    MUST(CALL(cuEventCreate)(&to, 0));
    length = 5000000;
    hold(stream);
    announce("timed", "held", 1, 0, "kernel:%llu", (unsigned long long)length);
    MUST(CALL(cuEventRecord)(from, stream));
    MUST(CALL(cuLaunchKernel)(work, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    MUST(CALL(cuEventRecord)(to, stream));
    MUST(CALL(cuEventQuery)(to) != CUDA_ERROR_NOT_READY);
    done(stream);
    MUST(CALL(cuEventQuery)(to));
    MUST(CALL(cuEventElapsedTime)(&ms, from, to));
    MUST(ms < 4.99);
    right();
}

int main(void)
{
    begin();
    free_word = (volatile uint64_t *)(word_host + 16);
    free_at = word + 64;
    writes();
    waits();
    functions();
    events();
    around_a_kernel();
    return 0;
}
