/* SPDX-License-Identifier: Apache-2.0
 *
 * The cap is the job's, so admission sums over the slots of all its processes: announce the bytes as pending, sum,
 * and go on only if everything used and pending fits. Two that announce at the same time may both see too much;
 * both withdraw and try again after unequal pauses. Before a process is registered it counts itself alone.
 */
#include "memory.h"

#include <string.h>

#include "jobsum.h"
#include "say.h"

#define RETRY_NS 1000000000u     /* someone else's announcement may stand this long (a slow driver call) */
#define DEAD_HOLDER_NS 20000000u /* so long the arbiter may take to notice that a process of the job died */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct qg_ledger ledger;
static bool said;

void qg_memory_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    /* Not given back: another thread of the parent may have been in the middle of growing it. */
    memset(&ledger, 0, sizeof(ledger));
    said = false;
}

uint64_t qg_cap(struct qg_card *card)
{
    struct qg_pages *pages = qg_pages_of(card);
    uint64_t cap = card->grant->mem_cap;
    if (pages) {
        uint64_t live = __atomic_load_n(&pages->gate->mem_cap, __ATOMIC_RELAXED);
        if (live < cap)
            cap = live;
    }
    return cap;
}

static void job_sums(struct qg_card *card, struct qg_pages *pages, uint64_t *used, uint64_t *pending)
{
    if (pages) {
        qg_job_sums(pages, used, pending);
    } else {
        *used = card->used;
        *pending = card->pending;
    }
}

uint64_t qg_job_used(struct qg_card *card)
{
    uint64_t used, pending;
    pthread_mutex_lock(&lock);
    job_sums(card, qg_pages_of(card), &used, &pending);
    pthread_mutex_unlock(&lock);
    return used;
}

uint64_t qg_memory_used(struct qg_card *card)
{
    return __atomic_load_n(&card->used, __ATOMIC_RELAXED);
}

/* Copies the card's own numbers into its slot. Under the lock, so that a page swap cannot lose a change. */
static void publish(struct qg_card *card)
{
    struct qg_pages *pages = qg_pages_of(card);
    if (card->used > card->peak)
        card->peak = card->used;
    if (!pages)
        return;
    __atomic_store_n(&pages->proc->mem_peak, card->peak, __ATOMIC_RELAXED);
    __atomic_store_n(&pages->proc->mem_denied, card->denied, __ATOMIC_RELAXED);
    qg_job_publish(pages, card->used, card->pending);
}

void qg_memory_adopt(struct qg_card *card, struct qg_pages *pages)
{
    pthread_mutex_lock(&lock);
    uint32_t high = __atomic_load_n(QG_JOB_SLOTS_USED(pages->job), __ATOMIC_ACQUIRE);
    while (high < pages->slot + 1 &&
           !__atomic_compare_exchange_n(QG_JOB_SLOTS_USED(pages->job), &high, pages->slot + 1, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_ACQUIRE))
        ;
    qg_job_follow(pages, qg_pages_of(card));
    __atomic_store_n(&card->pages, pages, __ATOMIC_RELEASE);
    publish(card);
    pthread_mutex_unlock(&lock);
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

static void say_denied(struct qg_card *card, uint64_t size, uint64_t used, uint64_t cap)
{
    if (__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        return;
    if (qg_info.mode != QG_MODE_GOVERNED) {
        qg_say("no device memory: %s. Start the program with srun or sbatch inside the job.", qg_info.problem);
        return;
    }
    unsigned long long job = qg_info.grant.job_id;
    struct amount want = human(size), held = human(used), all = human(cap);
    if (!card) {
        qg_say("allocation of %.1f %s refused: this card is not part of job %llu. Use the cards in "
               "CUDA_VISIBLE_DEVICES as Slurm set it.", want.value, want.unit, job);
        return;
    }
    /* Too much even for the sum is possible (size comes from the program); then suggest nothing absurd. */
    uint64_t total, gib = 1u << 30, mib = 1u << 20;
    if (__builtin_add_overflow(used, size, &total) || total > card->grant->mem_total)
        total = card->grant->mem_total;
    bool whole = cap >= gib;
    unsigned long long ask = whole ? (total + gib - 1) / gib : (total + mib - 1) / mib;
    if (cap >= gib && held.unit[0] != 'G')
        held = (struct amount){(double)used / (double)gib, "GiB"};
    qg_say("allocation of %.1f %s refused: job %llu holds %.1f%s%s of %.1f %s on this card. Ask for more with "
           "qgpu_mem (for example --gres=qgpu:%u,qgpu_mem:%llu%c) or use less.",
           want.value, want.unit, job, held.value, strcmp(held.unit, all.unit) ? " " : "",
           strcmp(held.unit, all.unit) ? held.unit : "", all.value, all.unit, card->grant->share, ask,
           whole ? 'G' : 'M');
}

enum verdict { ADMITTED, REFUSED, CROWDED };

/* One attempt: announce, sum, decide; the announcement stays only when admitted. */
static enum verdict attempt(struct qg_card *card, uint64_t size, uint64_t *used, bool *others)
{
    uint64_t pending, cap = qg_cap(card);
    pthread_mutex_lock(&lock);
    uint64_t own = card->used;
    bool fits = !__builtin_add_overflow(card->pending, size, &card->pending);
    if (fits) {
        publish(card);
        job_sums(card, qg_pages_of(card), used, &pending);
        uint64_t sum;
        if (!__builtin_add_overflow(*used, pending, &sum) && sum <= cap) {
            pthread_mutex_unlock(&lock);
            return ADMITTED;
        }
    } else {
        job_sums(card, qg_pages_of(card), used, &pending);
    }
    card->pending -= size;
    publish(card);
    pthread_mutex_unlock(&lock);
    *others = *used > own;
    uint64_t sum;
    return !fits || __builtin_add_overflow(*used, size, &sum) || sum > cap ? REFUSED : CROWDED;
}

static void pause_ns(uint64_t ns)
{
    struct timespec wait = {0, (long)ns};
    nanosleep(&wait, NULL);
}

/* Another process of the job may just have died with its bytes still in the books, or may be about to free. */
static bool wait_and_try(struct qg_card *card, uint64_t size, uint64_t *used, enum verdict verdict, bool others)
{
    uint64_t start = qg_now_ns(), pause = 20000 + (start & 0x3fff);
    for (;;) {
        uint64_t limit = verdict == CROWDED ? RETRY_NS : others ? DEAD_HOLDER_NS : 0;
        if (size > qg_cap(card) || qg_now_ns() - start >= limit)
            return false;
        pause_ns(pause);
        pause = pause < 1000000 ? pause * 2 : pause;
        verdict = attempt(card, size, used, &others);
        if (verdict == ADMITTED)
            return true;
    }
}

bool qg_reserve(struct qg_card *card, uint64_t size)
{
    uint64_t used = 0;
    if (card) {
        bool others = false;
        enum verdict verdict = attempt(card, size, &used, &others);
        if (QG_LIKELY(verdict == ADMITTED) || wait_and_try(card, size, &used, verdict, others))
            return true;
        pthread_mutex_lock(&lock);
        card->denied++;
        publish(card);
        pthread_mutex_unlock(&lock);
    }
    say_denied(card, size, used, card ? qg_cap(card) : 0);
    return false;
}

void qg_unreserve(struct qg_card *card, uint64_t size)
{
    pthread_mutex_lock(&lock);
    card->pending -= size;
    publish(card);
    pthread_mutex_unlock(&lock);
}

void qg_charge(struct qg_card *card, uint64_t reserved, enum qg_kind kind, uint64_t key, uint64_t owner,
               uint64_t size)
{
    struct qg_entry entry = {.key = key, .size = size, .owner = owner, .refs = 1, .kind = (uint8_t)kind};
    entry.card = (uint8_t)(card - qg_cards);
    pthread_mutex_lock(&lock);
    struct qg_entry stale; /* an entry with this key was freed in a way that we do not see */
    if (qg_ledger_remove(&ledger, kind, key, &stale))
        qg_cards[stale.card].used -= stale.size;
    card->pending -= reserved;
    card->used += size;
    publish(card);
    /* Without host memory for the entry the bytes stay charged for good: refusing later is right, leaking is not. */
    qg_ledger_insert(&ledger, &entry);
    pthread_mutex_unlock(&lock);
}

bool qg_take(enum qg_kind kind, uint64_t key, struct qg_entry *out)
{
    pthread_mutex_lock(&lock);
    bool found = qg_ledger_remove(&ledger, kind, key, out);
    pthread_mutex_unlock(&lock);
    return found;
}

static void give_back(uint8_t index, uint64_t size)
{
    struct qg_card *card = &qg_cards[index];
    card->used -= size < card->used ? size : card->used;
    publish(card);
}

void qg_settle(const struct qg_entry *entry)
{
    pthread_mutex_lock(&lock);
    give_back(entry->card, entry->size);
    pthread_mutex_unlock(&lock);
}

void qg_restore(const struct qg_entry *entry)
{
    pthread_mutex_lock(&lock);
    if (!qg_ledger_find(&ledger, entry->kind, entry->key))
        qg_ledger_insert(&ledger, entry);
    pthread_mutex_unlock(&lock);
}

/* Under the lock: the memory behind a handle lives until the last reference and the last mapping are gone. */
static void handle_maybe_gone(struct qg_entry *entry)
{
    struct qg_entry gone;
    if (entry->refs || entry->maps)
        return;
    qg_ledger_remove(&ledger, QG_KIND_HANDLE, entry->key, &gone);
    give_back(gone.card, gone.size);
}

void qg_handle_retain(uint64_t handle)
{
    pthread_mutex_lock(&lock);
    struct qg_entry *entry = qg_ledger_find(&ledger, QG_KIND_HANDLE, handle);
    if (entry)
        entry->refs++;
    pthread_mutex_unlock(&lock);
}

void qg_handle_release(uint64_t handle)
{
    pthread_mutex_lock(&lock);
    struct qg_entry *entry = qg_ledger_find(&ledger, QG_KIND_HANDLE, handle);
    if (entry && entry->refs) {
        entry->refs--;
        handle_maybe_gone(entry);
    }
    pthread_mutex_unlock(&lock);
}

bool qg_handle_last(uint64_t handle, struct qg_entry *out)
{
    pthread_mutex_lock(&lock);
    struct qg_entry *entry = qg_ledger_find(&ledger, QG_KIND_HANDLE, handle);
    bool last = entry && entry->refs == 1 && !entry->maps && qg_ledger_remove(&ledger, QG_KIND_HANDLE, handle, out);
    pthread_mutex_unlock(&lock);
    return last;
}

void qg_handle_map(uint64_t handle, uint64_t address, uint64_t size)
{
    struct qg_entry mapping = {.key = address, .size = size, .owner = handle, .kind = QG_KIND_MAPPING};
    pthread_mutex_lock(&lock);
    struct qg_entry *entry = qg_ledger_find(&ledger, QG_KIND_HANDLE, handle);
    if (entry && !qg_ledger_find(&ledger, QG_KIND_MAPPING, address)) {
        entry->maps++;
        qg_ledger_insert(&ledger, &mapping);
    }
    pthread_mutex_unlock(&lock);
}

void qg_handle_unmap(uint64_t address, uint64_t size)
{
    struct qg_entry mapping;
    pthread_mutex_lock(&lock);
    for (uint64_t at = address; at - address < size; at += mapping.size) {
        if (!qg_ledger_remove(&ledger, QG_KIND_MAPPING, at, &mapping) || !mapping.size)
            break;
        struct qg_entry *entry = qg_ledger_find(&ledger, QG_KIND_HANDLE, mapping.owner);
        if (entry && entry->maps) {
            entry->maps--;
            handle_maybe_gone(entry);
        }
    }
    pthread_mutex_unlock(&lock);
}

/* What no live context is called: handles are aligned addresses. */
static uint64_t ending(CUcontext context)
{
    return (uint64_t)(uintptr_t)context | 1;
}

static void change_owner(uint64_t from, uint64_t to)
{
    pthread_mutex_lock(&lock);
    qg_ledger_change_owner(&ledger, from, to);
    pthread_mutex_unlock(&lock);
}

void qg_memory_context_ends(CUcontext context)
{
    change_owner((uint64_t)(uintptr_t)context, ending(context));
}

void qg_memory_context_stays(CUcontext context)
{
    change_owner(ending(context), (uint64_t)(uintptr_t)context);
}

void qg_memory_context_gone(CUcontext context)
{
    uint64_t freed[256] = {0};
    pthread_mutex_lock(&lock);
    qg_ledger_drop_owner(&ledger, ending(context), freed);
    for (int i = 0; i < (int)QG_MAX_CARDS; i++)
        if (freed[i])
            give_back((uint8_t)i, freed[i]);
    pthread_mutex_unlock(&lock);
}
