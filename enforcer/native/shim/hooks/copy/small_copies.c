/* SPDX-License-Identifier: Apache-2.0
 *
 * Small copies and fills. One takes the card for a microsecond or two: no turn is worth that, and
 * many programs make one now and then. A stream of them fills the card as kernels do, so they are
 * summed up, over all threads of the process and per card, and the call with which the sum is worth
 * a launch passes the gate as one, for all of them.
 *
 * The sum is one word, because it must cost no more than one instruction: bytes in the low bits,
 * above them what they weigh, and on top whether some thread stands at the gate for them.
 */
#include "hooks/copy/copy.h"

/* what a piece weighs beside its bytes: 2 us of the host link, at 12000 bytes per us (window.c) */
#define PIECE  24000u
#define LAUNCH 360000u /* 30 us: so much at once passes the gate */
/* more than any window: a list of a million pieces need not be told from a longer one */
#define HEAVIEST (16u << 20)
/* a launch's worth that took so long to gather is less than a hundredth of the card */
#define RARE_MS 10u
/* so much faster is what does not leave the card: only orders of magnitude matter */
#define ON_CARD_SHIFT 4u
#define BYTES_BITS    40u
#define GRAIN         256u /* of weights */
#define TAKEN         ((uint64_t)1 << 63)
#define WEIGHT_MASK   ((TAKEN - 1) >> BYTES_BITS)

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

/* Seldom at an open gate: what never was worth a turn still is not, and an idle online tenant that
 * looks at a word now and then must not take the card from others. At a closed gate it makes no
 * difference: the card is somebody else's. */
static bool rare(struct qg_card *card, uint64_t weight)
{
    uint64_t now = qg_tick(),
             before = __atomic_exchange_n(&card->small_tick, now, __ATOMIC_RELAXED);
    struct qg_pages *pages = qg_pages_of(card);
    return now - before > RARE_MS * qg_ticks_per_ms * (weight / LAUNCH) &&
           (!pages || !(__atomic_load_n(&pages->gate->flags, __ATOMIC_RELAXED) & QG_GATE_CLOSED));
}

/* The sum stays until somebody is through, so that other threads do not begin a new one at a closed
 * gate. Each of them is reckoned by itself. */
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

/* What is over when the call returns: a thread has one at a time under way, on an engine of its
 * own, and waits for it as long as for the card. It stands at a closed gate; at an open one it need
 * not be booked, nor followed by a marker, which would take longer than the copy. */
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
