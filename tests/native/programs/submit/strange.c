/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that nobody wrote the shim for: `shim-strange WHAT [WORD]`, each with one habit that
 * some program has. It prints how many launches it made, and ends well. test_shim_strange.py.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "submit.h"

extern char **environ;
static atomic_uint launched;

static void launch(CUstream s)
{
    uint64_t ns = 1000;
    void *params[] = {&ns};
    MUST(CALL(cuLaunchKernel)(work, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
    launched++;
}

static void take_and_give(void)
{
    CUdeviceptr at;
    MUST(CALL(cuMemAlloc_v2)(&at, MIB));
    MUST(CALL(cuMemFree_v2)(at));
}

static void *works(void *times)
{
    CUstream own;
    MUST(CALL(cuCtxSetCurrent)(context));
    MUST(CALL(cuStreamCreate)(&own, CU_STREAM_NON_BLOCKING));
    for (uintptr_t i = 0; i < (uintptr_t)times; i++) {
        launch(own);
        if (i % 64 == 0)
            take_and_give();
    }
    MUST(CALL(cuStreamSynchronize)(own));
    MUST(CALL(cuStreamDestroy_v2)(own));
    return NULL;
}

/* Threads with the least stack there may be, as runtimes with a thousand threads have them. */
static void tiny_stacks(void)
{
    pthread_attr_t small;
    pthread_t threads[16];
    open_work();
    pthread_attr_init(&small);
    MUST(pthread_attr_setstacksize(&small, (size_t)PTHREAD_STACK_MIN));
    for (unsigned i = 0; i < 16; i++)
        MUST(pthread_create(&threads[i], &small, works, (void *)500));
    for (unsigned i = 0; i < 16; i++)
        MUST(pthread_join(threads[i], NULL));
}

static atomic_uint handled;

static void on_signal(int number)
{
    (void)number;
    launch(stream);
    handled++;
}

static void *waits_for_signals(void *unused)
{
    static char alternative[16384];
    stack_t stack = {.ss_sp = alternative, .ss_size = sizeof(alternative)};
    (void)unused;
    MUST(CALL(cuCtxSetCurrent)(context));
    MUST(sigaltstack(&stack, NULL));
    while (handled < 200)
        pause();
    return NULL;
}

/* A handler on a stack of its own that launches, in a thread that only waits for signals. */
static void in_handlers(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    pthread_t thread;
    open_work();
    sigaction(SIGUSR2, &action, NULL);
    MUST(pthread_create(&thread, NULL, waits_for_signals, NULL));
    for (unsigned seen = 0; handled < 200; seen = handled) {
        pthread_kill(thread, SIGUSR2);
        while (handled == seen)
            launch(CU_STREAM_PER_THREAD);
    }
    MUST(pthread_join(thread, NULL));
    MUST(CALL(cuCtxSynchronize)());
}

static pthread_key_t last_words;

static void at_thread_end(void *again)
{
    launch(CU_STREAM_PER_THREAD);
    take_and_give();
    if (again) /* behind the destructors of everybody else */
        pthread_setspecific(last_words, (char *)again - 1);
}

static void *ends(void *unused)
{
    (void)unused;
    MUST(CALL(cuCtxSetCurrent)(context));
    pthread_setspecific(last_words, (char *)2);
    launch(CU_STREAM_PER_THREAD);
    return NULL;
}

/* Work from destructors of thread-local things, also after the shim's own have run. */
static void at_ends_of_threads(void)
{
    pthread_t thread;
    pthread_key_create(&last_words, at_thread_end);
    open_work();
    for (unsigned i = 0; i < 100; i++) {
        MUST(pthread_create(&thread, NULL, ends, NULL));
        MUST(pthread_join(thread, NULL));
    }
    MUST(CALL(cuCtxSynchronize)());
}

static CUdeviceptr kept;

static void last_work(void)
{
    launch(stream);
    MUST(CALL(cuMemFree_v2)(kept));
    MUST(CALL(cuStreamSynchronize)(stream));
    MUST(CALL(cuDevicePrimaryCtxRelease_v2)(0));
    printf("%u\n", launched);
    fflush(stdout);
}

/* A registry of the program is taken down by exit(), with CUDA calls in it. */
static void at_exit(void)
{
    atexit(last_work);
    open_work();
    MUST(CALL(cuMemAlloc_v2)(&kept, MIB));
    exit(0);
}

static void *for_ever(void *unused)
{
    (void)unused;
    MUST(CALL(cuCtxSetCurrent)(context));
    for (;;)
        launch(CU_STREAM_PER_THREAD);
}

/* exit() while other threads are in the middle of launches. */
static void exit_amid_work(void)
{
    pthread_t thread;
    open_work();
    for (unsigned i = 0; i < 6; i++)
        MUST(pthread_create(&thread, NULL, for_ever, NULL));
    while (launched < 5000)
        take_and_give();
    printf("%u\n", launched);
    fflush(stdout);
    exit(0);
}

/* Children by vfork and posix_spawn, with an environment of their own, while threads work. */
static void spawns(void)
{
    pthread_t threads[4];
    char *words[] = {"true", NULL}, *nothing[] = {NULL};
    int status;
    open_work();
    for (unsigned i = 0; i < 4; i++)
        MUST(pthread_create(&threads[i], NULL, works, (void *)3000));
    for (unsigned i = 0; i < 60; i++) {
        pid_t child = -1;
        if (i % 2)
            MUST(posix_spawn(&child, "/bin/true", NULL, NULL, words,
                             i % 4 == 1 ? nothing : environ));
        else if ((child = vfork()) == 0) {
            execve("/bin/true", words, nothing);
            _exit(9);
        }
        MUST(waitpid(child, &status, 0) != child);
        MUST(status);
    }
    for (unsigned i = 0; i < 4; i++)
        MUST(pthread_join(threads[i], NULL));
}

/* Nothing is open any more, not even 0 to 2, before the first call of CUDA; its own files get those
 * numbers. */
static void closed(void)
{
    int out = fcntl(1, F_DUPFD, 900);
    for (int fd = 0; fd < 900; fd++)
        close(fd);
    for (int fd = 0; fd < 40; fd++)
        MUST(open("/dev/null", O_RDWR) != fd);
    open_work();
    for (unsigned i = 0; i < 1000; i++)
        launch(stream);
    for (int fd = 0; fd < 40; fd++) /* still its own */
        MUST(write(fd, "x", 1) != 1);
    MUST(CALL(cuStreamSynchronize)(stream));
    dup2(out, 1);
}

/* What a library asks that does not know the driver: the same answers as without the shim, written
 * for the test to compare. */
static void asks(void)
{
    static const struct {
        const char *name;
        int version;
        cuuint64_t flags;
    } queries[] = {{"cuNoSuchThing", 12000, 0},   {"", 0, 0},
                   {"cuLaunchKernel", 1, 0},      {"cuLaunchKernel", -5, 0},
                   {"cuLaunchKernel", 12000, 64}, {"cuLaunchKernel", 2147483647, 2},
                   {"culaunchkernel", 12000, 0},  {"cuLaunchKernel_ptsz", 12000, 0},
                   {"cuMemAlloc_v2", 12000, 0},   {"qgpu_job_view", 12000, 0}};
    for (unsigned i = 0; i < sizeof(queries) / sizeof(queries[0]); i++) {
        void *found = (void *)1;
        CUdriverProcAddressQueryResult why = (CUdriverProcAddressQueryResult)77;
        int status = CALL(cuGetProcAddress_v2)(queries[i].name, &found, queries[i].version,
                                               queries[i].flags, &why);
        printf("%d %d %d,", status, (int)why, found ? found == (void *)1 ? 1 : 2 : 0);
        status = CALL(cuGetProcAddress_v2)(queries[i].name, &found, queries[i].version,
                                           queries[i].flags, NULL);
        printf("%d,", status);
        status = (int)((CUresult (*)(const char *, void **, int, cuuint64_t))submit_find(
            "cuGetProcAddress"))(queries[i].name, &found, queries[i].version, queries[i].flags);
        printf("%d,", status);
    }
    printf("%d %d\n", CALL(cuGetProcAddress_v2)("cuInit", NULL, 12000, 0, NULL),
           CALL(cuGetProcAddress_v2)(NULL, (void **)&kept, 12000, 0, NULL));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"tiny_stacks", tiny_stacks},
               {"in_handlers", in_handlers},
               {"at_ends_of_threads", at_ends_of_threads},
               {"at_exit", at_exit},
               {"exit_amid_work", exit_amid_work},
               {"spawns", spawns},
               {"closed", closed},
               {"asks", asks}};
    /* "local": nobody else shall see it; "namespace": a second set of libraries, as some sandboxes
     * and plugins use. */
    const char *how = argc > 2 ? argv[2] : "", *path = argc > 3 ? argv[3] : "libcuda.so.1";
    cuda = !strcmp(how, "namespace")
               ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_LOCAL)
               : dlopen(path, RTLD_LAZY | (*how ? RTLD_LOCAL | RTLD_DEEPBIND : RTLD_GLOBAL));
    if (!cuda)
        fprintf(stderr, "%s\n", dlerror());
    MUST(!cuda);
    for (unsigned i = 0; argc > 1 && i < sizeof(all) / sizeof(all[0]); i++)
        if (!strcmp(argv[1], all[i].name)) {
            all[i].run();
            if (all[i].run != asks)
                printf("%u\n", launched);
            return 0;
        }
    return 64;
}
