/* SPDX-License-Identifier: Apache-2.0
 *
 * Small copies and fills. One uses the card for 1 or 2 us. It is not worth waiting for a quantum,
 * and many programs make one now and then. But a series of them fills the card as kernels do. So
 * they are summed up per card, over all threads of the process. When the sum is worth a launch,
 * that call passes the gate once for all of them.
 *
 * The sum is one word, so that adding costs one instruction. Its low bits are bytes, above them is
 * the weight, and the top bit says that a thread waits at the gate for them.
 */
#include "hooks/copy/copy.h"

/* bytes of host link: Weight of one copy besides its bytes: 2 us. Evidence: none. */
#define PIECE 24000u
/* bytes of host link: A sum of this weight passes the gate as a launch does: 30 us. Evidence:
 * attack (test_shim_small.py). */
#define LAUNCH 360000u
/* bytes of host link: No call weighs more. It is longer than any window, so longer lists need not
 * differ. Evidence: bound. */
#define HEAVIEST (16u << 20)
/* ms: Small copies are rare if LAUNCH of weight took this long. They use less than 1 % of the card.
 * Evidence: none. */
#define RARE_MS 10u
/* bits: Copies within the card are 16 times as fast as the host link. Only the order of magnitude
 * matters. Evidence: none. */
#define ON_CARD_SHIFT 4u
/* bits: Bits of the word for bytes: 1 TiB, more than any sum before a launch. Evidence: bound. */
#define BYTES_BITS 40u
/* bytes of host link: Unit of weight in the word, so that 23 bits hold the heaviest sums. Evidence:
 * bound. */
#define GRAIN 256u
/* mark: The top bit of the word: a thread waits at the gate for the sum. Evidence: bound. */
#define TAKEN ((uint64_t)1 << 63)
/* mark: Bits of the word for the weight. Evidence: bound. */
#define WEIGHT_MASK ((TAKEN - 1) >> BYTES_BITS)

static uint64_t weight_of(uint64_t word)
{
    return (word >> BYTES_BITS & WEIGHT_MASK) * GRAIN;
}

static uint64_t word_of(struct qg_copied what)
{
    uint64_t pieces = what.pieces < HEAVIEST / PIECE ? what.pieces : HEAVIEST / PIECE;
    uint64_t weight =
        pieces * PIECE + (what.route == QG_ON_CARD ? what.bytes >> ON_CARD_SHIFT : what.bytes);
    return weight / GRAIN << BYTES_BITS | what.bytes;
}

/* True: such copies are rare and the gate is open, so they need not count as work. An idle online
 * tenant that reads a word now and then must not take the card from others. At a closed gate they
 * count, since another tenant has the card. */
static bool rare(struct qg_card *card, uint64_t weight)
{
    uint64_t now = qg_tick(),
             before = __atomic_exchange_n(&card->small_tick, now, __ATOMIC_RELAXED);
    struct qg_pages *pages = qg_pages_of(card);
    return now - before > RARE_MS * qg_ticks_per_ms * (weight / LAUNCH) &&
           (!pages || !(__atomic_load_n(&pages->gate->flags, __ATOMIC_RELAXED) & QG_GATE_CLOSED));
}

/* The sum stays until one thread has passed the gate, so that other threads do not begin a new sum
 * at a closed gate. Each of those threads counts only its own copy. */
__attribute__((noinline)) static struct qg_stream *
enter(CUstream handle, bool ptsz, struct qg_card *card, uint64_t own, uint64_t all)
{
    if (rare(card, weight_of(all))) {
        __atomic_store_n(&card->small, 0, __ATOMIC_RELAXED);
        return NULL;
    }
    if (__atomic_fetch_or(&card->small, TAKEN, __ATOMIC_RELAXED) & TAKEN)
        all = own;
    struct qg_stream *entered = qg_enter(handle, ptsz, NULL, weight_of(all));
    uint64_t bytes =
        __atomic_exchange_n(&card->small, 0, __ATOMIC_RELAXED) & (((uint64_t)1 << BYTES_BITS) - 1);
    struct qg_pages *pages = entered ? qg_pages_of(entered->card) : NULL;
    if (pages)
        __atomic_fetch_add(&pages->proc->copy_bytes, bytes, __ATOMIC_RELAXED);
    return entered;
}

/* For copies that are over when the call returns. A thread has one such copy under way, on an
 * engine of its own, and waits for it. It waits at a closed gate. At an open gate it is neither
 * booked nor fenced, which would take longer than the copy. */
__attribute__((noinline)) static struct qg_stream *pass_open(struct qg_stream *stream)
{
    while (qg_gate_waited(stream))
        ;
    __atomic_store_n(&stream->card->small, 0, __ATOMIC_RELAXED);
    return NULL;
}

struct qg_stream *qg_small_begin(CUstream handle, bool ptsz, bool waits, struct qg_copied what)
{
    struct qg_stream *stream = what.bytes ? qg_stream_of(handle, ptsz) : NULL;
    if (!stream || qg_stream_captures(stream))
        return NULL;
    struct qg_card *card = stream->card;
    uint64_t own = word_of(what), all = __atomic_add_fetch(&card->small, own, __ATOMIC_RELAXED);
    if (QG_LIKELY(weight_of(all) < LAUNCH))
        return NULL;
    return waits && what.route == QG_HOST_LINK ? pass_open(stream)
                                               : enter(handle, ptsz, card, own, all);
}
