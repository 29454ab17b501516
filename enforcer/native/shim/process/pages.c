/* SPDX-License-Identifier: Apache-2.0
 *
 * The pages of one registration. They are mapped after a check of who made them, and known by their
 * identity from then on.
 */
#include "process/pages.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "qg_map.h"

/* Lowest number of our descriptors: programs rarely use numbers from 200 on. */
#define FIRST_FD 200

bool qg_same_file(int fd, dev_t dev, ino_t ino)
{
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

int qg_move_high(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD);
    if (high < 0)
        return fd; /* a low limit on descriptors: better a low number than none */
    close(fd);
    return high;
}

/* atomic; of all that were ever mapped; only the helper thread adds to them */
static struct qg_pages *last;

static void unmap(const struct qg_pages *pages)
{
    if (pages->gate)
        munmap((void *)(uintptr_t)pages->gate, sizeof(struct qg_gate_page));
    if (pages->job)
        munmap(pages->job, sizeof(struct qg_job_page));
    qg_slot_mappings_unmap(pages);
}

/* Unmapped here and not by MADV_DONTFORK. A child that was made by _Fork or clone(2) runs no
 * handler of ours. It still has these pages and acts as its parent, but CUDA refuses its calls. */
void qg_pages_after_fork(void)
{
    for (const struct qg_pages *at = last; at; at = at->mapped_before)
        unmap(at);
    last = NULL;
}

void qg_pages_context_gone(CUcontext owner)
{
    for (struct qg_pages *at = __atomic_load_n(&last, __ATOMIC_ACQUIRE); at; at = at->mapped_before)
        qg_slot_mappings_release(at, owner);
}

/* Replaces the gate page at the same address by a copy with a closed gate, in one step: threads
 * keep pointers to it. */
bool qg_pages_shut(struct qg_pages *pages)
{
    struct qg_gate_page *copy =
        mmap(NULL, sizeof(*copy), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return false;
    memcpy(copy, pages->gate, sizeof(*copy));
    copy->flags = QG_GATE_CLOSED | QG_GATE_TRACK;
    copy->mem_wait = 0; /* nobody would answer */
    mprotect(copy, sizeof(*copy), PROT_READ);
    void *place = (void *)(uintptr_t)pages->gate;
    return mremap(copy, sizeof(*copy), sizeof(*copy), MREMAP_MAYMOVE | MREMAP_FIXED, place) ==
           place;
}

static bool valid_pages(const struct qg_pages *pages)
{
    const struct qg_gate_page *gate = pages->gate;
    /* The job page's header says nothing: a sibling may have written over it, and its owner and
     * seals are checked. */
    return gate && pages->job && gate->magic == QG_MAGIC && gate->version == QG_ABI_VERSION &&
           gate->size >= sizeof(*gate) && gate->job_id == qg_info.grant.job_id &&
           pages->slot < QG_MAX_PROCS;
}

struct qg_pages *qg_pages_from(const struct qg_registered *answer, int fds[QG_PAGE_FDS])
{
    struct qg_pages *pages = calloc(1, sizeof(*pages));
    struct stat st, gate;
    if (!pages)
        return NULL;
    pages->slot = answer->slot;
    pages->gate = qg_map_page(fds[0], sizeof(struct qg_gate_page),
                              QG_SEALS_FIXED | F_SEAL_FUTURE_WRITE, PROT_READ);
    pages->job =
        qg_map_page(fds[1], sizeof(struct qg_job_page), QG_SEALS_FIXED, PROT_READ | PROT_WRITE);
    if (!valid_pages(pages) || fstat(fds[2], &st) != 0 || fstat(fds[0], &gate) != 0) {
        unmap(pages);
        free(pages);
        return NULL;
    }
    pages->proc = &pages->job->procs[pages->slot];
    qg_slot_mappings_map(pages, fds[1]);
    pages->lanes = qg_lanes_usable();
    pages->doorbell = qg_move_high(fds[2]);
    fds[2] = -1;
    pages->doorbell_dev = st.st_dev;
    pages->doorbell_ino = st.st_ino;
    pages->gate_dev = gate.st_dev;
    pages->gate_ino = gate.st_ino;
    pages->mapped_before = last;
    __atomic_store_n(&last, pages, __ATOMIC_RELEASE);
    return pages;
}
