/* SPDX-License-Identifier: Apache-2.0
 *
 * Arenas of handles. Memory of a destroyed handle stays mapped and is reused last, so stale handles
 * are recognised.
 */
#include "cu.h"

#include <string.h>
#include <sys/mman.h>

struct arena {
    size_t item, count;
    char *base;
    uint32_t used;       /* ever handed out */
    uint32_t *free_list; /* ring of indexes */
    uint32_t free_head, free_tail;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct arena arenas[] = {
    {.item = sizeof(struct CUctx_st), .count = 256},
    {.item = sizeof(struct CUstream_st), .count = 65536},
    {.item = sizeof(struct CUevent_st), .count = 1048576},
    {.item = sizeof(struct CUmod_st), .count = 65536},
    {.item = sizeof(struct CUfunc_st), .count = 262144},
    {.item = 256, .count = 65536},
    {.item = CU_EXEC_SIZE, .count = 65536},
    {.item = 128, .count = 1024},
    {.item = 128, .count = 65536},
    {.item = CU_NODE_SIZE, .count = 1048576},
    {.item = 256, .count = 4096},
    {.item = 128, .count = 65536},
};

static struct arena *arena_of(enum cu_magic kind)
{
    return &arenas[kind - CU_CTX];
}

static void *reserve(size_t size)
{
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

static bool open_arena(struct arena *arena)
{
    arena->item = (arena->item + 63) / 64 * 64;
    arena->free_list = reserve(arena->count * sizeof *arena->free_list);
    char *base = arena->free_list ? reserve(arena->item * arena->count) : NULL;
    __atomic_store_n(&arena->base, base, __ATOMIC_RELEASE);
    return base != NULL;
}

void *cu_handle_new(enum cu_magic kind)
{
    struct arena *arena = arena_of(kind);
    void *handle = NULL;
    pthread_mutex_lock(&lock);
    if (arena->base || open_arena(arena)) {
        if (arena->used < arena->count)
            handle = arena->base + arena->item * arena->used++;
        else if (arena->free_head != arena->free_tail)
            handle =
                arena->base + arena->item * arena->free_list[arena->free_head++ % arena->count];
    }
    pthread_mutex_unlock(&lock);
    if (handle)
        cu_handle_open(kind, handle);
    return handle;
}

void cu_handle_open(enum cu_magic kind, void *handle)
{
    memset(handle, 0, arena_of(kind)->item);
    *(enum cu_magic *)handle = kind;
}

void cu_handle_close(void *handle)
{
    *(enum cu_magic *)handle = 0;
}

void cu_handle_free(enum cu_magic kind, void *handle)
{
    struct arena *arena = arena_of(kind);
    cu_handle_close(handle);
    pthread_mutex_lock(&lock);
    arena->free_list[arena->free_tail++ % arena->count] =
        (uint32_t)(((char *)handle - arena->base) / arena->item);
    pthread_mutex_unlock(&lock);
}

bool cu_handle_ok(enum cu_magic kind, const void *handle)
{
    const struct arena *arena = arena_of(kind);
    const char *base = __atomic_load_n(&arena->base, __ATOMIC_ACQUIRE);
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)base;
    return base && offset < arena->item * arena->count && offset % arena->item == 0 &&
           *(const enum cu_magic *)handle == kind;
}

void *cu_handle_at(enum cu_magic kind, size_t place, bool *more)
{
    const struct arena *arena = arena_of(kind);
    pthread_mutex_lock(&lock);
    *more = place < arena->used;
    char *handle = *more ? arena->base + arena->item * place : NULL;
    pthread_mutex_unlock(&lock);
    return handle && cu_handle_ok(kind, handle) ? handle : NULL;
}
