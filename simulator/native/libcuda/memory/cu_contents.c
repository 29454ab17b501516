/* SPDX-License-Identifier: Apache-2.0
 *
 * Contents of memory. They live in a shadow, in chunks that are made when a copy or a fill needs
 * them. A large allocation that is only filled costs a bitmap. Contents move at the call, in
 * program order; only the time of copies is the model's.
 */
#include "cu_alloc.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK 65536ull

/* With the gate open: contents are where they belong. */
static void lock_contents(void)
{
    pthread_rwlock_wrlock(&cu_alloc_lock);
    while (cu_gate_shut()) {
        pthread_rwlock_unlock(&cu_alloc_lock);
        cu_gate_wait();
        pthread_rwlock_wrlock(&cu_alloc_lock);
    }
}

/* Makes the chunks that [offset, offset + bytes) touches real; fresh ones get the pattern. The lock
 * is held. */
static uint8_t *materialise(struct cu_alloc *alloc, uint64_t offset, uint64_t bytes)
{
    if (alloc->kind == VIRTUAL)
        return alloc->shadow + offset;
    if (alloc->kind != DEVICE)
        return (uint8_t *)alloc->base + offset;
    if (!alloc->shadow) {
        alloc->made = calloc(1, alloc->size / CHUNK / 8 + 1);
        alloc->shadow = alloc->made ? cu_alloc_reserve(alloc->size, PROT_READ | PROT_WRITE) : NULL;
        if (!alloc->shadow)
            return NULL;
    }
    for (uint64_t chunk = offset / CHUNK; chunk <= (offset + bytes - 1) / CHUNK; chunk++) {
        if (alloc->made[chunk / 8] >> (chunk % 8) & 1)
            continue;
        alloc->made[chunk / 8] |= (uint8_t)(1u << (chunk % 8));
        uint32_t *word = (uint32_t *)(alloc->shadow + chunk * CHUNK);
        uint64_t size = alloc->size - chunk * CHUNK < CHUNK ? alloc->size - chunk * CHUNK : CHUNK;
        for (uint64_t i = 0; alloc->fill && i < (size + 3) / 4; i++) /* its page has room */
            word[i] = alloc->fill;
    }
    return alloc->shadow + offset;
}

/* The lock is held. Whether all of it may be accessed at once: an access goes on only from one
 * mapping of a reservation to the next. */
static CUresult reach(CUdeviceptr ptr, size_t bytes)
{
    const struct cu_alloc *alloc = cu_alloc_find(ptr), *next;
    if (!alloc) /* ordinary host memory */
        return ptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (uint64_t left; bytes > (left = alloc->size - (ptr - alloc->base)); alloc = next) {
        ptr += left;
        bytes -= left;
        next = cu_alloc_find(ptr);
        if (!next || next->kind != VIRTUAL || next->range != alloc->range || !alloc->range)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* What of it lies in one entry: bytes is cut to that. */
static CUresult side(CUdeviceptr ptr, size_t *bytes, uint8_t **address)
{
    struct cu_alloc *alloc = cu_alloc_find(ptr);
    *address = (uint8_t *)ptr;
    if (!alloc)
        return CUDA_SUCCESS;
    uint64_t offset = ptr - alloc->base;
    if (*bytes > alloc->size - offset)
        *bytes = alloc->size - offset;
    *address = materialise(alloc, offset, *bytes);
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cu_memory_reach(CUdeviceptr ptr, size_t bytes)
{
    pthread_rwlock_rdlock(&cu_alloc_lock);
    CUresult status = reach(ptr, bytes);
    pthread_rwlock_unlock(&cu_alloc_lock);
    return status;
}

bool cu_memory_known(CUdeviceptr ptr)
{
    pthread_rwlock_rdlock(&cu_alloc_lock);
    bool known = cu_alloc_find(ptr) != NULL;
    pthread_rwlock_unlock(&cu_alloc_lock);
    return known;
}

CUresult cu_memory_copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    uint8_t *to, *from;
    if (!bytes)
        return CUDA_SUCCESS;
    lock_contents();
    CUresult status = reach(src, bytes);
    if (status == CUDA_SUCCESS)
        status = reach(dst, bytes);
    while (status == CUDA_SUCCESS && bytes) {
        size_t part = bytes;
        status = side(src, &part, &from);
        if (status == CUDA_SUCCESS)
            status = side(dst, &part, &to);
        if (status == CUDA_SUCCESS)
            memmove(to, from, part);
        dst += part;
        src += part;
        bytes -= part;
    }
    pthread_rwlock_unlock(&cu_alloc_lock);
    return status;
}

static void fill_bytes(uint8_t *to, uint32_t value, unsigned width, size_t count)
{
    if (width == 1)
        memset(to, (int)value, count);
    for (size_t i = 0; width == 2 && i < count; i++)
        ((uint16_t *)to)[i] = (uint16_t)value;
    for (size_t i = 0; width == 4 && i < count; i++)
        ((uint32_t *)to)[i] = value;
}

static void fill_whole(struct cu_alloc *alloc, uint32_t value, unsigned width)
{
    alloc->fill = width == 1   ? (value & 0xff) * 0x01010101u
                  : width == 2 ? (value & 0xffff) * 0x10001u
                               : value;
    if (alloc->shadow) {
        madvise(alloc->shadow, alloc->size, MADV_DONTNEED);
        memset(alloc->made, 0, alloc->size / CHUNK / 8 + 1);
    }
}

/* Entries end at multiples of a width: they do not cut one apart. */
static CUresult fill_parts(CUdeviceptr dst, uint32_t value, unsigned width, size_t bytes)
{
    uint8_t *to;
    CUresult status = reach(dst, bytes);
    while (status == CUDA_SUCCESS && bytes) {
        size_t part = bytes;
        if ((status = side(dst, &part, &to)) == CUDA_SUCCESS)
            fill_bytes(to, value, width, part / width);
        dst += part;
        bytes -= part;
    }
    return status;
}

CUresult cu_memory_fill(CUdeviceptr dst, uint32_t value, unsigned width, size_t count)
{
    CUresult status = CUDA_SUCCESS;
    if (dst % width || count > SIZE_MAX / width)
        return CUDA_ERROR_INVALID_VALUE;
    if (!count)
        return CUDA_SUCCESS;
    lock_contents();
    struct cu_alloc *alloc = cu_alloc_find(dst);
    if (!alloc)
        status = CUDA_ERROR_INVALID_VALUE;
    else if (alloc->kind == DEVICE && dst == alloc->base && count * width == alloc->size)
        fill_whole(alloc, value, width);
    else
        status = fill_parts(dst, value, width, count * width);
    pthread_rwlock_unlock(&cu_alloc_lock);
    return status;
}

/* Where the card reaches a word: its own memory, or host memory that was registered. */
CUresult cu_memory_address(CUdeviceptr ptr, size_t bytes, uint64_t *address)
{
    uint8_t *at = NULL;
    size_t part = bytes;
    lock_contents();
    CUresult status = cu_alloc_find(ptr) ? side(ptr, &part, &at) : CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&cu_alloc_lock);
    *address = (uint64_t)(uintptr_t)at;
    return status == CUDA_SUCCESS && part < bytes ? CUDA_ERROR_INVALID_VALUE : status;
}

/* The lock is held: the entry, if it is memory of a card. */
static const struct cu_alloc *of_card(CUdeviceptr ptr)
{
    const struct cu_alloc *alloc = cu_alloc_find(ptr);
    return alloc && alloc->kind <= MANAGED ? alloc : NULL;
}

bool cu_memory_is_device(CUdeviceptr ptr)
{
    pthread_rwlock_rdlock(&cu_alloc_lock);
    bool is = of_card(ptr) != NULL;
    pthread_rwlock_unlock(&cu_alloc_lock);
    return is;
}

/* NULL: managed memory of no context, which is everywhere. */
static const struct cu_device *card_of(const struct cu_alloc *alloc)
{
    if (alloc->kind == VIRTUAL)
        return &cu.devices[alloc->flags];
    return alloc->ctx ? alloc->ctx->device : NULL;
}

uint32_t cu_memory_direction(CUdeviceptr dst, CUdeviceptr src)
{
    uint32_t op = SIM_OP_DTOD;
    pthread_rwlock_rdlock(&cu_alloc_lock);
    const struct cu_alloc *to = of_card(dst), *from = of_card(src);
    if (!to || !from)
        op = to ? SIM_OP_HTOD : SIM_OP_DTOH;
    else if (card_of(to) && card_of(from) && card_of(to) != card_of(from))
        op = SIM_OP_PEER;
    pthread_rwlock_unlock(&cu_alloc_lock);
    return op;
}
