/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums what the job holds. A restarted arbiter brings a new job page, and the processes of a job
 * move to it one after the other. Until all have moved, the numbers are on both pages. So a process
 * that has moved still writes its old slot too. It also reads the old slots of processes that are
 * not on the new page. A process is known by the pid that the arbiter wrote into its slots.
 */
#include "process/job_sum.h"

#include <errno.h>
#include <signal.h>

/* ns after which a process that did not move is stopped or never will move. Chosen, not measured.
 */
#define OLD_NS 30000000000u
/* Processes that one sum can tell apart: all slots of two pages. */
#define MANY (2u * QG_MAX_PROCS)

struct seen {
    uint32_t pid;
    uint64_t used, pending;
};

static void add(uint64_t *sum, uint64_t part)
{
    if (__builtin_add_overflow(*sum, part, sum))
        *sum = UINT64_MAX; /* a lying slot only hurts its own job */
}

/* Slots above the highest one ever used are not visited: each is a page, and a cache line, of its
 * own. */
static uint32_t slots_used(const struct qg_pages *pages)
{
    uint32_t high = __atomic_load_n(QG_JOB_SLOTS_USED(pages->job), __ATOMIC_ACQUIRE);
    return high < QG_MAX_PROCS ? high : QG_MAX_PROCS;
}

/* Pending is read first: bytes move from pending to used, so they may be counted twice but never
 * missed. */
static void add_slot(const struct qg_proc *slot, uint64_t *used, uint64_t *pending)
{
    *pending = __atomic_load_n(&slot->mem_pending, __ATOMIC_ACQUIRE);
    *used = __atomic_load_n(&slot->mem_used, __ATOMIC_ACQUIRE);
}

/* In a PID namespace other than the arbiter's the numbers say nothing: then only the new page
 * counts. */
static bool lives(uint32_t pid)
{
    int saved = errno;
    bool yes = pid && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
    errno = saved;
    return yes;
}

static struct seen *place(struct seen *seen, uint32_t count, uint32_t pid)
{
    for (uint32_t i = 0; pid && i < count; i++)
        if (seen[i].pid == pid)
            return &seen[i];
    return NULL;
}

/* Counts each process once, with the larger value of its slots: while it moves, one slot may be
 * old. */
static void sum_both(struct qg_pages *pages, uint64_t *used, uint64_t *pending)
{
    struct seen all[MANY];
    uint32_t count = 0;
    for (struct qg_pages *at = pages; at; at = at->before)
        for (uint32_t i = 0; i < slots_used(at); i++) {
            const struct qg_proc *slot = &at->job->procs[i];
            struct seen now = {.pid = __atomic_load_n(&slot->pid, __ATOMIC_ACQUIRE)};
            add_slot(slot, &now.used, &now.pending);
            struct seen *same = place(all, count, now.pid);
            if (same) {
                same->used = now.used > same->used ? now.used : same->used;
                same->pending = now.pending > same->pending ? now.pending : same->pending;
            } else if (count < MANY && (now.used || now.pending) &&
                       (at == pages || lives(now.pid))) {
                all[count++] = now;
            }
        }
    for (uint32_t i = 0; i < count; i++) {
        add(used, all[i].used);
        add(pending, all[i].pending);
    }
}

void qg_job_sums(struct qg_pages *pages, uint64_t *used, uint64_t *pending)
{
    *used = *pending = 0;
    if (QG_UNLIKELY(pages->before != NULL)) {
        if (qg_now_ns() - pages->followed_ns < OLD_NS) {
            sum_both(pages, used, pending);
            return;
        }
        pages->before = NULL;
    }
    for (uint32_t i = 0; i < slots_used(pages); i++) {
        uint64_t held, wanted;
        add_slot(&pages->job->procs[i], &held, &wanted);
        add(used, held);
        add(pending, wanted);
    }
}

uint64_t qg_job_extra(const struct qg_pages *pages)
{
    return __atomic_load_n(&pages->gate->mem_extra, __ATOMIC_ACQUIRE);
}

uint64_t qg_job_cap(const struct qg_grant_card *grant, const struct qg_pages *pages)
{
    uint64_t live = pages ? __atomic_load_n(&pages->gate->mem_cap, __ATOMIC_RELAXED) : UINT64_MAX;
    return live < grant->mem_cap ? live : grant->mem_cap;
}

void qg_job_publish(struct qg_pages *pages, uint64_t used, uint64_t pending)
{
    for (struct qg_pages *at = pages; at; at = at->before) {
        if (QG_UNLIKELY(at != pages && __atomic_load_n(&at->proc->pid, __ATOMIC_RELAXED) !=
                                           __atomic_load_n(&pages->proc->pid, __ATOMIC_RELAXED)))
            continue; /* no longer ours */
        /* Writes used before pending, see add_slot(). Sequentially consistent: our bytes must be
         * visible before we read those of others. */
        __atomic_store_n(&at->proc->mem_used, used, __ATOMIC_RELEASE);
        __atomic_store_n(&at->proc->mem_pending, pending, __ATOMIC_SEQ_CST);
    }
}

void qg_job_follow(struct qg_pages *pages, struct qg_pages *old)
{
    pages->followed_ns = qg_now_ns();
    while (old && old->gate_ino == pages->gate_ino && old->gate_dev == pages->gate_dev)
        old = old->before; /* the same arbiter, the same page: no process has to move */
    pages->before = old;
    if (old && pages->followed_ns - old->followed_ns > OLD_NS)
        old->before = NULL;
}
