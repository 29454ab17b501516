/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that a context registered with CUDA may go with it, and what another context writes there
 * then faults: a marker of ours would end a program's work. So each context registers a mapping of
 * its own of the process's slot.
 */
#include "process/pages.h"

#include <sys/mman.h>

#define NOBODY ((CUcontext)(uintptr_t)1) /* it is not there */

void qg_aliases_map(struct qg_pages *pages, int fd)
{
    off_t at = (char *)pages->proc - (char *)pages->job;
    for (unsigned i = 0; i < QG_ALIASES; i++) {
        void *map = mmap(NULL, QG_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
        pages->aliases[i] =
            map == MAP_FAILED ? (struct qg_alias){.owner = NOBODY} : (struct qg_alias){.page = map};
    }
}

void qg_aliases_unmap(const struct qg_pages *pages)
{
    for (unsigned i = 0; i < QG_ALIASES; i++)
        if (pages->aliases[i].page)
            munmap(pages->aliases[i].page, QG_PAGE);
}

/* Of two threads that take one for the same context at once each may get one; both are good. */
struct qg_proc *qg_alias_of(struct qg_pages *pages, CUcontext owner)
{
    for (unsigned i = 0; i < QG_ALIASES; i++)
        if (__atomic_load_n(&pages->aliases[i].owner, __ATOMIC_ACQUIRE) == owner)
            return pages->aliases[i].page;
    for (unsigned i = 0; i < QG_ALIASES; i++) {
        struct qg_alias *alias = &pages->aliases[i];
        CUcontext none = NULL;
        if (!__atomic_compare_exchange_n(&alias->owner, &none, owner, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue;
        __atomic_store_n(&alias->used, true, __ATOMIC_RELEASE);
        return alias->page;
    }
    return NULL;
}

/* Those that some context had stay: its registration may outlive it. */
void qg_aliases_retire(struct qg_pages *pages)
{
    for (unsigned i = 0; i < QG_ALIASES; i++) {
        struct qg_alias *alias = &pages->aliases[i];
        CUcontext none = NULL;
        if (!alias->page || __atomic_load_n(&alias->used, __ATOMIC_ACQUIRE) ||
            !__atomic_compare_exchange_n(&alias->owner, &none, NOBODY, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue;
        /* somebody had it meanwhile, and is gone */
        if (__atomic_load_n(&alias->used, __ATOMIC_ACQUIRE))
            continue;
        munmap(alias->page, QG_PAGE);
        alias->page = NULL;
    }
}

void qg_aliases_release(struct qg_pages *pages, CUcontext owner)
{
    for (unsigned i = 0; i < QG_ALIASES; i++) {
        CUcontext was = owner;
        __atomic_compare_exchange_n(&pages->aliases[i].owner, &was, NULL, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED);
    }
}
