/* SPDX-License-Identifier: Apache-2.0
 *
 * Hook of the limits of a context that are memory of the card: the stack of each thread that the
 * card can hold, the buffer of printf(), the heap of malloc(). What a context has of them when it
 * is made belongs to what it costs itself. What a program asks for above that is charged to it when
 * it asks, though a driver may take a heap only with the next module. How much a pending launch of
 * the device runtime takes no driver says; NVML reports it.
 */
#include "hooks/memory/charge.h"
#include "memory/modules.h"

/* How often the driver is asked what came of the call while other threads change the same limit.
 * Chosen, not measured. */
#define ASKED_MOST 8

struct limit {
    struct qg_card *card;
    struct qg_entry entry; /* refs: bytes that it had before the first call */
    CUlimit which;
    uint64_t each; /* bytes of the card for one byte of the limit */
};

static bool takes_memory(CUlimit limit)
{
    return limit == CU_LIMIT_STACK_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE ||
           limit == CU_LIMIT_MALLOC_HEAP_SIZE;
}

static uint64_t resident_threads(CUdevice device)
{
    int processors = 0, threads = 0;
    DIRECT(QG_REAL(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                         device));
    DIRECT(QG_REAL(cuDeviceGetAttribute)(
        &threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device));
    return (uint64_t)processors * (uint64_t)threads;
}

/* What is charged for a value. */
static uint64_t charge_of(const struct limit *limit, uint64_t value)
{
    uint64_t bytes, more = value > limit->entry.refs ? value - limit->entry.refs : 0;
    return __builtin_mul_overflow(more, limit->each, &bytes) ? UINT64_MAX : qg_whole_pieces(bytes);
}

/* False: the driver alone answers. */
static bool known(CUlimit which, struct limit *limit)
{
    CUcontext context = NULL;
    size_t now = 0;
    if (!takes_memory(which) || !ruled() || QG_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS ||
        !context || qg_card_here(&limit->card) != CUDA_SUCCESS || !limit->card ||
        DIRECT(QG_REAL(cuCtxGetLimit)(&now, which)) != CUDA_SUCCESS)
        return false;
    uint64_t owner = owner_of(context), key = owner + (uint64_t)which; /* handles are aligned */
    limit->which = which;
    limit->each = which == CU_LIMIT_STACK_SIZE ? resident_threads(limit->card->ordinal) : 1;
    limit->entry = (struct qg_entry){.key = key,
                                     .owner = owner,
                                     .refs = now < UINT32_MAX ? (uint32_t)now : UINT32_MAX,
                                     .kind = QG_KIND_LIMIT,
                                     .card = (uint8_t)(limit->card - qg_cards)};
    /* Before any call of ours changes the limit: who finds no entry has read the first value. */
    qg_find_or_record(&limit->entry);
    return true;
}

/* Charges what the driver has now: it may have taken another value than it was asked for. */
static void settle(struct limit *limit, uint64_t reserved)
{
    size_t now = 0, then;
    for (unsigned i = 0; i < ASKED_MOST; i++) {
        then = now;
        if (DIRECT(QG_REAL(cuCtxGetLimit)(&now, limit->which)) != CUDA_SUCCESS)
            now = then;
        if (i && now == then)
            return;
        limit->entry.size = charge_of(limit, now);
        qg_charge_entry(reserved, &limit->entry);
        reserved = 0;
    }
}

static CUresult set(struct limit *limit, size_t value, uint64_t more, struct qg_room *room)
{
    if (more && !qg_reserve(limit->card, more))
        return qg_room_refused(room);
    CUresult result = DIRECT(QG_REAL(cuCtxSetLimit)(limit->which, value));
    if (result == CUDA_SUCCESS)
        settle(limit, more);
    else if (more)
        qg_unreserve(limit->card, more);
    return result;
}

CUresult cuCtxSetLimit(CUlimit which, size_t value)
{
    struct limit limit;
    if (!known(which, &limit))
        return QG_REAL(cuCtxSetLimit)(which, value);
    uint64_t wanted = charge_of(&limit, value), has = limit.entry.size;
    uint64_t more = wanted > has ? wanted - has : 0;
    return QG_ROOMY(limit.card, more, set(&limit, value, more, &qg_room));
}
