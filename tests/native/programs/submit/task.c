/* SPDX-License-Identifier: Apache-2.0
 *
 * A program of a job that does one odd thing, for test_faults_*.py: `shim-task WHAT [NUMBER...]`.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>

#include "submit.h"

static void say(const char *word)
{
    printf("%s\n", word);
    fflush(stdout);
}

/* 0, or why there is no context: the process is not registered */
static CUresult enter(void)
{
    cuda = cuda ? cuda : dlopen("libcuda.so.1", RTLD_NOW);
    MUST(!cuda);
    MUST(CALL(cuInit)(0));
    return CALL(cuDevicePrimaryCtxRetain)(&context, 0);
}

static void start(void)
{
    static const char ptx[] =
        ".version 6.3\n.target sm_75\n.visible .entry qgpu_work(.param .u64 n)\n{ ret; }\n";
    MUST(!context && enter());
    MUST(CALL(cuCtxSetCurrent)(context));
    MUST(CALL(cuModuleLoadData)(&module, ptx));
    MUST(CALL(cuModuleGetFunction)(&work, module, "qgpu_work"));
    MUST(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
}

static CUresult launch(uint64_t ns, CUstream s)
{
    void *params[] = {&ns};
    return CALL(cuLaunchKernel)(work, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* hold MIB [launch]: "held" or "refused", then a launch if wanted ("launched"), then it stays. What
 * gets no context tries again until it does, and holds nothing. */
static int hold_memory(char **words)
{
    CUdeviceptr at;
    CUresult late = enter();
    if (late)
        say("refused");
    while (late && enter())
        poll(NULL, 0, 20);
    start();
    if (!late)
        say(CALL(cuMemAlloc_v2)(&at, strtoul(words[0], NULL, 10) * MIB) ? "refused" : "held");
    if (words[1]) {
        MUST(launch(1000, stream) || CALL(cuStreamSynchronize)(stream));
        say("launched");
    }
    pause();
    return 0;
}

/* churn SEED: says that it works, then allocates, frees and launches in a random order for ever;
 * each byte of it is in the job's books. */
static int churn(char **words)
{
    unsigned seed = (unsigned)strtoul(words[0], NULL, 10);
    CUdeviceptr held[8] = {0};
    start();
    say("working");
    for (;;) {
        unsigned at = (unsigned)rand_r(&seed) % 8;
        if (held[at]) {
            MUST(CALL(cuMemFree_v2)(held[at]));
            held[at] = 0;
        } else {
            int status = CALL(cuMemAlloc_v2)(&held[at],
                                             ((size_t)1 + (unsigned)rand_r(&seed) % 64) * 2 * MIB);
            MUST(status && status != CUDA_ERROR_OUT_OF_MEMORY);
            held[at] = status ? 0 : held[at];
        }
        for (unsigned i = (unsigned)rand_r(&seed) % 4; i; i--)
            MUST(launch(2000, stream));
        if (rand_r(&seed) % 4 == 0)
            MUST(CALL(cuStreamSynchronize)(stream));
    }
}

/* close SECONDS: closes every descriptor but the first three, again and again, while it works. */
static int close_everything(char **words)
{
    double until;
    unsigned long launches = 0;
    start();
    until = seconds() + strtod(words[0], NULL);
    while (seconds() < until) {
        /* the driver's own lie below, and it cannot do without them */
        for (int fd = 200; fd < 1024; fd++)
            close(fd);
        for (int i = 0; i < 200; i++, launches++)
            MUST(launch(10000, stream));
        MUST(CALL(cuStreamSynchronize)(stream));
    }
    printf("%lu\n", launches);
    return 0;
}

/* exec TIMES: works, then becomes itself anew. */
static int exec_again(char **words)
{
    char left[16];
    CUdeviceptr at;
    unsigned long times = strtoul(words[0], NULL, 10);
    start();
    MUST(CALL(cuMemAlloc_v2)(&at, 64 * MIB));
    for (int i = 0; i < 20; i++)
        MUST(launch(10000, stream));
    MUST(CALL(cuStreamSynchronize)(stream));
    say("again");
    snprintf(left, sizeof(left), "%lu", times - 1);
    if (times)
        execl("/proc/self/exe", "shim-task", "exec", left, (char *)NULL);
    return 0;
}

/* spin ROUNDS: kernels behind a word that only a later launch, in another stream, sets. Each round
 * fills the window. */
static int spin_for_another(char **words)
{
    CUstream second;
    void *page;
    start();
    MUST(CALL(cuMemHostAlloc)(&page, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    MUST(CALL(cuMemHostGetDevicePointer_v2)(&word, page, 0));
    MUST(CALL(cuStreamCreate)(&second, CU_STREAM_NON_BLOCKING));
    for (unsigned long round = 1; round <= strtoul(words[0], NULL, 10); round++) {
        MUST(CALL(cuStreamWaitValue32)(stream, word, (cuuint32_t)round, CU_STREAM_WAIT_VALUE_GEQ));
        for (int i = 0; i < 4; i++)
            MUST(launch(400000, stream)); /* more than a window */
        MUST(launch(1000, second));       /* it must get through, or nobody ever writes the word */
        MUST(CALL(cuStreamWriteValue32)(second, word, (cuuint32_t)round, 0));
        MUST(CALL(cuStreamSynchronize)(stream));
    }
    say("done");
    return 0;
}

/* Memory nodes of so many MiB on the first and the second device. */
static CUgraphExec graph_on_both(size_t first, size_t second)
{
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node, end;
    MUST(CALL(cuGraphCreate)(&graph, 0));
    for (int device = 0; device < 2; device++) {
        CUDA_MEM_ALLOC_NODE_PARAMS wanted = {
            .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
            .bytesize = (device ? second : first) * MIB};
        MUST(CALL(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &wanted));
        MUST(CALL(cuGraphAddMemFreeNode)(&end, graph, &node, 1, wanted.dptr));
    }
    MUST(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    MUST(CALL(cuGraphDestroy)(graph));
    return exec;
}

/* graphs A B A B ...: a graph with memory on two cards each, launched and destroyed: "launched" or
 * "refused". */
static int graphs(char **words)
{
    CUcontext other;
    start();
    MUST(CALL(cuDevicePrimaryCtxRetain)(&other, 1));
    for (; words[0] && words[1]; words += 2) {
        CUgraphExec exec = graph_on_both(strtoul(words[0], NULL, 10), strtoul(words[1], NULL, 10));
        CUresult status = CALL(cuGraphLaunch)(exec, stream);
        MUST(status && status != CUDA_ERROR_OUT_OF_MEMORY);
        MUST(CALL(cuStreamSynchronize)(stream));
        say(status ? "refused" : "launched");
        go_on();
        MUST(CALL(cuGraphExecDestroy)(exec));
        MUST(CALL(cuDeviceGraphMemTrim)(0) || CALL(cuDeviceGraphMemTrim)(1));
    }
    say("end");
    go_on();
    return 0;
}

/* multi: one launch on two cards when it is told to. */
static int multi(char **words)
{
    static const char ptx[] =
        ".version 6.3\n.target sm_75\n.visible .entry qgpu_work(.param .u64 n)\n{ ret; }\n";
    uint64_t ns = 1000;
    void *params[] = {&ns};
    CUcontext other;
    CUmodule there;
    CUfunction theirs;
    CUstream second;
    (void)words;
    start();
    MUST(CALL(cuDevicePrimaryCtxRetain)(&other, 1));
    MUST(CALL(cuCtxSetCurrent)(other));
    MUST(CALL(cuModuleLoadData)(&there, ptx));
    MUST(CALL(cuModuleGetFunction)(&theirs, there, "qgpu_work"));
    MUST(CALL(cuStreamCreate)(&second, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuCtxSetCurrent)(context));
    CUDA_LAUNCH_PARAMS list[] = {{work, 1, 1, 1, 1, 1, 1, 0, stream, params},
                                 {theirs, 1, 1, 1, 1, 1, 1, 0, second, params}};
    say("ready");
    go_on();
    MUST(CALL(cuLaunchCooperativeKernelMultiDevice)(list, 2, 0));
    say("launched");
    MUST(CALL(cuStreamSynchronize)(second));
    MUST(CALL(cuStreamSynchronize)(stream));
    return 0;
}

static volatile bool captures_over;

/* Kernels of a length that is learned again and again, into a window that is full most of the time.
 */
static void *launches_on(void *unused)
{
    CUstream own;
    (void)unused;
    MUST(CALL(cuCtxSetCurrent)(context));
    MUST(CALL(cuStreamCreate)(&own, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; !captures_over; i++) {
        CUmodule again = NULL;
        MUST(launch(50000 + 1000 * (i % 50), own));
        if (i % 16 == 0) { /* forgets what was learned */
            MUST(CALL(cuModuleLoadData)(
                &again,
                ".version 6.3\n.target sm_75\n.visible .entry other(.param .u64 n)\n{ ret; }\n"));
            MUST(CALL(cuModuleUnload)(again));
        }
    }
    MUST(CALL(cuStreamSynchronize)(own));
    return NULL;
}

/* captures NUMBER: so many of global mode, one after the other, while another thread launches: "N
 * spoiled". */
static int captures(char **words)
{
    struct timespec pause = {0, 300000};
    pthread_t thread;
    CUgraph graph;
    int spoiled = 0;
    start();
    say("ready");
    go_on();
    MUST(pthread_create(&thread, NULL, launches_on, NULL));
    for (int i = atoi(words[0]); i > 0; i--) {
        MUST(CALL(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        CUresult launched = launch(1000, stream);
        nanosleep(&pause, NULL);
        CUresult ended = CALL(cuStreamEndCapture)(stream, &graph);
        MUST(launched != CUDA_SUCCESS && launched != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        MUST(ended != CUDA_SUCCESS && ended != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        spoiled += ended != CUDA_SUCCESS;
        if (ended == CUDA_SUCCESS)
            MUST(CALL(cuGraphDestroy)(graph));
        nanosleep(&pause, NULL);
    }
    captures_over = true;
    MUST(pthread_join(thread, NULL));
    printf("%d spoiled\n", spoiled);
    return 0;
}

static const char *small_kind;

/* Small calls one after the other, for ever: each alone is not worth a turn. */
static void *small_loop(void *unused)
{
    CUstream own;
    (void)unused;
    MUST(CALL(cuCtxSetCurrent)(context));
    MUST(CALL(cuStreamCreate)(&own, CU_STREAM_NON_BLOCKING));
    for (;;) {
        if (!strcmp(small_kind, "fill"))
            MUST(CALL(cuMemsetD8Async)(a, 1, 4096, own));
        else if (!strcmp(small_kind, "copy"))
            MUST(CALL(cuMemcpyDtoDAsync_v2)(b, a, 4096, own));
        else if (!strcmp(small_kind,
                         "fill_now")) /* returns before it is done, whatever its name says */
            MUST(CALL(cuMemsetD32_v2)(a, 1, 1024));
        else
            MUST(CALL(cuMemcpyHtoD_v2)(a, host, 4096));
    }
    return NULL;
}

/* small KIND THREADS. */
static int small_calls(char **words)
{
    pthread_t thread;
    small_kind = words[0];
    start();
    MUST(CALL(cuMemAlloc_v2)(&a, MIB));
    MUST(CALL(cuMemAlloc_v2)(&b, MIB));
    MUST(CALL(cuMemHostAlloc)((void **)&host, MIB, 0));
    say("go");
    for (int i = atoi(words[1]); i > 0; i--)
        MUST(pthread_create(&thread, NULL, small_loop, NULL));
    pause();
    return 0;
}

/* fork NUMBER MIB: so many children, each holding so much; "HELD REFUSED". */
static int forks(char **words)
{
    int count = atoi(words[0]), ends[2], held = 0, refused = 0;
    pid_t children[512];
    char answer;
    MUST(pipe(ends));
    for (int i = 0; i < count && i < 512; i++) {
        children[i] = fork();
        if (!children[i]) {
            CUdeviceptr at;
            answer = 'r';
            if (!enter()) {
                start();
                answer = CALL(cuMemAlloc_v2)(&at, strtoul(words[1], NULL, 10) * MIB) ? 'r' : 'h';
            }
            MUST(write(ends[1], &answer, 1) != 1);
            pause();
        }
    }
    for (int i = 0; i < count; i++) {
        MUST(read(ends[0], &answer, 1) != 1);
        *(answer == 'h' ? &held : &refused) += 1;
    }
    printf("%d %d\n", held, refused);
    go_on(); /* they stay until the test has looked */
    for (int i = 0; i < count; i++)
        kill(children[i], SIGKILL);
    while (wait(NULL) > 0)
        ;
    say("over");
    go_on();
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(char **);
    } all[] = {{"hold", hold_memory},  {"churn", churn},           {"close", close_everything},
               {"exec", exec_again},   {"spin", spin_for_another}, {"fork", forks},
               {"small", small_calls}, {"captures", captures},     {"multi", multi},
               {"graphs", graphs}};
    (void)begin, (void)announce, (void)done, (void)right, (void)look, (void)blank, (void)hold;
    for (size_t i = 0; argc > 1 && i < sizeof(all) / sizeof(*all); i++)
        if (!strcmp(argv[1], all[i].name))
            return all[i].run(argv + 2);
    return 64;
}
