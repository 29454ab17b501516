/* SPDX-License-Identifier: Apache-2.0
 *
 * What the teller sees of the table: one device of one client at a time, copied, so that nothing is
 * held while the driver or the arbiter is spoken to.
 */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "groups/rm_table.h"

#define PRIVATE_FD 200 /* as register.c: our numbers are high */

uint32_t qg_rm_changes(void)
{
    struct rm_table *t = rm_table();
    return t ? __atomic_load_n(&t->changes, __ATOMIC_SEQ_CST) : 0;
}

/* A group is told when the program has scheduled it: to continue a group is to schedule it, which
 * the driver refuses before the group is complete. */
static void view_child(const struct rm_table *t, const struct rm_object *o, struct qg_rm_view *view)
{
    struct qg_groups *told = &view->told;
    (void)t;
    if (o->kind == RM_SUBDEVICE && !told->subdevice)
        told->subdevice = o->handle;
    if (o->kind != RM_GROUP || !o->scheduled || o->dying)
        return;
    if (told->ngroups == QG_MAX_GROUPS) {
        told->flags |= QG_GROUPS_LOST;
        return;
    }
    view->group_serial[told->ngroups] = o->serial;
    view->slice_us[told->ngroups] = o->slice_us;
    told->groups[told->ngroups].handle = o->handle;
    told->groups[told->ngroups++].engine = o->engine;
}

static bool lists_group(const struct qg_groups *told, uint32_t handle)
{
    for (uint32_t i = 0; i < told->ngroups; i++)
        if (told->groups[i].handle == handle)
            return true;
    return false;
}

static void view_channel(const struct rm_object *o, struct qg_rm_view *view)
{
    struct qg_groups *told = &view->told;
    bool alone = o->parent == told->device; /* in a group of its own that has no handle */
    if (o->kind != RM_CHANNEL || o->dying || (!alone && !lists_group(told, o->parent)))
        return;
    if (told->nchannels == QG_MAX_CHANNELS) {
        told->flags |= QG_GROUPS_MORE_CHANNELS;
        return;
    }
    told->channels[told->nchannels].handle = o->handle;
    told->channels[told->nchannels++].group = alone ? 0 : o->parent;
}

static void view_device(struct rm_table *t, const struct rm_object *device, struct qg_rm_view *view)
{
    const struct rm_client *c = rm_client_of(t, device->client);
    memset(view, 0, sizeof(*view));
    view->device_serial = device->serial;
    view->client_serial = c->serial;
    view->fd = c->fd;
    view->file = c->file;
    view->card = device->card;
    view->told.client = device->client;
    view->told.device = device->handle;
    view->told.flags = c->lost || t->lost ? QG_GROUPS_LOST : 0;
    for (unsigned i = 0; i < t->used; i++)
        if (t->objects[i].serial && t->objects[i].client == device->client &&
            t->objects[i].parent == device->handle)
            view_child(t, &t->objects[i], view);
    for (unsigned i = 0; i < t->used; i++)
        if (t->objects[i].serial && t->objects[i].client == device->client)
            view_channel(&t->objects[i], view);
}

bool qg_rm_next(unsigned *at, struct qg_rm_view *view)
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
            view_device(t, o, view);
    }
    rm_unlock(t, &mask);
    return found;
}

void qg_rm_set_card(const struct qg_rm_view *view, int card)
{
    uint64_t mask;
    struct rm_table *t = rm_table();
    if (!t)
        return;
    rm_lock(t, &mask);
    struct rm_object *o = rm_object_of(t, view->told.client, view->told.device);
    if (o && o->serial == view->device_serial)
        o->card = (int8_t)card;
    rm_unlock(t, &mask);
}

void qg_rm_set_slice(const struct qg_rm_view *view, unsigned group, uint64_t us)
{
    uint64_t mask;
    struct rm_table *t = rm_table();
    if (!t)
        return;
    rm_lock(t, &mask);
    struct rm_object *o = rm_object_of(t, view->told.client, view->told.groups[group].handle);
    if (o && o->serial == view->group_serial[group])
        o->slice_us = us;
    rm_unlock(t, &mask);
}

void qg_rm_unreachable(const struct qg_rm_view *view)
{
    uint64_t mask;
    struct rm_table *t = rm_table();
    if (!t)
        return;
    rm_lock(t, &mask);
    struct rm_client *c = rm_client_of(t, view->told.client);
    if (c && c->serial == view->client_serial && c->fd == view->fd && c->fd >= 0) {
        c->fd = -1;
        __atomic_fetch_add(&t->unreachable, 1, __ATOMIC_RELAXED);
        rm_note_change(t);
    }
    rm_unlock(t, &mask);
}

/* A duplicate is looked at, used and closed: the program may close or replace its number at any
 * moment. */
int qg_rm_borrow(const struct qg_rm_view *view)
{
    struct qg_rm_file now;
    if (view->fd < 0)
        return -1;
    int fd = fcntl(view->fd, F_DUPFD_CLOEXEC, PRIVATE_FD);
    if (fd < 0)
        fd = fcntl(view->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (rm_file_of(fd, &now) && now.dev == view->file.dev && now.ino == view->file.ino &&
        now.rdev == view->file.rdev)
        return fd;
    close(fd);
    return -1;
}
