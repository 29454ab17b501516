/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that no program should make: `shim-odd-calls STATE ARGUMENTS`, names of functions on
 * standard input, "NAME RESULT" for each on standard output. STATE is what the process had done
 * before, ARGUMENTS what all parameters are. A call that crashes or hangs ends the program: "NAME
 * crash", "NAME hang". test_shim_odd_calls.py compares with and without the shim.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cuda.h>

#include "must.h"

#define CALL(name) ((__typeof__(&name))dlsym(cuda, #name))
#define PARAMETERS 12
#define PLACE      4096u
/* where a process may have memory: a pointer to it is a number that an array may be long */
#define LOWEST 0x10000u
#define ZEROS  ((size_t)64 << 20) /* so many of them there, for the longest such array */

typedef CUresult (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                             uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
static char name[128];
static void *cuda;
static CUcontext context;

static void ended(int sig)
{
    const char *word = sig == SIGALRM ? " hang\n" : " crash\n";
    if (write(1, name, strlen(name)) < 0 || write(1, word, strlen(word)) < 0)
        _exit(3);
    _exit(0);
}

static void become(const char *state)
{
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(!cuda);
    if (!strcmp(state, "nothing"))
        return;
    MUST(CALL(cuInit)(0));
    if (!strcmp(state, "inited"))
        return;
    MUST(CALL(cuCtxCreate_v2)(&context, 0, 0));
    if (!strcmp(state, "destroyed"))
        MUST(CALL(cuCtxDestroy_v2)(context));
    if (!strcmp(state, "faulty")) {
        puts("ready");
        fflush(stdout);
        MUST(getchar() != '\n'); /* the fault is there */
    }
}

/* `places`: each is a pointer to zeros, and a small number. */
static void set_up(uintptr_t arguments[PARAMETERS], bool places)
{
    void *zeros = (void *)(uintptr_t)LOWEST;
    MUST(mmap(zeros, ZEROS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
              0) != zeros);
    for (unsigned i = 0; i < PARAMETERS; i++)
        arguments[i] = places ? LOWEST + i * PLACE : 0;
}

int main(int count, char **words)
{
    uintptr_t a[PARAMETERS];
    MUST(count != 3);
    become(words[1]);
    for (int sig = 1; sig < 16; sig++)
        if (sig == SIGSEGV || sig == SIGBUS || sig == SIGFPE || sig == SIGABRT || sig == SIGILL ||
            sig == SIGALRM)
            signal(sig, ended);
    while (fgets(name, sizeof(name), stdin)) {
        name[strcspn(name, "\n")] = 0;
        function call = (function)(uintptr_t)dlsym(cuda, name);
        if (context)
            CALL(cuCtxSetCurrent)(context);
        set_up(a, !strcmp(words[2], "places"));
        alarm(5);
        CUresult result =
            call ? call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11])
                 : 0;
        alarm(0);
        printf("%s %d\n", name, call ? (int)result : -1);
        fflush(stdout);
    }
    return 0;
}
