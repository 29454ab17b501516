/* SPDX-License-Identifier: Apache-2.0
 *
 * The libraries of this process, and what their variables take in each context.
 */
#include "memory/modules.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 256u

struct qg_library {
    struct qg_library *next;
    CUlibrary handle;
    const void *image; /* not read yet; NULL: the sizes are known */
    struct qg_image sizes;
    uint32_t number; /* never used again, as handles are */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* nothing is called under it */
static struct qg_library *libraries[BUCKETS];
/* kernels of libraries with large variables; owner: the library, refs: its number */
static struct qg_allocations kernels;
static uint32_t numbers;
bool qg_libraries_large;

void qg_libraries_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    for (unsigned i = 0; i < BUCKETS; i++)
        libraries[i] = NULL; /* the parent's */
    memset(&kernels, 0, sizeof(kernels));
    qg_libraries_large = false;
}

uint64_t qg_whole_pieces(uint64_t bytes)
{
    if (bytes < QG_PIECE)
        return 0;
    return bytes > UINT64_MAX - QG_PIECE ? UINT64_MAX : (bytes + QG_PIECE - 1) & ~(QG_PIECE - 1);
}

unsigned qg_card_arch(const struct qg_card *card)
{
    int major = 0, minor = 0;
    CUdevice device = card ? card->ordinal : 0;
    qg_depth++;
    QG_REAL(cuDeviceGetAttribute)(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    QG_REAL(cuDeviceGetAttribute)(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    qg_depth--;
    return (unsigned)(major * 10 + minor);
}

/* ---- the list ---- */

static struct qg_library **bucket_of(CUlibrary handle)
{
    return &libraries[((uint64_t)(uintptr_t)handle >> 4) * 0x9e3779b97f4a7c15u >> 56];
}
_Static_assert(BUCKETS == 256, "the upper 8 bits choose");

/* Under the lock: where its record hangs. */
static struct qg_library **place_of(CUlibrary handle)
{
    struct qg_library **at = bucket_of(handle);
    while (*at && (*at)->handle != handle)
        at = &(*at)->next;
    return at;
}

static void hang(struct qg_library *library)
{
    pthread_mutex_lock(&lock);
    struct qg_library **at = place_of(library->handle), *old = *at;
    library->next = old ? old->next : NULL;
    *at = library;
    pthread_mutex_unlock(&lock);
    free(old); /* it was unloaded by a call that the shim does not see */
}

void qg_library_loaded(CUlibrary handle, const void *image, const struct qg_image *sizes)
{
    struct qg_library *library = calloc(1, sizeof(*library));
    if (!library)
        return;
    library->handle = handle;
    library->image = image;
    library->sizes = image ? (struct qg_image){0, 0} : *sizes;
    library->number = __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED);
    hang(library);
}

static bool find(CUlibrary handle, struct qg_library *out)
{
    pthread_mutex_lock(&lock);
    const struct qg_library *library = *place_of(handle);
    if (library)
        *out = *library;
    pthread_mutex_unlock(&lock);
    return library != NULL;
}

/* Reads an image at the first use, since a program has more of them than it ever uses. */
static void read_late(struct qg_library *library, const struct qg_card *card)
{
    if (!qg_image_at(library->image, qg_card_arch(card), &library->sizes))
        library->sizes = (struct qg_image){0, 0};
    pthread_mutex_lock(&lock);
    struct qg_library *now = *place_of(library->handle);
    if (now && now->number == library->number) {
        now->sizes = library->sizes;
        now->image = NULL;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- use ---- */

static uint64_t key_of_use(const struct qg_library *library, uint64_t user)
{
    return library->number * 0x9e3779b97f4a7c15u + user * 31;
}

static bool enter(const struct qg_library *library, uint64_t user, uint64_t owner,
                  struct qg_card *card, uint64_t bytes, uint64_t *made)
{
    struct qg_entry entry = {.key = key_of_use(library, user),
                             .size = qg_whole_pieces(bytes),
                             .owner = owner,
                             .refs = library->number,
                             .kind = QG_KIND_LIBRARY},
                    old;
    if (!entry.size || qg_find_entry(QG_KIND_LIBRARY, entry.key, &old))
        return true;
    if (!qg_reserve(card, entry.size))
        return false;
    entry.card = (uint8_t)(card - qg_cards);
    qg_charge_entry(entry.size, &entry);
    *made = entry.key;
    return true;
}

#define MANAGED 1 /* as a user: no context has such a handle */

/* enforcer.managed: resident. */
static bool managed_free(void)
{
    return qg_info.grant.cards[0].flags & QG_GRANT_CARD_MANAGED_RESIDENT;
}

bool qg_library_enter(CUlibrary handle, uint64_t owner, struct qg_card *card,
                      struct qg_library_use *made)
{
    struct qg_library library;
    *made = (struct qg_library_use){{0, 0}};
    if (!find(handle, &library))
        return true;
    if (library.image)
        read_late(&library, card);
    uint64_t managed = library.sizes.managed;
    if (enter(&library, owner, owner, card, library.sizes.variables - managed, &made->keys[0]) &&
        enter(&library, MANAGED, owner, card, managed_free() ? 0 : managed, &made->keys[1]))
        return true;
    qg_library_leave(made);
    return false;
}

void qg_library_leave(const struct qg_library_use *made)
{
    struct qg_entry entry;
    for (unsigned i = 0; i < 2; i++)
        if (made->keys[i] && qg_detach(QG_KIND_LIBRARY, made->keys[i], &entry))
            qg_commit(&entry);
}

/* ---- kernels ---- */

void qg_library_kernel(CUlibrary handle, CUkernel kernel)
{
    struct qg_library library;
    if (!find(handle, &library))
        return;
    if (library.image)
        read_late(&library, NULL);
    struct qg_entry entry = {.key = (uint64_t)(uintptr_t)kernel,
                             .owner = (uint64_t)(uintptr_t)handle,
                             .refs = library.number,
                             .kind = QG_KIND_LIBRARY},
                    old;
    if (!qg_whole_pieces(library.sizes.variables))
        return;
    pthread_mutex_lock(&lock);
    qg_allocations_remove(&kernels, QG_KIND_LIBRARY, entry.key, &old);
    qg_allocations_insert(&kernels, &entry);
    pthread_mutex_unlock(&lock);
    if (__atomic_exchange_n(&qg_libraries_large, true, __ATOMIC_SEQ_CST))
        return;
    /* no launch passes without asking any more: track/streams.c */
    __atomic_add_fetch(&qg_generation, 1, __ATOMIC_SEQ_CST);
}

CUlibrary qg_library_of(CUkernel kernel)
{
    pthread_mutex_lock(&lock);
    const struct qg_entry *entry =
        qg_allocations_find(&kernels, QG_KIND_LIBRARY, (uint64_t)(uintptr_t)kernel);
    CUlibrary handle = entry ? (CUlibrary)(uintptr_t)entry->owner : NULL;
    pthread_mutex_unlock(&lock);
    return handle;
}

/* Removing one may move another into its slot: that is read again. */
static void forget_kernels(uint32_t number)
{
    struct qg_entry gone;
    pthread_mutex_lock(&lock);
    for (size_t at = 0; kernels.slots && at <= kernels.mask;) {
        const struct qg_entry *entry = &kernels.slots[at];
        if (!entry->kind || entry->refs != number ||
            !qg_allocations_remove(&kernels, QG_KIND_LIBRARY, entry->key, &gone))
            at++;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- end ---- */

struct qg_library *qg_library_unloading(CUlibrary handle)
{
    pthread_mutex_lock(&lock);
    struct qg_library **at = place_of(handle), *library = *at;
    if (library)
        *at = library->next;
    pthread_mutex_unlock(&lock);
    return library;
}

void qg_library_unloaded(struct qg_library *library, bool unloaded)
{
    if (!library)
        return;
    if (!unloaded) {
        hang(library);
        return;
    }
    if (qg_whole_pieces(library->sizes.variables)) {
        qg_commit_all(QG_KIND_LIBRARY, library->number);
        forget_kernels(library->number);
    }
    free(library);
}
