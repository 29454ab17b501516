/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory whose address is there before any context is, as of managed variables: a context is
 * charged for it later.
 */
#include "cu_alloc.h"

#include <sys/mman.h>

CUresult cu_memory_managed_new(CUdeviceptr *out, size_t bytes)
{
    struct cu_alloc alloc = {.size = bytes, .kind = MANAGED, .owner = BORROWED};
    void *base = cu_alloc_reserve(bytes, PROT_READ | PROT_WRITE);
    if (!base)
        return CUDA_ERROR_OUT_OF_MEMORY;
    alloc.base = *out = (CUdeviceptr)base;
    CUresult status = cu_alloc_insert(&alloc);
    if (status != CUDA_SUCCESS)
        munmap(base, bytes);
    return status;
}

CUresult cu_memory_charge(uint64_t *id, size_t bytes, CUcontext ctx)
{
    struct sim_rep rep;
    CU_TRY(cu_request(SIM_REQ_ALLOC, ctx->id, bytes, &rep, sizeof rep, NULL, 0));
    *id = rep.a;
    return CUDA_SUCCESS;
}

void cu_memory_discharge(uint64_t id, CUcontext ctx)
{
    struct sim_rep rep;
    cu_request(SIM_REQ_FREE, ctx->id, id, &rep, sizeof rep, NULL, 0);
}
