/* SPDX-License-Identifier: Apache-2.0
 *
 * Mappings of the slot, one per context. Memory that a context registered with CUDA may become
 * invalid when that context ends. A fence of another context there would then fault and end the
 * program's work. So each context registers a mapping of its own.
 */
#include "process/pages.h"

#include <sys/mman.h>

#define NO_MAPPING ((CUcontext)(uintptr_t)1) /* it is not there */

void qg_slot_mappings_map(struct qg_pages *pages, int fd)
{
    off_t at = (char *)pages->proc - (char *)pages->job;
    for (unsigned i = 0; i < QG_SLOT_MAPPINGS; i++) {
        void *map = mmap(NULL, QG_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
        pages->slot_mappings[i] = map == MAP_FAILED ? (struct qg_slot_mapping){.owner = NO_MAPPING}
                                                    : (struct qg_slot_mapping){.page = map};
    }
}

void qg_slot_mappings_unmap(const struct qg_pages *pages)
{
    for (unsigned i = 0; i < QG_SLOT_MAPPINGS; i++)
        if (pages->slot_mappings[i].page)
            munmap(pages->slot_mappings[i].page, QG_PAGE);
}

/* Returns the mapping of a context. Two threads may each get another one for the same context; both
 * work. */
struct qg_proc *qg_slot_mapping_of(struct qg_pages *pages, CUcontext owner)
{
    for (unsigned i = 0; i < QG_SLOT_MAPPINGS; i++)
        if (__atomic_load_n(&pages->slot_mappings[i].owner, __ATOMIC_ACQUIRE) == owner)
            return pages->slot_mappings[i].page;
    for (unsigned i = 0; i < QG_SLOT_MAPPINGS; i++) {
        struct qg_slot_mapping *mapping = &pages->slot_mappings[i];
        CUcontext none = NULL;
        if (!__atomic_compare_exchange_n(&mapping->owner, &none, owner, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue;
        __atomic_store_n(&mapping->used, true, __ATOMIC_RELEASE);
        return mapping->page;
    }
    return NULL;
}

/* Removes unused mappings. One that a context had stays: its registration may outlive the context.
 */
void qg_slot_mappings_retire(struct qg_pages *pages)
{
    for (unsigned i = 0; i < QG_SLOT_MAPPINGS; i++) {
        struct qg_slot_mapping *mapping = &pages->slot_mappings[i];
        CUcontext none = NULL;
        if (!mapping->page || __atomic_load_n(&mapping->used, __ATOMIC_ACQUIRE) ||
            !__atomic_compare_exchange_n(&mapping->owner, &none, NO_MAPPING, false,
                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            continue;
        /* a context had it meanwhile, and is gone */
        if (__atomic_load_n(&mapping->used, __ATOMIC_ACQUIRE))
            continue;
        munmap(mapping->page, QG_PAGE);
        mapping->page = NULL;
    }
}

void qg_slot_mappings_release(struct qg_pages *pages, CUcontext owner)
{
    for (unsigned i = 0; i < QG_SLOT_MAPPINGS; i++) {
        CUcontext was = owner;
        __atomic_compare_exchange_n(&pages->slot_mappings[i].owner, &was, NULL, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
}
