/* SPDX-License-Identifier: Apache-2.0
 *
 * The cap is the job's, so admission sums the slots of all its processes. It publishes the bytes as
 * pending, sums, and goes on only if all used and pending bytes fit. Two processes that publish at
 * once may both exceed the cap. Both then withdraw and try again after unequal pauses. An
 * unregistered process gets no memory.
 */
#include "memory/memory.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "memory/allocation_table.h"
#include "memory/contexts.h"
#include "process/job_sum.h"
#include "memory/pools.h"
#include "base/message.h"
#include "memory/ipc.h"
#include "link/link.h"

/* ns for which an allocation waits for another process's pending one, which is a slow driver call.
 * Chosen, not measured. */
#define RETRY_NS 1000000000u
/* ns that the arbiter may take to observe that a process of the job died. Chosen, not measured: it
 * waits on a pidfd. */
#define DEAD_UNNOTICED_NS 20000000u
/* ns for which memory of a dead process may stay on the card. Chosen, not measured. */
#define DEAD_FREED_NS 100000000u
#define GIB           (UINT64_C(1) << 30)
#define MIB           (UINT64_C(1) << 20)

pthread_mutex_t qg_allocation_lock = PTHREAD_MUTEX_INITIALIZER;
static bool reported, reported_unregistered;

void qg_memory_after_fork(void)
{
    pthread_mutex_init(&qg_allocation_lock, NULL);
    qg_allocations_after_fork();
    qg_pools_after_fork();
    qg_shares_after_fork();
    qg_contexts_after_fork();
    reported = reported_unregistered = false;
}

uint64_t qg_cap(struct qg_card *card)
{
    return qg_job_cap(card->grant, qg_pages_of(card));
}

/* The extra is read last: bytes of a dying process move from its slot into it. */
static void job_sums(struct qg_card *card, struct qg_pages *pages, uint64_t *used,
                     uint64_t *pending)
{
    if (pages) {
        qg_job_sums(pages, used, pending);
        if (__builtin_add_overflow(*used, qg_job_extra(pages), used))
            *used = UINT64_MAX;
    } else {
        *used = card->used;
        *pending = card->pending;
    }
}

uint64_t qg_job_used(struct qg_card *card)
{
    uint64_t used, pending;
    pthread_mutex_lock(&qg_allocation_lock);
    job_sums(card, qg_pages_of(card), &used, &pending);
    pthread_mutex_unlock(&qg_allocation_lock);
    return used;
}

uint64_t qg_memory_used(struct qg_card *card)
{
    pthread_mutex_lock(&qg_allocation_lock);
    uint64_t used = card->used;
    pthread_mutex_unlock(&qg_allocation_lock);
    return used;
}

void qg_publish(struct qg_card *card)
{
    struct qg_pages *pages = qg_pages_of(card);
    if (card->used > card->peak)
        card->peak = card->used;
    if (!pages)
        return;
    __atomic_store_n(&pages->proc->mem_peak, card->peak, __ATOMIC_RELAXED);
    /* Only what the pages do not have: new ones, of an arbiter that began anew or of another card,
     * begin at 0, and the ledger adds their count to that of the former ones. */
    uint64_t denied = __atomic_load_n(&pages->proc->mem_denied, __ATOMIC_RELAXED) + card->denied;
    __atomic_store_n(&pages->proc->mem_denied, denied, __ATOMIC_RELAXED);
    card->denied = 0;
    __atomic_store_n(&pages->proc->mem_refused, card->refused, __ATOMIC_RELAXED);
    __atomic_store_n(&pages->proc->mem_contexts, card->context_bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&pages->proc->made, card->contexts, __ATOMIC_RELAXED);
    qg_job_publish(pages, card->used, card->pending);
}

void qg_memory_adopt(struct qg_card *card, struct qg_pages *pages)
{
    pthread_mutex_lock(&qg_allocation_lock);
    uint32_t high = __atomic_load_n(QG_JOB_SLOTS_USED(pages->job), __ATOMIC_ACQUIRE);
    while (high < pages->slot + 1 &&
           !__atomic_compare_exchange_n(QG_JOB_SLOTS_USED(pages->job), &high, pages->slot + 1,
                                        false, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE))
        ;
    struct qg_pages *old = qg_pages_of(card);
    bool same = old && old->gate_dev == pages->gate_dev && old->gate_ino == pages->gate_ino &&
                old->slot == pages->slot;
    qg_job_follow(pages, old);
    __atomic_store_n(&card->pages, pages, __ATOMIC_RELEASE);
    qg_publish(card);
    qg_shares_adopt(card, !same);
    pthread_mutex_unlock(&qg_allocation_lock);
}

struct amount {
    double value;
    const char *unit;
};

static struct amount human(uint64_t bytes)
{
    const double gib = 1024.0 * 1024 * 1024, mib = 1024.0 * 1024;
    if ((double)bytes >= gib)
        return (struct amount){(double)bytes / gib, "GiB"};
    if ((double)bytes >= mib)
        return (struct amount){(double)bytes / mib, "MiB"};
    return (struct amount){(double)bytes / 1024, "KiB"};
}

/* Before it is registered a process does not know the other processes of its job, so it waits for
 * that. If the arbiter refuses or does not answer, it gets no memory. Otherwise each process would
 * get the whole cap. */
static bool may_hold(struct qg_card *card)
{
    return QG_LIKELY(qg_pages_of(card) != NULL) || !qg_link_for_memory(card);
}

/* What would have sufficed, with the reserve of cli/report/request.py: `qgpu report` says the same
 * of this allocation. The size comes from the program, so the sum may overflow. */
static void advise(char *how, size_t room, const struct qg_card *card, uint64_t used, uint64_t size)
{
    uint64_t total, ask, usable = qg_info.grant.usable * MIB;
    bool run = qg_info.grant.job_id >= QG_JOB_WITHOUT_SLURM;
    if (!usable)
        usable = card->grant->mem_total;
    if (__builtin_add_overflow(used, size, &total) || total > UINT64_MAX / 2)
        total = UINT64_MAX / 2;
    if (total > usable) {
        if (!run && total + GIB <= card->grant->mem_total)
            snprintf(how, room, "Ask for a whole card with --gres=gpu:1 or use less.");
        else
            snprintf(how, room, "Use less: shares have %.1f GiB of this card.",
                     (double)usable / (double)GIB);
        return;
    }
    ask = total + (total / 8 > 256 * MIB ? total / 8 : 256 * MIB);
    ask = (ask + GIB - 1) / GIB * GIB;
    ask = ask < usable ? ask : usable;
    bool whole = ask % GIB == 0;
    unsigned long long count = ask / (whole ? GIB : MIB);
    if (run)
        snprintf(how, room, "Ask for more with qgpu run --mem %llu%c or use less.", count,
                 whole ? 'G' : 'M');
    else
        snprintf(how, room,
                 "Ask for more with vram (for example --gres=qgpu:%u,vram:%llu%c) or use less.",
                 card->grant->share, count, whole ? 'G' : 'M');
}

static void report_denied(struct qg_card *card, uint64_t size, const char *what, uint64_t used,
                          uint64_t cap)
{
    if (qg_info.mode != QG_MODE_GOVERNED)
        return; /* cuInit said it */
    const char *why = !card || qg_pages_of(card) ? NULL : qg_link_for_memory(card);
    if (__atomic_exchange_n(why ? &reported_unregistered : &reported, true, __ATOMIC_RELAXED))
        return;
    unsigned long long job = qg_info.grant.job_id;
    struct amount want = human(size), held = human(used), all = human(cap);
    if (!card) {
        qg_message("%s of %.1f %s refused: this card is not part of job %llu. Use the cards in "
                   "CUDA_VISIBLE_DEVICES as it was when the program started.",
                   what, want.value, want.unit, job);
        return;
    }
    if (why) {
        qg_message("no device memory: the arbiter of this node did not register process %d of job "
                   "%llu: %s.",
                   (int)getpid(), job, why);
        return;
    }
    if (cap >= GIB && held.unit[0] != 'G')
        held = (struct amount){(double)used / (double)GIB, "GiB"};
    char how[128];
    advise(how, sizeof(how), card, used, size);
    qg_message("%s of %.1f %s refused: job %llu holds %.1f%s%s of %.1f %s on this card. %s", what,
               want.value, want.unit, job, held.value, strcmp(held.unit, all.unit) ? " " : "",
               strcmp(held.unit, all.unit) ? held.unit : "", all.value, all.unit, how);
}

enum verdict { ADMITTED, REFUSED, CROWDED };

/* What the last attempt saw. */
struct seen {
    uint64_t used;  /* by the job */
    uint64_t extra; /* bytes of that which no slot reports */
    bool others;    /* other processes hold some of it */
};

/* One attempt: publish as pending, sum, decide. The pending bytes stay only when admitted. */
static enum verdict attempt(struct qg_card *card, uint64_t size, struct seen *seen)
{
    uint64_t pending, sum, cap = qg_cap(card);
    pthread_mutex_lock(&qg_allocation_lock);
    uint64_t own = card->used;
    struct qg_pages *pages = qg_pages_of(card);
    bool fits = size <= cap; /* otherwise the other processes need not see it */
    if (fits) {
        card->pending += size;
        qg_publish(card);
        job_sums(card, pages, &seen->used, &pending);
        if (!__builtin_add_overflow(seen->used, pending, &sum) && sum <= cap) {
            /* The arbiter samples the sum only now and then, and this is what a smaller cap would
             * have refused. The next publication has it. */
            if (sum > card->peak)
                card->peak = sum;
            pthread_mutex_unlock(&qg_allocation_lock);
            return ADMITTED;
        }
        card->pending -= size;
        qg_publish(card);
    } else {
        job_sums(card, pages, &seen->used, &pending);
    }
    seen->extra = pages ? qg_job_extra(pages) : 0;
    pthread_mutex_unlock(&qg_allocation_lock);
    seen->others = seen->used > own;
    return !fits || __builtin_add_overflow(seen->used, size, &sum) || sum > cap ? REFUSED : CROWDED;
}

static void pause_ns(uint64_t ns)
{
    struct timespec wait = {0, (long)ns};
    nanosleep(&wait, NULL);
}

/* ns for which a refused allocation is tried again. Another process may be allocating. Or one died,
 * and its bytes are still charged, or on the card until the driver has freed them. */
static uint64_t retry_ns(enum verdict verdict, const struct seen *seen, uint64_t size, uint64_t cap)
{
    if (size > cap)
        return 0;
    if (verdict == CROWDED)
        return RETRY_NS;
    if (seen->extra && seen->used - seen->extra <= cap - size)
        return DEAD_FREED_NS;
    return seen->others ? DEAD_UNNOTICED_NS : 0;
}

static bool wait_and_try(struct qg_card *card, uint64_t size, struct seen *seen,
                         enum verdict verdict)
{
    uint64_t start = qg_now_ns(), pause = 20000 + (start & 0x3fff);
    while (qg_now_ns() - start < retry_ns(verdict, seen, size, qg_cap(card))) {
        pause_ns(pause);
        pause = pause < 1000000 ? pause * 2 : pause;
        qg_shares_tick(card);
        verdict = attempt(card, size, seen);
        if (verdict == ADMITTED)
            return true;
    }
    return false;
}

bool qg_reserve_now(struct qg_card *card, uint64_t size)
{
    struct seen seen = {0};
    return card && may_hold(card) && attempt(card, size, &seen) == ADMITTED;
}

/* Without pages it was refused because no arbiter registered the process: no cap was too small. */
static void note_refused(struct qg_card *card, uint64_t size, uint64_t used, uint64_t pending)
{
    uint64_t total;
    if (__builtin_add_overflow(used, pending, &total) ||
        __builtin_add_overflow(total, size, &total))
        total = UINT64_MAX;
    if (qg_pages_of(card) && total > card->refused)
        card->refused = total;
    card->denied++;
    qg_publish(card);
}

void qg_refuse_for(struct qg_card *card, uint64_t size, const char *what)
{
    uint64_t used = 0, pending;
    if (card) {
        pthread_mutex_lock(&qg_allocation_lock);
        job_sums(card, qg_pages_of(card), &used, &pending);
        note_refused(card, size, used, pending);
        pthread_mutex_unlock(&qg_allocation_lock);
    }
    report_denied(card, size, what, used, card ? qg_cap(card) : 0);
}

void qg_refuse(struct qg_card *card, uint64_t size)
{
    qg_refuse_for(card, size, "allocation");
}

bool qg_reserve_for(struct qg_card *card, uint64_t size, const char *what)
{
    struct seen seen = {0};
    if (card && may_hold(card)) {
        enum verdict verdict = attempt(card, size, &seen);
        if (QG_LIKELY(verdict == ADMITTED))
            return true;
        if (qg_contexts_settle(card) && qg_reserve_now(card, size))
            return true;
        /* the helper thread may not have polled yet */
        if (qg_shares_tick(card) && qg_reserve_now(card, size))
            return true;
        /* As the driver does on a full card: first trim unused memory of our own pools. */
        if (size <= qg_cap(card) && qg_pools_trim(card) && qg_reserve_now(card, size))
            return true;
        if (wait_and_try(card, size, &seen, verdict))
            return true;
    }
    qg_refuse_for(card, size, what);
    return false;
}

bool qg_reserve(struct qg_card *card, uint64_t size)
{
    return qg_reserve_for(card, size, "allocation");
}

void qg_unreserve(struct qg_card *card, uint64_t size)
{
    pthread_mutex_lock(&qg_allocation_lock);
    card->pending -= size;
    qg_publish(card);
    pthread_mutex_unlock(&qg_allocation_lock);
}
