/* SPDX-License-Identifier: Apache-2.0
 *
 * Context-local storage: libraries with a runtime inside keep one value by key in each context. The
 * function that came with a value is called when the context ends, and not when the entry is
 * deleted.
 */
#include "cu_context.h"

#include <stdlib.h>

struct cu_stored {
    struct cu_stored *next;
    void *key, *value;
    cu_storage_end_fn *end;
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

static CUresult context_of(CUcontext *ctx)
{
    if (!*ctx)
        return cu_current_in(__func__, ctx);
    CU_TRY(cu_ready_in(__func__));
    if (cu_handle_ok(CU_CTX, *ctx))
        return CUDA_SUCCESS;
    return cu_primary_of(*ctx) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

/* The lock is held. */
static struct cu_stored **find(CUcontext ctx, const void *key)
{
    struct cu_stored **at = &ctx->stored;
    while (*at && (*at)->key != key)
        at = &(*at)->next;
    return at;
}

CUresult cu_storage_put(CUcontext ctx, void *key, void *value, cu_storage_end_fn *end)
{
    CU_TRY(context_of(&ctx));
    struct cu_stored *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&lock);
    struct cu_stored **at = find(ctx, key);
    if (*at) {
        free(made);
        made = *at;
    }
    *made = (struct cu_stored){.next = made->next, .key = key, .value = value, .end = end};
    *at = made;
    pthread_rwlock_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cu_storage_get(void **value, CUcontext ctx, void *key)
{
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(context_of(&ctx));
    pthread_rwlock_rdlock(&lock);
    const struct cu_stored *found = *find(ctx, key);
    if (found)
        *value = found->value;
    pthread_rwlock_unlock(&lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cu_storage_delete(CUcontext ctx, void *key)
{
    CU_TRY(context_of(&ctx));
    pthread_rwlock_wrlock(&lock);
    struct cu_stored **at = find(ctx, key), *gone = *at;
    if (gone)
        *at = gone->next;
    pthread_rwlock_unlock(&lock);
    free(gone);
    return CUDA_SUCCESS;
}

void cu_storage_end(CUcontext ctx)
{
    pthread_rwlock_wrlock(&lock);
    struct cu_stored *all = ctx->stored;
    ctx->stored = NULL;
    pthread_rwlock_unlock(&lock);
    while (all) {
        struct cu_stored *next = all->next;
        if (all->end)
            all->end(ctx, all->key, all->value);
        free(all);
        all = next;
    }
}
