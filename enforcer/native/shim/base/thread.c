/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of the shim in the user's process: detached, small, and with all signals blocked.
 */
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/thread.h"

/* Bytes of stack of a helper thread, besides thread-local storage. Chosen, not measured: its calls
 * are shallow. */
#define STACK (128 * 1024)

static int add_tls(struct dl_phdr_info *info, size_t size, void *sum)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS)
            *(size_t *)sum += info->dlpi_phdr[i].p_memsz + info->dlpi_phdr[i].p_align;
    return 0;
}

/* By number: pthread_sigmask() leaves out the signals that cancel threads. */
void qg_signals_block(uint64_t *before)
{
    uint64_t all = ~(uint64_t)0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, before, sizeof(all));
}

void qg_signals_restore(const uint64_t *before)
{
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, before, NULL, sizeof(*before));
}

bool qg_thread_start(void *(*body)(void *))
{
    uint64_t before;
    pthread_attr_t attributes;
    pthread_t thread;
    /* glibc takes the thread-local variables of all libraries out of the stack, and they may be
     * large */
    size_t tls = 0;
    dl_iterate_phdr(add_tls, &tls);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, (STACK + tls + 4095) & ~(size_t)4095);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    qg_signals_block(&before);
    int error = pthread_create(&thread, &attributes, body, NULL);
    qg_signals_restore(&before);
    pthread_attr_destroy(&attributes);
    return error == 0;
}
