/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of a context. Three of them are memory of the card: the stack, of every thread that the
 * card can hold; the buffer of printf(); the heap of malloc(). What they usually take belongs to
 * the context; what is asked for above that is taken at once. (A real driver may take the heap with
 * the next module.)
 */
#include "cu_alloc.h"
#include "cu_context.h"

static const size_t usual[CU_LIMIT_MAX] = {
    [CU_LIMIT_STACK_SIZE] = 1024,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 1u << 20,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8u << 20,
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
};

void cu_limits_start(CUcontext ctx)
{
    for (unsigned i = 0; i < CU_LIMIT_MAX; i++) {
        ctx->limits[i].value = usual[i];
        ctx->limits[i].charge = 0;
    }
}

/* Bytes of the card for one of the limit's; 0: it takes none. */
static uint64_t each(CUlimit limit)
{
    if (limit == CU_LIMIT_STACK_SIZE)
        return (uint64_t)CU_SM_COUNT * CU_SM_THREADS;
    return limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE;
}

static CUresult set(CUcontext ctx, CUlimit limit, size_t value)
{
    uint64_t bytes, charge = 0, more = value > usual[limit] ? value - usual[limit] : 0;
    if (__builtin_mul_overflow(more, each(limit), &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes)
        CU_TRY(cu_memory_charge(&charge, bytes, ctx));
    if (ctx->limits[limit].charge)
        cu_memory_discharge(ctx->limits[limit].charge, ctx);
    ctx->limits[limit].charge = charge;
    ctx->limits[limit].value = value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    pthread_mutex_lock(&lock);
    CUresult status = set(ctx, limit, value);
    pthread_mutex_unlock(&lock);
    return status;
}

CUresult CUDAAPI cuCtxGetLimit(size_t *value, CUlimit limit)
{
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (!value || limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = ctx->limits[limit].value;
    return CUDA_SUCCESS;
}
