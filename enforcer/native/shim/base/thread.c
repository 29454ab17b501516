/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of the shim in the user's process: detached, small, and with all signals blocked.
 */
#include <link.h>
#include <pthread.h>
#include <signal.h>

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

bool qg_thread_start(void *(*body)(void *))
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    /* glibc takes the thread-local variables of all libraries out of the stack, and they may be
     * large */
    size_t tls = 0;
    dl_iterate_phdr(add_tls, &tls);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, (STACK + tls + 4095) & ~(size_t)4095);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, body, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0;
}
