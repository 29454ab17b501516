/* SPDX-License-Identifier: Apache-2.0
 *
 * The pure parts of the shim under AddressSanitizer and UBSan: the ledger against a plain array,
 * the estimates, and blocked signals.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/estimate.h"
#include "base/allocation_hash.h"
#include "base/thread.h"

#define KEYS  3000
#define STEPS 200000

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Random inserts and removes; after each the table must agree with the array about that key. */
static void ledger_agrees(void)
{
    static uint64_t sizes[2][KEYS]; /* 0: absent */
    struct qg_allocations ledger = {0};
    struct qg_entry out;
    uint64_t seed = 42;
    size_t live = 0;
    for (int step = 0; step < STEPS; step++) {
        uint64_t random = next(&seed), key = (random % KEYS) << 9;
        int kind = (int)(random >> 60) % 2;
        uint64_t *size = &sizes[kind][key >> 9];
        struct qg_entry entry = {
            .key = key, .size = 1 + (random >> 20) % 1000, .kind = (uint8_t)(kind + 1)};
        if (!*size) {
            CHECK(qg_allocations_insert(&ledger, &entry));
            *size = entry.size;
            live++;
        } else {
            CHECK(qg_allocations_remove(&ledger, kind + 1, key, &out) && out.size == *size);
            *size = 0;
            live--;
        }
        struct qg_entry *found = qg_allocations_find(&ledger, kind + 1, key);
        CHECK(*size ? found && found->size == *size : !found);
        CHECK(ledger.used == live);
    }
    for (int kind = 0; kind < 2; kind++)
        for (uint64_t at = 0; at < KEYS; at++) {
            struct qg_entry *found = qg_allocations_find(&ledger, kind + 1, at << 9);
            CHECK(sizes[kind][at] ? found && found->size == sizes[kind][at] : !found);
        }
    qg_allocations_clear(&ledger);
    CHECK(!qg_allocations_find(&ledger, QG_KIND_POINTER, 0));
}

static void owner_takes_all(void)
{
    struct qg_allocations ledger = {0};
    uint64_t freed[256] = {0};
    for (uint64_t i = 0; i < 1000; i++) {
        struct qg_entry entry = {
            .key = i * 512, .size = 10, .owner = i % 3, .kind = QG_KIND_POINTER, .card = i % 2};
        CHECK(qg_allocations_insert(&ledger, &entry));
    }
    struct qg_entry entry;
    size_t from = 0;
    while (qg_allocations_next_of(&ledger, 1, &from, &entry))
        freed[entry.card] += entry.size;
    CHECK(freed[0] + freed[1] == 3330 && ledger.used == 667);
    for (uint64_t i = 0; i < 1000; i++)
        CHECK(!qg_allocations_find(&ledger, QG_KIND_POINTER, i * 512) == (i % 3 == 1));
    qg_allocations_clear(&ledger);
}

static struct qg_functions functions;

static struct qg_function *fresh(const void *key)
{
    memset(&functions, 0, sizeof(functions));
    return qg_function_of(&functions, key);
}

static void estimates_learn(void)
{
    const void *f = (const void *)0x1000;
    struct qg_function *record = fresh(f);
    CHECK(qg_function_estimate(record, 500000) == 500000 && !record->least_ns);
    qg_function_learn(&functions, f, 80000, 0, false);
    CHECK(qg_function_estimate(record, 500000) == 80000 && record->least_ns == 80000);
    qg_function_learn(&functions, f, 160000, 0, false); /* longer counts at once */
    CHECK(qg_function_estimate(record, 500000) == 160000 && record->least_ns == 80000);
    for (unsigned i = 0; i < QG_RECENT - 1; i++) { /* a long one is remembered for a while */
        CHECK(qg_function_estimate(record, 500000) == 160000);
        qg_function_learn(&functions, f, 90000, 0, false);
    }
    qg_function_learn(&functions, f, 90000, 0, false);
    CHECK(qg_function_estimate(record, 500000) == 90000 && record->least_ns == 90000);
    /* it ended soon after a bypass: it may have waited for that launch, and is no longer */
    qg_function_learn(&functions, f, 4000000, 0, true);
    CHECK(qg_function_estimate(record, 500000) == 90000);
    qg_function_learn(&functions, f, 4000000, 0, false); /* it went on: it takes so long itself */
    CHECK(qg_function_estimate(record, 500000) == 4000000);
    qg_function_forget(&functions, f);
    CHECK(qg_function_estimate(record, 500000) == 500000 && !record->least_ns);
    qg_function_learn(&functions, f, 4000000, 0, true); /* better than to know nothing */
    CHECK(qg_function_estimate(record, 500000) == 4000000);
    /* unknown: ignored, not invented */
    qg_function_learn(&functions, (const void *)0x2000, 1, 0, false);
    for (uintptr_t i = 1; i < 20000; i++) { /* more functions than slots */
        record = qg_function_of(&functions, (const void *)(i << 4));
        CHECK(record->key == (const void *)(i << 4));
    }
}

static void some_launches_are_sampled(void)
{
    const void *f = (const void *)0x1000;
    struct qg_function *record = fresh(f);
    for (unsigned i = 0; i < QG_LEARN_EACH; i++) { /* all, until enough were learned from */
        CHECK(qg_function_launched(record));
        CHECK(qg_function_launched(record));
        qg_function_learn(&functions, f, 1000, 0, false);
    }
    unsigned sampled = 0;
    for (int i = 0; i < 1000 * (int)QG_LEARN_EACH; i++)
        sampled += qg_function_launched(record);
    CHECK(sampled == 1000);
}

/* A launch call stays in the driver: how much of the sample was the work's is not known. */
static void stalled_launches_teach_nothing(void)
{
    const void *f = (const void *)0x1000;
    struct qg_function *record = fresh(f);
    qg_function_learn(&functions, f, 50200000, 50000000, false);
    CHECK(qg_function_estimate(record, 275000) == 275000); /* unknown as before */
    qg_function_learn(&functions, f, 200000, 4000, false);
    CHECK(qg_function_estimate(record, 275000) == 198000); /* half of the call */
    qg_function_learn(&functions, f, 50280000, 50000000, false);
    CHECK(qg_function_estimate(record, 275000) == 198000);
    qg_function_learn(&functions, f, 10000, 8000, false); /* short ones always are mostly call */
    CHECK(record->least_ns == 6000);
    qg_function_learn(&functions, f, 10000000, 2000000, false); /* so are graphs, not mostly */
    CHECK(qg_function_estimate(record, 275000) == 9000000);
}

static int blocked, cancelled, survived;

/* Cancelled while signals are blocked: it dies only when they are restored. */
static void *block_and_wait(void *unused)
{
    uint64_t before;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    qg_signals_block(&before);
    __atomic_store_n(&blocked, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&cancelled, __ATOMIC_SEQ_CST))
        ;
    __atomic_store_n(&survived, 1, __ATOMIC_SEQ_CST);
    qg_signals_restore(&before);
    for (;;)
        pthread_testcancel();
    return unused;
}

static void cancellation_waits_for_the_end_of_a_block(void)
{
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, block_and_wait, NULL) == 0);
    while (!__atomic_load_n(&blocked, __ATOMIC_SEQ_CST))
        ;
    CHECK(pthread_cancel(thread) == 0);
    __atomic_store_n(&cancelled, 1, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && survived);
}

int main(void)
{
    ledger_agrees();
    owner_takes_all();
    estimates_learn();
    some_launches_are_sampled();
    stalled_launches_teach_nothing();
    cancellation_waits_for_the_end_of_a_block();
    puts("ok");
    return 0;
}
