/* SPDX-License-Identifier: Apache-2.0
 *
 * Room on a card. The cap allows an allocation, but the driver may refuse it: memory of reclaimable
 * jobs lies on the card. While the gate page says so the call waits and is made again. Beside that,
 * calls that take memory wait while the job is held.
 */
#ifndef QG_ROOM_H
#define QG_ROOM_H

#include "process/process.h"

/* One allocation, over all its tries. Begins as {0}. */
struct qg_room {
    struct qg_card *card;   /* of the last try that may wait */
    uint64_t size;          /* bytes, as far as known */
    struct qg_pages *pages; /* those that the next two are of; NULL: this try does not wait */
    uint32_t retry, final;  /* counters, as they were before the driver's call */
    bool last;              /* the result of this try stands */
    bool waited;
};

/* Waits while the job is held. */
void qg_room_held(struct qg_card *card);

/* After the driver refused for lack of memory, without a lock, and with nothing pending. True: try
 * again. False: the refusal stands. */
bool qg_room_awaited(struct qg_room *room);

void qg_room_over(const struct qg_room *room); /* after the last try of one that waited */

/* What threads that were lost in a wait have left, by the helper thread. */
void qg_room_poll(void);

/* Before each try, and before anything is reserved for it. card: NULL, and the call does not
 * wait. */
static inline void qg_room_look(struct qg_room *room, struct qg_card *card, uint64_t size)
{
    struct qg_pages *pages = card ? qg_pages_of(card) : NULL;
    if (pages &&
        QG_UNLIKELY(__atomic_load_n(&pages->gate->flags, __ATOMIC_ACQUIRE) & QG_GATE_WHY_MEMORY)) {
        qg_room_held(card);
        pages = qg_pages_of(card);
    }
    room->pages = pages;
    if (!pages)
        return;
    room->card = card;
    room->size = size;
    room->retry = __atomic_load_n(&pages->gate->mem_retry, __ATOMIC_ACQUIRE);
    room->final = __atomic_load_n(&pages->gate->mem_final, __ATOMIC_ACQUIRE);
}

/* The job's cap refuses: nothing to wait for. */
static inline CUresult qg_room_refused(struct qg_room *room)
{
    room->last = true;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* True: the call, which had this result, is made again. */
static inline bool qg_room_again(struct qg_room *room, CUresult result)
{
    if (QG_UNLIKELY(result == CUDA_ERROR_OUT_OF_MEMORY) && qg_room_awaited(room))
        return true;
    if (QG_UNLIKELY(room->waited))
        qg_room_over(room);
    return false;
}

/* Makes a call again and again as described above. `attempt` reserves, calls and charges; it may
 * name qg_room. */
#define QG_ROOMY(place, bytes, attempt)                                                            \
    ({                                                                                             \
        struct qg_room qg_room = {0};                                                              \
        CUresult qg_tried;                                                                         \
        do {                                                                                       \
            qg_room_look(&qg_room, place, bytes);                                                  \
            qg_tried = (attempt);                                                                  \
        } while (qg_room_again(&qg_room, qg_tried));                                               \
        qg_tried;                                                                                  \
    })

#endif
