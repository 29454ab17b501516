/* SPDX-License-Identifier: Apache-2.0
 *
 * Two processes of a job share one job page and each want more than half of the cap, over and over,
 * with the driver's part left out: whoever is admitted must be alone. Prints how often each was;
 * ends with 1 if both were.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hooks/memory/graph_nodes.h"
#include "memory/memory.h"
#include "memory/pools.h"
#include "base/message.h"

#define CAP  1000u
#define WANT 600u

struct qg_grant_info qg_info;
struct qg_card qg_cards[QG_MAX_CARDS];

void qg_message(const char *format, ...)
{
    (void)format;
}

/* No driver here, so no pools and no contexts. */
void *qg_real[QG_NSYMBOLS];
bool qg_governed;
__thread int qg_depth;
struct qg_card *qg_card_by_ordinal(CUdevice ordinal)
{
    (void)ordinal;
    return NULL;
}
const char *qg_link_for_memory(struct qg_card *card)
{
    (void)card;
    return NULL;
}

void qg_pools_after_fork(void)
{
}
void qg_graph_memory_after_fork(void)
{
}
bool qg_pools_trim(struct qg_card *card)
{
    (void)card;
    return false;
}

struct shared {
    struct qg_gate_page gate;
    uint32_t inside, broken;
    uint64_t admitted[2];
};

static void tenant(struct shared *shared, struct qg_job_page *job, uint32_t slot, uint64_t until)
{
    static struct qg_grant_card grant = {.mem_cap = CAP, .mem_total = CAP};
    struct qg_pages pages = {
        .gate = &shared->gate, .job = job, .proc = &job->procs[slot], .slot = slot};
    struct qg_card *card = &qg_cards[0];
    struct qg_entry entry;
    qg_info.mode = QG_MODE_GOVERNED;
    card->grant = &grant;
    qg_memory_adopt(card, &pages);
    while (qg_now_ns() < until && !__atomic_load_n(&shared->broken, __ATOMIC_RELAXED)) {
        if (!qg_reserve(card, WANT))
            continue;
        if (__atomic_add_fetch(&shared->inside, 1, __ATOMIC_SEQ_CST) != 1)
            __atomic_store_n(&shared->broken, 1, __ATOMIC_SEQ_CST);
        qg_charge(card, WANT, QG_KIND_POINTER, 1, 1, WANT);
        for (volatile int i = 0; i < 20; i++)
            ;
        __atomic_sub_fetch(&shared->inside, 1, __ATOMIC_SEQ_CST);
        if (qg_detach(QG_KIND_POINTER, 1, &entry))
            qg_commit(&entry);
        shared->admitted[slot]++;
    }
}

/* A context is destroyed, and before we are told, another thread's new context has its handle. */
static bool handle_is_used_again(void)
{
    static struct qg_grant_card grant = {.mem_cap = CAP, .mem_total = CAP};
    struct qg_card *card = &qg_cards[1];
    CUcontext context = (CUcontext)0x1000;
    qg_info.mode = QG_MODE_GOVERNED;
    card->grant = &grant;
    for (uint64_t key = 1; key <= 2; key++) {
        if (!qg_reserve(card, 100 * key))
            return false;
        qg_charge(card, 100 * key, QG_KIND_POINTER, key, 0x1000, 100 * key);
        if (key == 1)
            qg_memory_context_ends(context);
    }
    qg_memory_context_gone(context);
    bool good = qg_job_used(card) == 200;
    qg_memory_context_ends(context);
    qg_memory_context_stays(context);
    qg_memory_context_gone(context);
    return good && qg_job_used(card) == 200;
}

/* What was bound to an object is over with it, wherever in the table the entries of both lie. */
static bool bound_memory_ends(void)
{
    static struct qg_grant_card grant = {.mem_cap = CAP, .mem_total = CAP};
    const uint64_t object = 0x100000, count = 190;
    uint64_t handle = 1;
    struct qg_card *card = &qg_cards[2];
    qg_info.mode = QG_MODE_GOVERNED;
    card->grant = &grant;
    for (uint64_t round = 0; round < 50; round++) {
        qg_handle_multicast(object);
        for (uint64_t i = 0; i < count; i++) {
            handle = handle * 6364136223846793005u + 1442695040888963407u;
            qg_charge(card, 0, QG_KIND_HANDLE, handle, 0, 1);
            qg_handle_tie(handle, object, i << 21, 1 << 21);
            qg_handle_release(handle);
        }
        if (qg_job_used(card) != count)
            return false;
        qg_handle_release(object);
        if (qg_job_used(card))
            return false;
    }
    return true;
}

static void *shared_memory(size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        exit(2);
    return at;
}

int main(int argc, char **argv)
{
    if (!handle_is_used_again()) {
        puts("memory of a new context went with the old one of the same handle");
        return 3;
    }
    if (!bound_memory_ends()) {
        puts("memory that was bound to an object is charged after its end");
        return 4;
    }
    uint64_t until = qg_now_ns() + (uint64_t)(argc > 1 ? atoi(argv[1]) : 1000) * 1000000u;
    struct shared *shared = shared_memory(sizeof(*shared));
    struct qg_job_page *job = shared_memory(sizeof(*job));
    shared->gate.mem_cap = CAP;
    pid_t child = fork();
    tenant(shared, job, child == 0, until);
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    printf("%llu %llu\n", (unsigned long long)shared->admitted[0],
           (unsigned long long)shared->admitted[1]);
    return shared->broken ? 1 : 0;
}
