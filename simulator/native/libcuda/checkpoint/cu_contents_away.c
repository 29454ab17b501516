/* SPDX-License-Identifier: Apache-2.0
 *
 * Contents of a process's memory while it is checkpointed. Their pages move to another place of the
 * process, which is ordinary memory. The old one has no access until they are back there: the same
 * address, since words of streams and nodes of graphs name it.
 */
#include "cu_orders.h"
#include "cu_vmm.h"

#include <sys/mman.h>

#ifndef MREMAP_DONTUNMAP /* Linux 5.7 */
#define MREMAP_DONTUNMAP 4
#endif

/* Memory of a card with contents, of either kind. The locks are held. */
struct piece {
    uint8_t *place, **away;
    uint64_t size;
};

struct walk {
    size_t at;
    struct cu_physical *physical;
    bool started;
};

static bool next_of_table(struct walk *walk, struct piece *piece)
{
    for (struct cu_alloc *alloc; (alloc = cu_alloc_at(walk->at)) != NULL;) {
        walk->at++;
        if (alloc->kind != DEVICE || !alloc->shadow)
            continue;
        *piece = (struct piece){alloc->shadow, &alloc->away, alloc->size};
        return true;
    }
    return false;
}

static bool next(struct walk *walk, struct piece *piece)
{
    if (next_of_table(walk, piece))
        return true;
    walk->physical = walk->started ? walk->physical->next : cu_vmm_first();
    walk->started = true;
    while (walk->physical && walk->physical->borrowed) /* memory of the host */
        walk->physical = walk->physical->next;
    if (walk->physical)
        *piece =
            (struct piece){walk->physical->contents, &walk->physical->away, walk->physical->size};
    return walk->physical != NULL;
}

static void lock(void)
{
    pthread_mutex_lock(&cu_vmm_lock);
    pthread_rwlock_wrlock(&cu_alloc_lock);
}

static void unlock(void)
{
    pthread_rwlock_unlock(&cu_alloc_lock);
    pthread_mutex_unlock(&cu_vmm_lock);
}

/* ---- what cannot leave ---- */

/* Managed memory, and what is shared with other processes or with other cards. */
CUresult cu_contents_may_leave(void)
{
    bool may = !__atomic_load_n(&cu_shared, __ATOMIC_RELAXED);
    lock();
    for (size_t i = 0; may && cu_alloc_at(i); i++)
        may = cu_alloc_at(i)->kind != MANAGED && !cu_alloc_at(i)->shared;
    for (const struct cu_physical *at = cu_vmm_first(); may && at; at = at->next)
        may = !at->shared && !at->object;
    unlock();
    return may ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- moving ---- */

static bool leave(const struct piece *piece)
{
    void *to =
        mremap(piece->place, piece->size, piece->size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (to == MAP_FAILED)
        return false;
    *piece->away = to;
    mprotect(piece->place, piece->size, PROT_NONE);
    return true;
}

static bool come_back(const struct piece *piece)
{
    if (mremap(*piece->away, piece->size, piece->size, MREMAP_MAYMOVE | MREMAP_FIXED,
               piece->place) == MAP_FAILED)
        return false;
    *piece->away = NULL;
    return true;
}

/* Those that are not where they should be; half: of them only. False: one could not be moved. */
static bool move(bool (*one)(const struct piece *), bool from_away, bool half)
{
    struct walk walk = {0};
    struct piece piece;
    size_t n = 0;
    bool moved = true;
    for (struct walk all = {0}; next(&all, &piece);)
        n += (*piece.away != NULL) == from_away;
    n = half ? n / 2 : n;
    while (n && moved && next(&walk, &piece))
        if ((*piece.away != NULL) == from_away) {
            moved = one(&piece);
            n--;
        }
    return moved;
}

CUresult cu_contents_leave(bool midway)
{
    lock();
    bool moved = move(leave, false, midway);
    if (!moved) /* no more address space: as it was */
        move(come_back, true, false);
    unlock();
    return midway ? CUDA_ERROR_UNKNOWN : moved ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cu_contents_return(bool midway)
{
    lock();
    bool moved = move(come_back, true, midway);
    unlock();
    return midway || !moved ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
