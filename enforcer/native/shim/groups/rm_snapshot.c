/* SPDX-License-Identifier: Apache-2.0
 *
 * Snapshots of the table for the reporter: one device of one client at a time, copied. So no lock
 * is held while the driver or the arbiter is called.
 */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "groups/rm_table.h"

/* Lowest number of our descriptors, as FIRST_FD in pages.c: programs rarely use it. */
#define PRIVATE_FD 200

uint32_t qg_rm_changes(void)
{
    struct rm_table *t = rm_table();
    return t ? __atomic_load_n(&t->changes, __ATOMIC_SEQ_CST) : 0;
}

/* A group is reported when the program has scheduled it. To continue a group is to schedule it,
 * which the driver refuses before the group is complete. */
static void snapshot_child(const struct rm_table *t, const struct rm_object *o,
                           struct qg_rm_snapshot *snapshot)
{
    struct qg_groups *reported = &snapshot->reported;
    (void)t;
    if (o->kind == RM_SUBDEVICE && !reported->subdevice)
        reported->subdevice = o->handle;
    if (o->kind != RM_GROUP || !o->scheduled || o->dying)
        return;
    if (reported->ngroups == QG_MAX_GROUPS) {
        reported->flags |= QG_GROUPS_LOST;
        return;
    }
    snapshot->group_serial[reported->ngroups] = o->serial;
    snapshot->slice_us[reported->ngroups] = o->slice_us;
    reported->groups[reported->ngroups].handle = o->handle;
    reported->groups[reported->ngroups++].engine = o->engine;
}

static bool lists_group(const struct qg_groups *reported, uint32_t handle)
{
    for (uint32_t i = 0; i < reported->ngroups; i++)
        if (reported->groups[i].handle == handle)
            return true;
    return false;
}

static void snapshot_channel(const struct rm_object *o, struct qg_rm_snapshot *snapshot)
{
    struct qg_groups *reported = &snapshot->reported;
    bool alone = o->parent == reported->device; /* in a group of its own that has no handle */
    if (o->kind != RM_CHANNEL || o->dying || (!alone && !lists_group(reported, o->parent)))
        return;
    if (reported->nchannels == QG_MAX_CHANNELS) {
        reported->flags |= QG_GROUPS_MORE_CHANNELS;
        return;
    }
    reported->channels[reported->nchannels].handle = o->handle;
    reported->channels[reported->nchannels++].group = alone ? 0 : o->parent;
}

static void snapshot_device(struct rm_table *t, const struct rm_object *device,
                            struct qg_rm_snapshot *snapshot)
{
    const struct rm_client *c = rm_client_of(t, device->client);
    memset(snapshot, 0, sizeof(*snapshot));
    snapshot->device_serial = device->serial;
    snapshot->client_serial = c->serial;
    snapshot->fd = c->fd;
    snapshot->file = c->file;
    snapshot->card = device->card;
    snapshot->reported.client = device->client;
    snapshot->reported.device = device->handle;
    snapshot->reported.flags = c->lost || t->lost ? QG_GROUPS_LOST : 0;
    for (unsigned i = 0; i < t->used; i++)
        if (t->objects[i].serial && t->objects[i].client == device->client &&
            t->objects[i].parent == device->handle)
            snapshot_child(t, &t->objects[i], snapshot);
    for (unsigned i = 0; i < t->used; i++)
        if (t->objects[i].serial && t->objects[i].client == device->client)
            snapshot_channel(&t->objects[i], snapshot);
}

bool qg_rm_next(unsigned *at, struct qg_rm_snapshot *snapshot)
{
    uint64_t mask;
    bool found = false;
    struct rm_table *t = rm_table();
    if (!t)
        return false;
    rm_lock(t, &mask);
    for (; *at < t->used && !found; ++*at) {
        const struct rm_object *o = &t->objects[*at];
        found = o->serial && o->kind == RM_DEVICE && !o->dying;
        if (found)
            snapshot_device(t, o, snapshot);
    }
    rm_unlock(t, &mask);
    return found;
}

void qg_rm_set_card(const struct qg_rm_snapshot *snapshot, int card)
{
    uint64_t mask;
    struct rm_table *t = rm_table();
    if (!t)
        return;
    rm_lock(t, &mask);
    struct rm_object *o = rm_object_of(t, snapshot->reported.client, snapshot->reported.device);
    if (o && o->serial == snapshot->device_serial)
        o->card = (int8_t)card;
    rm_unlock(t, &mask);
}

void qg_rm_set_slice(const struct qg_rm_snapshot *snapshot, unsigned group, uint64_t us)
{
    uint64_t mask;
    struct rm_table *t = rm_table();
    if (!t)
        return;
    rm_lock(t, &mask);
    struct rm_object *o =
        rm_object_of(t, snapshot->reported.client, snapshot->reported.groups[group].handle);
    if (o && o->serial == snapshot->group_serial[group])
        o->slice_us = us;
    rm_unlock(t, &mask);
}

void qg_rm_unreachable(const struct qg_rm_snapshot *snapshot)
{
    uint64_t mask;
    struct rm_table *t = rm_table();
    if (!t)
        return;
    rm_lock(t, &mask);
    struct rm_client *c = rm_client_of(t, snapshot->reported.client);
    if (c && c->serial == snapshot->client_serial && c->fd == snapshot->fd && c->fd >= 0) {
        c->fd = -1;
        __atomic_fetch_add(&t->unreachable, 1, __ATOMIC_RELAXED);
        rm_note_change(t);
    }
    rm_unlock(t, &mask);
}

/* A duplicate is checked, used and closed, since the program may close or replace its number at any
 * moment. */
int qg_rm_borrow(const struct qg_rm_snapshot *snapshot)
{
    struct qg_rm_file now;
    if (snapshot->fd < 0)
        return -1;
    int fd = fcntl(snapshot->fd, F_DUPFD_CLOEXEC, PRIVATE_FD);
    if (fd < 0)
        fd = fcntl(snapshot->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (rm_file_of(fd, &now) && now.dev == snapshot->file.dev && now.ino == snapshot->file.ino &&
        now.rdev == snapshot->file.rdev)
        return fd;
    close(fd);
    return -1;
}
