/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of calls that report memory. Their answers, and NVML's (shim_nvml), show the job's cap and
 * what the job holds. The card's own numbers are used only where they are smaller.
 */
#include "hooks/memory/charge.h"
#include "memory/contexts.h"
#include "memory/pools.h"
#include "memory/ipc.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void virtual_memory(struct qg_card *card, uint64_t *available, uint64_t *total)
{
    qg_pools_poll();
    if (card) {
        qg_shares_tick(card);
        qg_contexts_settle(card);
    }
    uint64_t cap = card ? qg_cap(card) : 0, used = card ? qg_job_used(card) : 0;
    *total = least(*total, cap);
    *available = least(*available, cap > used ? cap - used : 0);
}

/* Either may be NULL: some drivers then answer the other one alone. */
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
