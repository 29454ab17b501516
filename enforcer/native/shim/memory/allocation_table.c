/* SPDX-License-Identifier: Apache-2.0
 *
 * The allocation table of this process: which allocation holds how many bytes of which card. Every
 * change is published in the slot at once.
 */
#include "memory/allocation_table.h"

#include <string.h>

#include "memory/ipc.h"

static struct qg_allocations allocations;

void qg_allocations_after_fork(void)
{
    /* Not given back: another thread of the parent may have been in the middle of growing it. */
    memset(&allocations, 0, sizeof(allocations));
}

void qg_add_used(struct qg_card *card, uint64_t size)
{
    card->used += size;
    qg_publish(card);
}

void qg_subtract_used(struct qg_card *card, uint64_t size)
{
    card->used -= size < card->used ? size : card->used;
    qg_publish(card);
}

static void free_ties(uint64_t user);

/* Under the lock: an entry has ended. Memory that other processes of the job still use stays
 * charged. */
static void entry_ended(const struct qg_entry *entry)
{
    struct qg_card *card = &qg_cards[entry->card];
    if (entry->kind == QG_KIND_CONTEXT)
        qg_context_ended(card);
    if (entry->kind == QG_KIND_HANDLE && entry->foreign == QG_MULTICAST)
        free_ties(entry->key); /* memory that was bound to it is unbound */
    if (!entry->share || !qg_share_release(card, entry->share))
        qg_subtract_used(card, entry->size);
}

static struct qg_entry fresh(struct qg_card *card, enum qg_kind kind, uint64_t key, uint64_t owner,
                             uint64_t size)
{
    return (struct qg_entry){.key = key,
                             .size = size,
                             .owner = owner,
                             .refs = 1,
                             .kind = (uint8_t)kind,
                             .card = (uint8_t)(card - qg_cards)};
}

void qg_charge(struct qg_card *card, uint64_t reserved, enum qg_kind kind, uint64_t key,
               uint64_t owner, uint64_t size)
{
    struct qg_entry entry = fresh(card, kind, key, owner, size);
    qg_charge_entry(reserved, &entry);
}

void qg_charge_entry(uint64_t reserved, const struct qg_entry *entry)
{
    struct qg_card *card = &qg_cards[entry->card];
    struct qg_entry stale;
    pthread_mutex_lock(&qg_allocation_lock);
    /* An old entry has this key: it was freed by a call that the shim does not see. */
    if (qg_allocations_remove(&allocations, entry->kind, entry->key, &stale))
        qg_cards[stale.card].used -= stale.size;
    card->pending -= reserved;
    card->used += entry->size;
    qg_publish(card);
    /* Without host memory for the entry the bytes stay charged for good: refusing later is right,
     * leaking is not. */
    qg_allocations_insert(&allocations, entry);
    pthread_mutex_unlock(&qg_allocation_lock);
}

void qg_set_charge(struct qg_card *card, uint64_t reserved, enum qg_kind kind, uint64_t key,
                   uint64_t size)
{
    struct qg_entry entry = fresh(card, kind, key, 0, size), old = {0};
    pthread_mutex_lock(&qg_allocation_lock);
    qg_allocations_remove(&allocations, kind, key, &old);
    card->pending -= reserved;
    card->used = card->used - old.size + size;
    qg_publish(card);
    if (size)
        qg_allocations_insert(&allocations, &entry);
    pthread_mutex_unlock(&qg_allocation_lock);
}

void qg_record(struct qg_card *card, enum qg_kind kind, uint64_t key, uint64_t owner, uint64_t size)
{
    struct qg_entry entry = fresh(card, kind, key, owner, size), stale;
    entry.refs = 0;
    pthread_mutex_lock(&qg_allocation_lock);
    qg_allocations_remove(&allocations, kind, key, &stale);
    qg_allocations_insert(&allocations, &entry);
    pthread_mutex_unlock(&qg_allocation_lock);
}

bool qg_find_entry(enum qg_kind kind, uint64_t key, struct qg_entry *out)
{
    pthread_mutex_lock(&qg_allocation_lock);
    const struct qg_entry *entry = qg_allocations_find(&allocations, kind, key);
    if (entry)
        *out = *entry;
    pthread_mutex_unlock(&qg_allocation_lock);
    return entry != NULL;
}

void qg_find_or_record(struct qg_entry *entry)
{
    pthread_mutex_lock(&qg_allocation_lock);
    const struct qg_entry *known = qg_allocations_find(&allocations, entry->kind, entry->key);
    if (known)
        *entry = *known;
    else
        qg_allocations_insert(&allocations, entry);
    pthread_mutex_unlock(&qg_allocation_lock);
}

bool qg_reopen(enum qg_kind kind, uint64_t key, int change, struct qg_entry *out)
{
    pthread_mutex_lock(&qg_allocation_lock);
    struct qg_entry *entry = qg_allocations_find(&allocations, kind, key);
    if (entry) {
        entry->refs = (uint32_t)((int64_t)entry->refs + change);
        *out = *entry;
        if (!entry->refs)
            qg_allocations_remove(&allocations, kind, key, out);
    }
    pthread_mutex_unlock(&qg_allocation_lock);
    return entry != NULL;
}

bool qg_detach(enum qg_kind kind, uint64_t key, struct qg_entry *out)
{
    pthread_mutex_lock(&qg_allocation_lock);
    bool found = qg_allocations_remove(&allocations, kind, key, out);
    pthread_mutex_unlock(&qg_allocation_lock);
    return found;
}

void qg_commit(const struct qg_entry *entry)
{
    pthread_mutex_lock(&qg_allocation_lock);
    entry_ended(entry);
    pthread_mutex_unlock(&qg_allocation_lock);
}

void qg_reattach(const struct qg_entry *entry)
{
    pthread_mutex_lock(&qg_allocation_lock);
    if (!qg_allocations_find(&allocations, entry->kind, entry->key))
        qg_allocations_insert(&allocations, entry);
    pthread_mutex_unlock(&qg_allocation_lock);
}

/* Removing an entry may move another one into its slot: that is read again. */
void qg_commit_all(enum qg_kind kind, uint32_t refs)
{
    struct qg_entry gone;
    pthread_mutex_lock(&qg_allocation_lock);
    for (size_t at = 0; allocations.slots && at <= allocations.mask;) {
        const struct qg_entry *entry = &allocations.slots[at];
        if (entry->kind == kind && entry->refs == refs &&
            qg_allocations_remove(&allocations, kind, entry->key, &gone))
            entry_ended(&gone);
        else
            at++;
    }
    pthread_mutex_unlock(&qg_allocation_lock);
}

void qg_pieces_orphaned(const struct qg_entry *pool)
{
    struct qg_entry entry = *pool;
    pthread_mutex_lock(&qg_allocation_lock);
    entry.kind = QG_KIND_ORPHAN;
    entry.refs = qg_allocations_count(&allocations, QG_KIND_PIECE, entry.key);
    if (entry.refs)
        qg_allocations_insert(&allocations, &entry);
    else
        qg_subtract_used(&qg_cards[entry.card], entry.size);
    pthread_mutex_unlock(&qg_allocation_lock);
}

void qg_piece_freed(const struct qg_entry *piece)
{
    pthread_mutex_lock(&qg_allocation_lock);
    struct qg_entry gone, *orphan = qg_allocations_find(&allocations, QG_KIND_ORPHAN, piece->owner);
    if (orphan && --orphan->refs == 0 &&
        qg_allocations_remove(&allocations, QG_KIND_ORPHAN, piece->owner, &gone))
        qg_subtract_used(&qg_cards[gone.card], gone.size);
    pthread_mutex_unlock(&qg_allocation_lock);
}

void qg_share_this(enum qg_kind kind, uint64_t key, uint64_t name, int fd)
{
    pthread_mutex_lock(&qg_allocation_lock);
    struct qg_entry *entry = qg_allocations_find(&allocations, kind, key);
    if ((name || fd >= 0) && entry && entry->size && !(kind == QG_KIND_HANDLE && entry->foreign)) {
        entry->share = qg_share_publish(&qg_cards[entry->card], entry->share, name, entry->size);
        qg_share_sent(entry->share, fd);
    }
    pthread_mutex_unlock(&qg_allocation_lock);
}

void qg_set_share(enum qg_kind kind, uint64_t key, uint16_t share)
{
    pthread_mutex_lock(&qg_allocation_lock);
    struct qg_entry *entry = qg_allocations_find(&allocations, kind, key);
    if (entry)
        entry->share = share;
    pthread_mutex_unlock(&qg_allocation_lock);
}

/* ---- physical handles ---- */

/* Under the lock: the memory behind a handle lives until the last reference and the last mapping
 * are gone. */
static void maybe_gone(struct qg_entry *entry)
{
    struct qg_entry gone;
    if (entry->refs || entry->maps)
        return;
    qg_allocations_remove(&allocations, QG_KIND_HANDLE, entry->key, &gone);
    entry_ended(&gone);
}

void qg_handle_foreign(struct qg_card *card, uint64_t handle, uint16_t share)
{
    struct qg_entry entry = fresh(card, QG_KIND_HANDLE, handle, 0, 0), old;
    entry.foreign = QG_FOREIGN;
    entry.share = share;
    pthread_mutex_lock(&qg_allocation_lock);
    /* the same memory again: the same handle */
    if (qg_allocations_remove(&allocations, QG_KIND_HANDLE, handle, &old)) {
        if (share)
            qg_share_release(card, share); /* it was opened once more than it will be closed */
        old.refs++;
        entry = old;
    }
    qg_allocations_insert(&allocations, &entry);
    pthread_mutex_unlock(&qg_allocation_lock);
}

void qg_handle_multicast(uint64_t handle)
{
    struct qg_entry entry = fresh(&qg_cards[0], QG_KIND_HANDLE, handle, 0, 0);
    entry.foreign = QG_MULTICAST;
    pthread_mutex_lock(&qg_allocation_lock);
    struct qg_entry *known = qg_allocations_find(&allocations, QG_KIND_HANDLE, handle);
    if (known)
        known->foreign = QG_MULTICAST;
    else
        qg_allocations_insert(&allocations, &entry);
    pthread_mutex_unlock(&qg_allocation_lock);
}

bool qg_handle_grows(uint64_t handle, uint64_t size)
{
    pthread_mutex_lock(&qg_allocation_lock);
    const struct qg_entry *entry = qg_allocations_find(&allocations, QG_KIND_HANDLE, handle);
    bool pays = entry && entry->foreign == QG_FOREIGN && !entry->share && entry->size < size;
    uint64_t more = pays ? size - entry->size : 0;
    struct qg_card *card = pays ? &qg_cards[entry->card] : NULL;
    pthread_mutex_unlock(&qg_allocation_lock);
    if (!pays)
        return true;
    if (!qg_reserve(card, more))
        return false;
    pthread_mutex_lock(&qg_allocation_lock);
    struct qg_entry *now = qg_allocations_find(&allocations, QG_KIND_HANDLE, handle);
    card->pending -= more;
    if (now) {
        now->size += more;
        card->used += more;
    }
    qg_publish(card);
    pthread_mutex_unlock(&qg_allocation_lock);
    return true;
}

void qg_handle_retain(uint64_t handle)
{
    pthread_mutex_lock(&qg_allocation_lock);
    struct qg_entry *entry = qg_allocations_find(&allocations, QG_KIND_HANDLE, handle);
    if (entry)
        entry->refs++;
    pthread_mutex_unlock(&qg_allocation_lock);
}

void qg_handle_release(uint64_t handle)
{
    pthread_mutex_lock(&qg_allocation_lock);
    struct qg_entry *entry = qg_allocations_find(&allocations, QG_KIND_HANDLE, handle);
    if (entry && entry->refs) {
        entry->refs--;
        maybe_gone(entry);
    }
    pthread_mutex_unlock(&qg_allocation_lock);
}

bool qg_handle_last(uint64_t handle, struct qg_entry *out)
{
    pthread_mutex_lock(&qg_allocation_lock);
    struct qg_entry *entry = qg_allocations_find(&allocations, QG_KIND_HANDLE, handle);
    bool last = entry && entry->refs == 1 && !entry->maps &&
                qg_allocations_remove(&allocations, QG_KIND_HANDLE, handle, out);
    pthread_mutex_unlock(&qg_allocation_lock);
    return last;
}

/* Under the lock. */
static bool remove_use(enum qg_kind kind, uint64_t key, struct qg_entry *mapping)
{
    if (!qg_allocations_remove(&allocations, kind, key, mapping))
        return false;
    struct qg_entry *entry = qg_allocations_find(&allocations, QG_KIND_HANDLE, mapping->owner);
    if (entry && entry->maps) {
        entry->maps--;
        maybe_gone(entry);
    }
    return true;
}

/* Adds a use of a handle, which keeps its memory: a mapping by its address, or a tie by its user
 * and place. If another handle is recorded there, its use was undone by a call that the shim does
 * not see. Mappings of uncharged memory are recorded with owner 0, since one call may unmap them
 * together with the mappings that follow. */
static void add_use(enum qg_kind kind, uint64_t key, uint64_t handle, uint64_t size, uint32_t span)
{
    struct qg_entry mapping = {.key = key, .size = size, .refs = span, .kind = (uint8_t)kind},
                    stale;
    pthread_mutex_lock(&qg_allocation_lock);
    mapping.owner = qg_allocations_find(&allocations, QG_KIND_HANDLE, handle) ? handle : 0;
    struct qg_entry *old = qg_allocations_find(&allocations, kind, key);
    if (old && old->owner == mapping.owner) {
        old->size = size;
        old->refs = span;
    } else if (mapping.owner || kind == QG_KIND_MAPPING) {
        remove_use(kind, key, &stale); /* may move entries */
        struct qg_entry *entry = qg_allocations_find(&allocations, QG_KIND_HANDLE, mapping.owner);
        if (entry)
            entry->maps++;
        qg_allocations_insert(&allocations, &mapping);
    }
    pthread_mutex_unlock(&qg_allocation_lock);
}

void qg_handle_map(uint64_t handle, uint64_t address, uint64_t size)
{
    add_use(QG_KIND_MAPPING, address, handle, size, 0);
}

void qg_handle_unmap(uint64_t address, uint64_t size)
{
    struct qg_entry mapping;
    pthread_mutex_lock(&qg_allocation_lock);
    for (uint64_t at = address; at - address < size; at += mapping.size)
        if (!remove_use(QG_KIND_MAPPING, at, &mapping) || !mapping.size)
            break;
    pthread_mutex_unlock(&qg_allocation_lock);
}

static uint64_t tie_key(uint64_t user, uint64_t place)
{
    return user * 31 + place * 0x9e3779b97f4a7c15u;
}

void qg_handle_tie(uint64_t handle, uint64_t user, uint64_t place, uint64_t span)
{
    add_use(QG_KIND_TIE, tie_key(user, place), handle, user, (uint32_t)(span / QG_TIE_UNIT));
}

uint64_t qg_handle_untie(uint64_t user, uint64_t place)
{
    struct qg_entry tie;
    pthread_mutex_lock(&qg_allocation_lock);
    bool was = remove_use(QG_KIND_TIE, tie_key(user, place), &tie);
    pthread_mutex_unlock(&qg_allocation_lock);
    return was ? (uint64_t)tie.refs * QG_TIE_UNIT : 0;
}

/* Removing a tie may remove its memory's entry, which moves other entries. So it repeats until a
 * whole pass finds none. */
static void free_ties(uint64_t user)
{
    struct qg_entry tie;
    bool freed;
    do {
        freed = false;
        for (size_t at = 0; allocations.slots && at <= allocations.mask;) {
            const struct qg_entry *entry = &allocations.slots[at];
            if (entry->kind == QG_KIND_TIE && entry->size == user)
                /* may move another entry here: read this slot again */
                freed |= remove_use(QG_KIND_TIE, entry->key, &tie);
            else
                at++;
        }
    } while (freed);
}

void qg_handle_free_ties(uint64_t user)
{
    pthread_mutex_lock(&qg_allocation_lock);
    free_ties(user);
    pthread_mutex_unlock(&qg_allocation_lock);
}

/* ---- contexts ---- */

/* A key that no live context has: handles are aligned addresses. */
static uint64_t ending(CUcontext context)
{
    return (uint64_t)(uintptr_t)context | 1;
}

static void change_owner(uint64_t from, uint64_t to)
{
    pthread_mutex_lock(&qg_allocation_lock);
    qg_allocations_change_owner(&allocations, from, to);
    pthread_mutex_unlock(&qg_allocation_lock);
}

void qg_memory_context_ends(CUcontext context)
{
    change_owner((uint64_t)(uintptr_t)context, ending(context));
}

void qg_memory_context_stays(CUcontext context)
{
    change_owner(ending(context), (uint64_t)(uintptr_t)context);
}

void qg_memory_context_gone(CUcontext context)
{
    struct qg_entry entry;
    size_t at = 0;
    pthread_mutex_lock(&qg_allocation_lock);
    while (qg_allocations_next_of(&allocations, ending(context), &at, &entry))
        entry_ended(&entry);
    pthread_mutex_unlock(&qg_allocation_lock);
}
