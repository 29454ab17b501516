/* SPDX-License-Identifier: Apache-2.0
 *
 * The process's grant and cards, and the depth of our own code on each thread.
 */
#include "process/process.h"

#include <linux/membarrier.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct qg_grant_info qg_info;
struct qg_card qg_cards[QG_MAX_CARDS];
int8_t qg_card_of_ordinal[QG_MAX_ORDINALS];
bool qg_governed;
int qg_captures;
unsigned qg_generation = 1; /* never 0: a cache that was never filled has that */
uint64_t qg_ticks_per_ms = 1000000;
__thread int qg_depth __attribute__((tls_model("initial-exec")));

static bool lanes_usable; /* atomic */

void qg_cards_forget(void)
{
    memset(qg_cards, 0, sizeof(qg_cards));
    memset(qg_card_of_ordinal, -1, sizeof(qg_card_of_ordinal));
    for (uint32_t i = 0; qg_governed && i < qg_info.grant.ncards; i++)
        qg_cards[i].grant = &qg_info.grant.cards[i];
}

struct qg_card *qg_card_by_ordinal(CUdevice ordinal)
{
    int8_t at = ordinal >= 0 && ordinal < QG_MAX_ORDINALS ? qg_card_of_ordinal[ordinal] : -1;
    return at < 0 ? NULL : &qg_cards[at];
}

CUresult qg_card_here(struct qg_card **card)
{
    CUdevice device;
    CUresult result = QG_REAL(cuCtxGetDevice)(&device);
    *card = result == CUDA_SUCCESS ? qg_card_by_ordinal(device) : NULL;
    return result;
}

struct qg_card *qg_card_current(void)
{
    struct qg_card *card;
    qg_card_here(&card);
    return card;
}

void qg_lanes_register(void)
{
    long done = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
    __atomic_store_n(&lanes_usable, done == 0, __ATOMIC_RELEASE);
}

bool qg_lanes_usable(void)
{
    return __atomic_load_n(&lanes_usable, __ATOMIC_ACQUIRE);
}

void qg_lanes_unusable(void)
{
    __atomic_store_n(&lanes_usable, false, __ATOMIC_RELAXED);
}
