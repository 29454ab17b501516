/* SPDX-License-Identifier: Apache-2.0
 *
 * The pure parts of the shim under AddressSanitizer and UBSan: the ledger against a plain array,
 * the estimates, and when work began.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/start_inference.h"
#include "base/estimate.h"
#include "base/allocation_hash.h"

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

static void estimates_learn(void)
{
    static struct qg_functions functions;
    const void *f = (const void *)0x1000;
    struct qg_function *record = qg_function_of(&functions, f);
    CHECK(qg_function_estimate(record, 500000) == 500000);
    qg_function_learn(&functions, f, 80000, 0, 0, true);
    CHECK(qg_function_estimate(record, 500000) == 80000);
    qg_function_learn(&functions, f, 160000, 0, 0, true); /* longer counts at once */
    CHECK(qg_function_estimate(record, 500000) == 160000);
    qg_function_learn(&functions, f, 80000, 0, 0, true); /* shorter by an eighth */
    CHECK(qg_function_estimate(record, 500000) == 150000);
    /* the card may have waited 800 us for the launch: not longer */
    qg_function_learn(&functions, f, 900000, 800000, 0, true);
    CHECK(qg_function_estimate(record, 500000) == 150000);
    qg_function_learn(&functions, f, 900000, 100000, 0, true); /* at least 800 us long, surely */
    CHECK(qg_function_estimate(record, 500000) == 800000);
    qg_function_learn(&functions, f, 80000, 70000, 0, true);
    CHECK(qg_function_estimate(record, 500000) == 710000);
    unsigned sampled = 0;
    for (int i = 0; i < 1000; i++)
        sampled += qg_function_launched(record);
    /* of a long one, each fourth */
    CHECK(sampled >= 16 + 1000 / 4 - 5 && sampled <= 16 + 1000 / 4);
    CHECK(qg_function_least(record) == 80000);
    /* what it takes at least rises by a sixteenth */
    qg_function_learn(&functions, f, 160000, 0, 0, true);
    CHECK(qg_function_least(record) == 85000);
    CHECK(qg_function_new(record));
    for (int i = 0; i < 100; i++)
        qg_function_learn(&functions, f, 100000, 0, 0, true);
    CHECK(!qg_function_new(record) && qg_function_least(record) > 99000 &&
          qg_function_estimate(record, 1) < 260000);
    for (int i = sampled = 0; i < 960; i++)
        sampled += qg_function_launched(record);
    CHECK(sampled == (qg_function_estimate(record, 1) >= QG_LONG_NS ? 240u : 30u));
    /* others may have had the card: now and then that says nothing */
    for (unsigned i = 0; i < 2 * QG_DOUBTS; i++) {
        qg_function_learn(&functions, f, 1000000 + 1000 * i, 0, 1900000, false);
        for (unsigned j = 0; j < QG_DOUBT; j++)
            qg_function_learn(&functions, f, 100000, 0, 0, true);
    }
    CHECK(qg_function_estimate(record, 1) < 260000);
    for (unsigned i = 0; i < QG_DOUBTS; i++) /* but again and again it is believed */
        qg_function_learn(&functions, f, 1500000 - 1000 * i, 0, 1900000, false);
    CHECK(qg_function_estimate(record, 1) == 1500000 - 1000 * (QG_DOUBTS - 1));
    qg_function_learn(&functions, f, 1000000, 0, 0, true);
    for (unsigned i = 0; i < QG_OUTLIER - 1; i++)
        qg_function_learn(&functions, f, 100000, 0, 0, true);
    /* a long one now and then is not forgotten at once */
    CHECK(qg_function_estimate(record, 1) > 400000);
    for (unsigned i = 0; i < QG_OUTLIER; i++)
        qg_function_learn(&functions, f, 100000, 0, 0, true);
    CHECK(qg_function_estimate(record, 1) < 150000); /* no second one came: it was disturbed */
    /* unknown: ignored, not invented */
    qg_function_learn(&functions, (const void *)0x2000, 1, 0, 0, true);
    for (uintptr_t i = 1; i < 20000; i++) { /* more functions than slots */
        record = qg_function_of(&functions, (const void *)(i << 4));
        CHECK(record->key == (const void *)(i << 4));
    }
}

/* A launch call that stays in the driver for 50 ms: nobody knows how much of that was the work's.
 */
static void stalled_launches_teach_nothing(void)
{
    static struct qg_functions functions;
    const void *f = (const void *)0x1000;
    struct qg_function *record = qg_function_of(&functions, f);
    qg_function_learn(&functions, f, 50200000, 50000000, 0, true);
    CHECK(qg_function_estimate(record, 275000) == 275000); /* unknown as before */
    qg_function_learn(&functions, f, 200000, 3000, 0, true);
    for (int i = 0; i < 1000; i++) {
        qg_function_learn(&functions, f, 50280000, 50000000, 0, true);
        qg_function_learn(&functions, f, 200000, 3000, 0, true);
    }
    CHECK(qg_function_estimate(record, 275000) == 200000 && qg_function_least(record) == 200000);
    for (unsigned i = 0; i < QG_VAGUES; i++)
        qg_function_learn(&functions, f, 50280000, 50000000, 0, true);
    CHECK(qg_function_estimate(record, 275000) == 200000 &&
          qg_function_call_ns(record) == UINT64_MAX);
    qg_function_learn(&functions, f, 50280000, 50000000, 0, true); /* it is always so */
    CHECK(qg_function_estimate(record, 275000) == 280000 &&
          qg_function_call_ns(record) == UINT64_MAX);
    qg_function_learn(&functions, f, 280000, 3000, 0, true);
    CHECK(qg_function_call_ns(record) == 6000);
    /* a large graph: launching takes its time */
    qg_function_learn(&functions, f, 10280000, 2000000, 0, true);
    qg_function_learn(&functions, f, 10280000, 1000000, 0, true);
    CHECK(qg_function_call_ns(record) == 3500000);
    qg_function_forget(&functions, f);
    CHECK(qg_function_call_ns(record) == UINT64_MAX);
}

/* One kernel behind the other, each as long as its estimate or by up to less_ns shorter, each 50th
 * longer, looked at by a thread that queues the next one when it believes that the one that runs
 * will end in 40 us, and works for a while between. */
static void begins_are_told(uint64_t work_ns, uint64_t less_ns, uint64_t longer_ns)
{
    uint64_t seed = 7, est = 1000000, began = 1000000, looked = 0, now = began, guessed = 0;
    struct qg_start_inference b = {0};
    qg_start_idle(&b, now);
    for (int kernel = 0; kernel < 4000; kernel++) {
        uint64_t late = kernel % 50 == 20 ? longer_ns : 0,
                 end = began + est + late - next(&seed) % less_ns;
        uint64_t due = b.began_ns + est - 40000, look = due > now ? due : now;
        CHECK(b.began_ns <= b.latest_ns && b.latest_ns <= now);
        CHECK(!looked || b.began_ns >= looked);
        if (!longer_ns)
            CHECK(began <= b.began_ns + 40000 + less_ns); /* so much too soon, at most */
        if (qg_start_guessed(&b) || look >= end) { /* it waits for the end, or comes after it */
            guessed += qg_start_guessed(&b);
            now = began = look > end ? look : end;
            qg_start_idle(&b, now);
            looked = 0;
        } else {
            /* it runs, the next one is queued, and the one after that has to wait: it looks each
             * 50 us */
            now = look + work_ns;
            looked = b.polled_ns = now + 50000 < end ? end - 50000 : look;
            now = now < end ? end : now;
            began = end;
            qg_start_ended(&b, est, now);
        }
        b.polled_ns = now;
        CHECK(!qg_start_guessed(&b) || work_ns >= 200000);
    }
    /* estimates that err end in a look that comes too late, and so well */
    CHECK(less_ns > 1 || work_ns < 200000 || guessed);
}

int main(void)
{
    ledger_agrees();
    owner_takes_all();
    estimates_learn();
    stalled_launches_teach_nothing();
    begins_are_told(0, 8000, 0);
    begins_are_told(100000, 1, 0);
    begins_are_told(800000, 1, 0);
    begins_are_told(800000, 8000, 0);
    begins_are_told(100000, 8000, 50000000);
    begins_are_told(800000, 1, 300000);
    puts("ok");
    return 0;
}
