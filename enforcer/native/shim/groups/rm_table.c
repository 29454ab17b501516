/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of driver objects: clients, their devices and subdevices, channel groups, channels. The
 * maker of an object chooses its handle and may use it again. So each entry also has a serial
 * number that is never used again.
 *
 * The table is one mapping that a child of fork(2) sees as zeros. The child's copies of the
 * descriptors belong to its parent's clients. While the lock is held all signals are blocked, so
 * neither a signal handler nor a cancellation can interrupt its holder.
 */
#include "groups/rm_table.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/thread.h"

static struct rm_table *table; /* atomic; made at the first client */

static uint32_t hash_of(uint32_t client, uint32_t handle)
{
    return (uint32_t)((((uint64_t)client << 32 | handle) * 0x9e3779b97f4a7c15u) >> 40);
}

struct rm_table *rm_table(void)
{
    return __atomic_load_n(&table, __ATOMIC_ACQUIRE);
}

static struct rm_table *make_table(void)
{
    struct rm_table *now = rm_table();
    if (now)
        return now;
    size_t size = (sizeof(*now) + 4095) & ~(size_t)4095;
    void *fresh = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED)
        return NULL;
    if (madvise(fresh, size, MADV_WIPEONFORK) == 0 &&
        __atomic_compare_exchange_n(&table, &now, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return fresh;
    munmap(fresh, size);
    return now; /* another thread's; NULL on a kernel that cannot wipe: then nothing is watched */
}

/* ---- the lock ---- */

void rm_lock(struct rm_table *t, uint64_t *mask)
{
    uint32_t free = 0;
    qg_signals_block(mask);
    if (__atomic_compare_exchange_n(&t->lock, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    while (__atomic_exchange_n(&t->lock, 2, __ATOMIC_ACQUIRE))
        syscall(SYS_futex, &t->lock, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

void rm_unlock(struct rm_table *t, const uint64_t *mask)
{
    if (__atomic_exchange_n(&t->lock, 0, __ATOMIC_RELEASE) == 2)
        syscall(SYS_futex, &t->lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    qg_signals_restore(mask);
}

/* ---- entries; all under the lock ---- */

static uint32_t next_serial(struct rm_table *t)
{
    return ++t->serial ? t->serial : ++t->serial;
}

static void count_in_filter(struct rm_table *t, uint32_t client, uint32_t handle, int by)
{
    __atomic_fetch_add(&t->filter[hash_of(client, handle) % RM_FILTER], (uint16_t)by,
                       __ATOMIC_RELAXED);
}

static bool maybe_known(const struct rm_table *t, uint32_t client, uint32_t handle)
{
    return __atomic_load_n(&t->filter[hash_of(client, handle) % RM_FILTER], __ATOMIC_RELAXED) != 0;
}

struct rm_client *rm_client_of(struct rm_table *t, uint32_t handle)
{
    for (unsigned i = 0; i < RM_CLIENTS; i++)
        if (t->clients[i].serial && t->clients[i].handle == handle)
            return &t->clients[i];
    return NULL;
}

struct rm_object *rm_object_of(struct rm_table *t, uint32_t client, uint32_t handle)
{
    for (uint16_t at = t->heads[hash_of(client, handle) % RM_HEADS]; at;
         at = t->objects[at - 1].next)
        if (t->objects[at - 1].client == client && t->objects[at - 1].handle == handle)
            return &t->objects[at - 1];
    return NULL;
}

void rm_note_change(struct rm_table *t)
{
    __atomic_fetch_add(&t->changes, 1, __ATOMIC_SEQ_CST);
}

static void unlink_object(struct rm_table *t, struct rm_object *o)
{
    uint16_t *link = &t->heads[hash_of(o->client, o->handle) % RM_HEADS];
    while (*link != (uint16_t)(o - t->objects) + 1)
        link = &t->objects[*link - 1].next;
    *link = o->next;
    count_in_filter(t, o->client, o->handle, -1);
    memset(o, 0, sizeof(*o));
}

/* Removes an object with all objects below it, since the driver frees those as well. At most four
 * levels. */
static void remove_object(struct rm_table *t, struct rm_object *o)
{
    uint32_t client = o->client, handle = o->handle;
    bool leaf = o->kind == RM_CHANNEL || o->kind == RM_SUBDEVICE;
    unlink_object(t, o);
    for (unsigned i = 0; !leaf && i < t->used; i++)
        if (t->objects[i].serial && t->objects[i].client == client &&
            t->objects[i].parent == handle)
            remove_object(t, &t->objects[i]);
    rm_note_change(t);
}

static void remove_client(struct rm_table *t, struct rm_client *c)
{
    for (unsigned i = 0; i < t->used; i++)
        if (t->objects[i].serial && t->objects[i].client == c->handle)
            unlink_object(t, &t->objects[i]);
    if (c->fd < 0)
        __atomic_fetch_sub(&t->unreachable, 1, __ATOMIC_RELAXED);
    count_in_filter(t, c->handle, c->handle, -1);
    memset(c, 0, sizeof(*c));
    rm_note_change(t);
}

static void lost(struct rm_table *t, struct rm_client *c)
{
    if (c)
        c->lost = true;
    else
        t->lost = true;
    rm_note_change(t);
}

bool rm_file_of(int fd, struct qg_rm_file *file)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return false;
    *file = (struct qg_rm_file){.dev = st.st_dev, .rdev = st.st_rdev, .ino = st.st_ino};
    return true;
}

static void use_client(struct rm_table *t, struct rm_client *c, int fd)
{
    if (c->fd == fd)
        return;
    if (c->fd < 0) {
        __atomic_fetch_sub(&t->unreachable, 1, __ATOMIC_RELAXED);
        rm_note_change(t);
    }
    c->fd = fd;
    rm_file_of(fd, &c->file);
}

static struct rm_object *new_object(struct rm_table *t)
{
    for (unsigned i = 0; i < RM_OBJECTS; i++)
        if (!t->objects[i].serial) {
            if (i >= t->used)
                t->used = i + 1;
            return &t->objects[i];
        }
    return NULL;
}

/* ---- what the program did ---- */

static void add_client(struct rm_table *t, int fd, uint32_t handle)
{
    struct rm_client *c = rm_client_of(t, handle);
    if (c)
        /* its file was closed, and the driver gave the handle to another one */
        remove_client(t, c);
    for (unsigned i = 0; i < RM_CLIENTS && !c; i++)
        if (!t->clients[i].serial)
            c = &t->clients[i];
    for (unsigned i = 0; i < RM_CLIENTS && !c; i++)
        if (t->clients[i].fd < 0) {
            c = &t->clients[i];
            remove_client(t, c);
        }
    if (!c) {
        lost(t, NULL);
        return;
    }
    *c = (struct rm_client){.handle = handle, .serial = next_serial(t), .fd = fd};
    rm_file_of(fd, &c->file);
    count_in_filter(t, handle, handle, 1);
}

static enum rm_kind kind_of(uint32_t class_id)
{
    return class_id == RM_CLASS_DEVICE      ? RM_DEVICE
           : class_id == RM_CLASS_SUBDEVICE ? RM_SUBDEVICE
           : class_id == RM_CLASS_GROUP     ? RM_GROUP
           : RM_IS_CHANNEL(class_id)        ? RM_CHANNEL
                                            : RM_NOTHING;
}

static bool is_root(uint32_t class_id)
{
    return class_id == RM_CLASS_ROOT || class_id == RM_CLASS_ROOT_NON_PRIV ||
           class_id == RM_CLASS_ROOT_CLIENT;
}

static void add_object(struct rm_table *t, const struct rm_object *like)
{
    struct rm_client *c = rm_client_of(t, like->client);
    struct rm_object *o = rm_object_of(t, like->client, like->handle);
    if (o)
        /* it was missed: it was freed by a call other than the published one */
        remove_object(t, o);
    if (like->kind == RM_NOTHING || !c)
        /* without a client: it belongs to the parent, or was made before the shim observed calls */
        return;
    struct rm_object *parent = rm_object_of(t, like->client, like->parent);
    bool hangs = like->kind == RM_DEVICE ? like->parent == like->client : parent != NULL;
    o = hangs ? new_object(t) : NULL;
    if (!o) {
        lost(t, c);
        return;
    }
    uint16_t *head = &t->heads[hash_of(like->client, like->handle) % RM_HEADS];
    *o = *like;
    o->serial = next_serial(t);
    o->next = *head;
    *head = (uint16_t)((o - t->objects) + 1);
    count_in_filter(t, o->client, o->handle, 1);
    rm_note_change(t);
}

void qg_rm_allocated(int fd, uint32_t client, uint32_t parent, uint32_t object, uint32_t class_id,
                     uint32_t engine)
{
    uint64_t mask;
    enum rm_kind kind = kind_of(class_id);
    struct rm_table *t = is_root(class_id) ? make_table() : rm_table();
    if (!t || (!kind && !is_root(class_id) && !maybe_known(t, client, object)))
        return;
    rm_lock(t, &mask);
    if (is_root(class_id)) {
        add_client(t, fd, object);
    } else {
        struct rm_client *c = rm_client_of(t, client);
        struct rm_object like = {.client = client,
                                 .handle = object,
                                 .parent = parent,
                                 .engine = engine,
                                 .kind = kind,
                                 .card = QG_RM_CARD_UNKNOWN};
        if (c)
            use_client(t, c, fd);
        add_object(t, &like);
    }
    rm_unlock(t, &mask);
}

/* A second name for the same object. Both names of a group are reported, since acting twice on it
 * is the same as once. */
void qg_rm_duplicated(int fd, uint32_t client, uint32_t parent, uint32_t object,
                      uint32_t from_client, uint32_t from)
{
    uint64_t mask;
    struct rm_table *t = rm_table();
    if (!t || (!maybe_known(t, from_client, from) && !maybe_known(t, client, object)))
        return;
    rm_lock(t, &mask);
    struct rm_client *c = rm_client_of(t, client);
    struct rm_object *source = rm_object_of(t, from_client, from);
    struct rm_object like = {
        .client = client, .handle = object, .parent = parent, .card = QG_RM_CARD_UNKNOWN};
    if (source) {
        like.kind = source->kind;
        like.engine = source->engine;
        like.scheduled = source->scheduled;
        like.slice_us = source->slice_us;
    }
    if (c)
        use_client(t, c, fd);
    add_object(t, &like);
    rm_unlock(t, &mask);
}

void qg_rm_scheduled(int fd, uint32_t client, uint32_t object)
{
    uint64_t mask;
    struct rm_table *t = rm_table();
    if (!t || !maybe_known(t, client, object))
        return;
    rm_lock(t, &mask);
    struct rm_client *c = rm_client_of(t, client);
    struct rm_object *o = rm_object_of(t, client, object);
    if (c)
        use_client(t, c, fd);
    if (o && o->kind == RM_CHANNEL)
        o = rm_object_of(t, client, o->parent);
    if (o && o->kind == RM_GROUP) {
        o->scheduled = true;
        /* also if it was scheduled before: a process that stopped it must know that it runs again
         */
        rm_note_change(t);
    }
    rm_unlock(t, &mask);
}

void qg_rm_not_understood(void)
{
    uint64_t mask;
    struct rm_table *t = make_table();
    if (!t)
        return;
    rm_lock(t, &mask);
    if (!t->lost)
        lost(t, NULL);
    rm_unlock(t, &mask);
}

uint32_t qg_rm_freeing(uint32_t client, uint32_t object)
{
    uint64_t mask;
    uint32_t serial = 0;
    struct rm_table *t = rm_table();
    if (!t || !maybe_known(t, client, object))
        return 0;
    rm_lock(t, &mask);
    struct rm_client *c = client == object ? rm_client_of(t, client) : NULL;
    struct rm_object *o = rm_object_of(t, client, object);
    if (c)
        serial = c->serial;
    else if (o)
        serial = o->serial;
    if (o)
        o->dying = true;
    rm_unlock(t, &mask);
    return serial;
}

/* Between the driver's answer and this point another thread may have got the same handle. The
 * serial number differs then. */
static void settle(uint32_t client, uint32_t object, uint32_t serial, bool gone)
{
    uint64_t mask;
    struct rm_table *t = rm_table();
    if (!t || !serial)
        return;
    rm_lock(t, &mask);
    struct rm_client *c = client == object ? rm_client_of(t, client) : NULL;
    struct rm_object *o = rm_object_of(t, client, object);
    if (c && c->serial == serial && gone)
        remove_client(t, c);
    else if (o && o->serial == serial && gone)
        remove_object(t, o);
    else if (o && o->serial == serial)
        o->dying = false;
    rm_unlock(t, &mask);
}

void qg_rm_freed(uint32_t client, uint32_t object, uint32_t serial)
{
    settle(client, object, serial, true);
}

void qg_rm_not_freed(uint32_t client, uint32_t object, uint32_t serial)
{
    settle(client, object, serial, false);
}

void qg_rm_used(int fd, uint32_t client)
{
    uint64_t mask;
    struct rm_table *t = rm_table();
    if (!t || !__atomic_load_n(&t->unreachable, __ATOMIC_RELAXED) ||
        !maybe_known(t, client, client))
        return;
    rm_lock(t, &mask);
    struct rm_client *c = rm_client_of(t, client);
    if (c && c->fd < 0)
        use_client(t, c, fd);
    rm_unlock(t, &mask);
}
