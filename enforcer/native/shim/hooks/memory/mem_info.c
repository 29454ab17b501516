/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of what tells how much memory there is. All of it, and NVML's answers too (shim_nvml), is
 * the cap and what the job holds in the books; the card's own numbers only where they are smaller.
 */
#include "hooks/memory/charge.h"
#include "memory/pools.h"
#include "memory/ipc.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void virtual_memory(struct qg_card *card, uint64_t *available, uint64_t *total)
{
    qg_pools_settled();
    if (card)
        qg_shares_tick(card);
    uint64_t cap = card ? qg_cap(card) : 0, used = card ? qg_job_used(card) : 0;
    *total = least(*total, cap);
    *available = least(*available, cap > used ? cap - used : 0);
}

/* Either may be NULL: who asks for one of the two only is answered by some drivers. */
#define GET_INFO(name, type)                                                                       \
    CUresult name(type *available, type *total)                                                    \
    {                                                                                              \
        CUresult result = QG_REAL(name)(available, total);                                         \
        if (result == CUDA_SUCCESS && ruled()) {                                                   \
            uint64_t left = available ? *available : 0, all = total ? *total : 0;                  \
            virtual_memory(qg_card_current(), &left, &all);                                        \
            if (available)                                                                         \
                *available = (type)left;                                                           \
            if (total)                                                                             \
                *total = (type)all;                                                                \
        }                                                                                          \
        return result;                                                                             \
    }

GET_INFO(cuMemGetInfo_v2, size_t)
GET_INFO(cuMemGetInfo, unsigned int)

CUresult cuDeviceTotalMem_v2(size_t *total, CUdevice device)
{
    CUresult result = QG_REAL(cuDeviceTotalMem_v2)(total, device);
    struct qg_card *card = qg_card_by_ordinal(device);
    if (result == CUDA_SUCCESS && ruled())
        *total = least(*total, card ? qg_cap(card) : 0);
    return result;
}

CUresult cuDeviceTotalMem(unsigned int *total, CUdevice device)
{
    CUresult result = QG_REAL(cuDeviceTotalMem)(total, device);
    struct qg_card *card = qg_card_by_ordinal(device);
    if (result == CUDA_SUCCESS && ruled())
        *total = (unsigned int)least(*total, card ? qg_cap(card) : 0);
    return result;
}
