/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands of the probe that do to the shim what odd programs do: any call with any arguments,
 * waits that are left by siglongjmp or cancelled, many streams, threads that fork while others
 * wait.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../leave.h"
#include "probe.h"
#include "stub.h"

typedef uint64_t Word;

/* Any driver function: integers and pointers in the places where the x86-64 calling convention puts
 * them. */
static uint64_t big[512], zero[512];

static Word word_of(const char *text)
{
    if (text[0] == 's')
        return (Word)(uintptr_t)streams[atoi(text + 1)];
    if (text[0] == 'c')
        return (Word)(uintptr_t)contexts[atoi(text + 1)];
    if (!strcmp(text, "big"))
        return (Word)(uintptr_t)big;
    if (!strcmp(text, "zero"))
        return (Word)(uintptr_t)zero;
    return strtoull(text, NULL, 0);
}

/* invoke NAME ARGUMENT...; each number of a struct that `big` points to is 4096. */
static int invoke(char **w)
{
    typedef int (*any_t)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);
    Word a[12] = {0};
    any_t call;
    *(void **)&call = dlsym(cuda, w[1]);
    if (!call)
        return -2;
    for (int i = 0; i < 512; i++)
        big[i] = 4096ull << 32 | 4096;
    memset(zero, 0, sizeof(zero));
    for (int i = 0; i < 12 && w[2 + i]; i++)
        a[i] = word_of(w[2 + i]);
    return call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
}

/* A program that gives a call some milliseconds and leaves it by siglongjmp. 1: it was left. */
static int launch_with_timeout(long stream, long function, long ms)
{
    if (sigsetjmp(leave_to, 1))
        return 1;
    leave_after_ms(ms);
    int result = launch_on(streams[stream], function, 1);
    leave_never();
    return result ? -result : 0;
}

static pthread_t waiting;

static void *wait_at_the_gate(void *kind)
{
    int before;
    if (kind)
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    CALL(cuCtxSetCurrent)(contexts[0]);
    launch_on(streams[0], 0x10, 1);
    pthread_testcancel();
    return NULL;
}

static void *wait_for_room(void *kind)
{
    int before;
    CUdeviceptr pointer;
    if (kind)
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    CALL(cuCtxSetCurrent)(contexts[0]);
    CALL(cuMemAlloc_v2)(&pointer, 1 << 20);
    pthread_testcancel();
    return NULL;
}

static int cancelled(void)
{
    void *result;
    pthread_join(waiting, &result);
    return result == PTHREAD_CANCELED;
}

/* many FIRST COUNT: creates streams FIRST ... and launches once into each. */
static int many(long first, long count, long function)
{
    int result = 0;
    for (long i = first; i < first + count && !result; i++) {
        if (!streams[i])
            result = CALL(cuStreamCreate)(&streams[i], 0);
        if (!result)
            result = launch_on(streams[i], function, 1);
    }
    return result;
}

static int fork_and_launch(void)
{
    int status = 0, pid = fork();
    if (pid == 0) {
        int result = CALL(cuInit)(0);
        if (!result)
            result = CALL(cuCtxCreate_v2)(&contexts[0], 0, 0);
        _exit(result ? result : launch_on(NULL, 0x10, 3));
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Calls through pointers that were fetched before the program closed its handle. */
static int closed_handle(long times)
{
    __typeof__(&cuLaunchKernel) launch = CALL(cuLaunchKernel);
    while (dlclose(cuda) == 0 && times-- > 0)
        ;
    return launch((CUfunction)0x10, 1, 1, 1, 1, 1, 1, 0, streams[0], NULL, NULL);
}

static void *make_contexts(void *times)
{
    long bad = 0;
    for (long i = (long)(intptr_t)times; i > 0; i--) {
        CUcontext context;
        bad += CALL(cuCtxCreate_v2)(&context, 0, 0) != CUDA_SUCCESS ||
               CALL(cuCtxDestroy_v2)(context) != CUDA_SUCCESS;
    }
    return (void *)(intptr_t)bad;
}

static int contexts_at_once(long threads, long times)
{
    pthread_t all[16];
    void *bad;
    int sum = 0;
    if (threads > 16)
        return -3;
    for (long i = 0; i < threads; i++)
        if (pthread_create(&all[i], NULL, make_contexts, (void *)(intptr_t)times))
            return -4;
    for (long i = 0; i < threads; i++) {
        pthread_join(all[i], &bad);
        sum += (int)(intptr_t)bad;
    }
    return sum;
}

static void *begins_capture(void *current)
{
    int result = CALL(cuCtxSetCurrent)(current);
    if (!result)
        result = CALL(cuStreamBeginCapture_v2)(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL);
    return (void *)(intptr_t)result;
}

/* A thread that ends while its own default stream captures. */
static int captures_in_thread(void)
{
    pthread_t thread;
    void *result = NULL;
    pthread_create(&thread, NULL, begins_capture, contexts[0]);
    pthread_join(thread, &result);
    return (int)(intptr_t)result;
}

int more_command(char **w)
{
    if (!strcmp(w[0], "invoke"))
        return invoke(w);
    if (!strcmp(w[0], "newer"))
        return state->newer = (int)arg(w, 1), 0;
    if (!strcmp(w[0], "capture_in_thread"))
        return captures_in_thread();
    if (!strcmp(w[0], "end_result"))
        return state->end_result = (int)arg(w, 1), 0;
    if (!strcmp(w[0], "capturing")) /* capturing STREAM YES: what the stub says of it */
        return state->capturing = arg(w, 2) ? (Word)(uintptr_t)streams[arg(w, 1)] : 0, 0;
    if (!strcmp(w[0], "capturing_handle")) /* the same for any handle, also of a default stream */
        return state->capturing = (Word)arg(w, 1), 0;
    if (!strcmp(w[0], "legacy_writes"))
        return (int)state->counts.legacy_writes;
    if (!strcmp(w[0], "timeout")) /* timeout STREAM FUNCTION MS */
        return launch_with_timeout(arg(w, 1), arg(w, 2), arg(w, 3));
    if (!strcmp(w[0], "thread_waits")) /* thread_waits ASYNCHRONOUS */
        return pthread_create(&waiting, NULL, wait_at_the_gate, (void *)arg(w, 1));
    if (!strcmp(w[0], "thread_allocs")) /* thread_allocs ASYNCHRONOUS */
        return pthread_create(&waiting, NULL, wait_for_room, (void *)arg(w, 1));
    if (!strcmp(w[0], "cancel"))
        return pthread_cancel(waiting);
    if (!strcmp(w[0], "cancelled"))
        return cancelled();
    if (!strcmp(w[0], "many"))
        return many(arg(w, 1), arg(w, 2), arg(w, 3));
    if (!strcmp(w[0], "fork_launch"))
        return fork_and_launch();
    if (!strcmp(w[0], "contexts")) /* contexts THREADS TIMES: each makes and destroys so many */
        return contexts_at_once(arg(w, 1), arg(w, 2));
    if (!strcmp(w[0], "dlclose"))
        return closed_handle(arg(w, 1));
    return room_command(w);
}
