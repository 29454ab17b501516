/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients and their objects: handles, parents, subtrees, duplicates.
 */
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "rm.h"

/* Classes that carry no meaning here; programs make and free them all the time. */
static const uint32_t plain_classes[] = {0x0005 /* event */,
                                         0x003e /* system memory */,
                                         0x0040 /* local memory */,
                                         0x0070 /* virtual memory */,
                                         0x50a0 /* virtual memory */,
                                         0x90f1 /* address space */,
                                         0x9067 /* subcontext */,
                                         0xc661 /* usermode */,
                                         0xc8b5 /* copies of Hopper */,
                                         0xcbc0 /* compute of Hopper */};

struct rm_client *rm_client_find(const struct rm_file *file, uint32_t handle)
{
    struct rm_client *client = file->clients;
    while (client && client->root.handle != handle)
        client = client->next;
    return client;
}

struct rm_client *rm_client_any(const struct gpu *gpu, uint32_t handle)
{
    struct rm_client *client = NULL;
    for (const struct rm_file *file = gpu->rm->files; file && !client; file = file->next)
        client = rm_client_find(file, handle);
    return client;
}

struct rm_object *rm_object_find(struct rm_client *client, uint32_t handle)
{
    if (handle == client->root.handle)
        return &client->root;
    struct rm_object *object = client->objects;
    while (object && object->handle != handle)
        object = object->next;
    return object;
}

uint32_t rm_alloc_client(struct gpu *gpu, struct rm_file *file, uint32_t *handle)
{
    struct rm *rm = gpu->rm;
    if (*handle) /* the driver alone chooses handles of clients */
        return RM_BAD_CLIENT;
    if (file->nclients >= RM_MAX_CLIENTS)
        return RM_NO_RESOURCES;
    struct rm_client *client = calloc(1, sizeof *client);
    if (!client)
        return RM_NO_RESOURCES;
    do
        *handle = RM_CLIENT_BASE + (rm->next_client++ & 0xfffffu);
    while (rm_client_any(gpu, *handle));
    client->root = (struct rm_object){.handle = *handle, .class_id = RM_CLASS_ROOT_CLIENT};
    client->file = file;
    client->next_handle = RM_HANDLE_BASE;
    client->next = file->clients;
    file->clients = client;
    file->nclients++;
    return RM_OK;
}

/* ---- making ---- */

static uint32_t choose_handle(struct rm_client *client, uint32_t *handle)
{
    if (*handle)
        return rm_object_find(client, *handle) ? RM_DUPLICATE_NAME : RM_OK;
    do
        *handle = ++client->next_handle;
    while (rm_object_find(client, *handle));
    return RM_OK;
}

static uint32_t add(struct rm_client *client, const struct rm_object *what, uint32_t *handle)
{
    uint32_t status = choose_handle(client, handle);
    if (status)
        return status;
    struct rm_object *object = client->nobjects < RM_MAX_OBJECTS ? malloc(sizeof *object) : NULL;
    if (!object)
        return RM_NO_RESOURCES;
    *object = *what;
    object->handle = *handle;
    object->next = client->objects;
    client->objects = object;
    client->nobjects++;
    return RM_OK;
}

static unsigned engines_of(uint32_t engine)
{
    if (engine <= RM_ENGINE_GRAPHICS_LAST)
        return 1u << ENG_COMPUTE;
    return engine > RM_ENGINE_COPY9         ? 0
           : (engine - RM_ENGINE_COPY0) % 2 ? 1u << ENG_DTOH
                                            : 1u << ENG_HTOD;
}

static uint32_t make_group(struct gpu *gpu, struct rm_object *object,
                           const struct rm_group_params *params, uint32_t size)
{
    if (object->parent->class_id != RM_CLASS_DEVICE)
        return RM_BAD_PARENT;
    if (size != sizeof *params)
        return RM_BAD_PARAMS;
    if (params->engine > RM_ENGINE_COPY9)
        return RM_BAD_ARGUMENT;
    struct rm_group *group = calloc(1, sizeof *group);
    if (!group)
        return RM_NO_RESOURCES;
    *group = (struct rm_group){.card = object->card,
                               .id = (uint32_t)gpu->rm->next_group++,
                               .engine = params->engine,
                               .engines = engines_of(params->engine),
                               .objects = 1,
                               .slice_us = gpu->config.params.slice_ns / 1000};
    object->group = group;
    return RM_OK;
}

static uint32_t make_device(struct gpu *gpu, struct rm_object *object,
                            const struct rm_device_params *params, uint32_t size)
{
    if (object->parent->parent)
        return RM_BAD_PARENT;
    if (size != sizeof *params)
        return RM_BAD_PARAMS;
    if (params->device >= gpu->config.cards)
        return RM_BAD_ARGUMENT;
    object->card = &gpu->cards[params->device];
    return RM_OK;
}

static uint32_t make(struct gpu *gpu, struct rm_object *object, const void *params, uint32_t size)
{
    if (object->class_id == RM_CLASS_DEVICE)
        return make_device(gpu, object, params, size);
    if (object->class_id == RM_CLASS_SUBDEVICE)
        return object->parent->class_id == RM_CLASS_DEVICE ? RM_OK : RM_BAD_PARENT;
    if (object->class_id == RM_CLASS_GROUP)
        return make_group(gpu, object, params, size);
    if (RM_IS_CHANNEL(object->class_id)) {
        object->group = object->parent->class_id == RM_CLASS_GROUP ? object->parent->group : NULL;
        return object->group ? RM_OK : RM_BAD_PARENT;
    }
    for (unsigned i = 0; i < sizeof plain_classes / sizeof *plain_classes; i++)
        if (object->class_id == plain_classes[i])
            return RM_OK;
    return RM_BAD_CLASS;
}

static void drop_group(struct rm_group *group)
{
    if (--group->objects)
        return;
    rm_group_gone(group);
    free(group);
}

uint32_t rm_alloc_object(struct gpu *gpu, struct rm_client *client, uint32_t parent,
                         uint32_t *handle, uint32_t class_id, const void *params, uint32_t size)
{
    struct rm_object object = {.parent = rm_object_find(client, parent), .class_id = class_id};
    if (!object.parent)
        return RM_BAD_PARENT;
    object.card = object.parent->card;
    uint32_t status = make(gpu, &object, params, size);
    if (!status) {
        status = add(client, &object, handle);
        if (status && class_id == RM_CLASS_GROUP)
            drop_group(object.group);
    }
    if (!status && RM_IS_CHANNEL(class_id)) {
        object.group->channels++;
        rm_group_apply(object.group);
    }
    return status;
}

uint32_t rm_dup_object(struct rm_client *client, uint32_t parent, uint32_t *handle,
                       struct rm_client *from, uint32_t source)
{
    const struct rm_object *original = rm_object_find(from, source);
    struct rm_object object = {.parent = rm_object_find(client, parent)};
    if (!original)
        return RM_NOT_FOUND;
    if (!object.parent)
        return RM_BAD_PARENT;
    if (RM_IS_CHANNEL(original->class_id) || !original->parent)
        return RM_NOT_SUPPORTED;
    if (original->card && object.parent->card && original->card != object.parent->card)
        return RM_BAD_PARENT;
    object.class_id = original->class_id;
    object.card = original->card;
    object.group = original->group;
    uint32_t status = add(client, &object, handle);
    if (!status && object.group)
        object.group->objects++;
    return status;
}

/* ---- freeing ---- */

static void release(struct rm_client *client, struct rm_object *object)
{
    struct rm_group *group = object->group;
    client->nobjects--;
    if (group && RM_IS_CHANNEL(object->class_id)) {
        group->channels--;
        group->disabled -= object->disabled;
        rm_group_apply(group);
    } else if (group) {
        drop_group(group);
    }
    free(object);
}

static bool below(const struct rm_object *object, const struct rm_object *top)
{
    while (object && object != top)
        object = object->parent;
    return object == top;
}

/* Everything below top and, unless it is the client itself, top. Children come before their parents
 * in the list. */
static void free_tree(struct rm_client *client, const struct rm_object *top)
{
    for (struct rm_object **link = &client->objects, *object; (object = *link);) {
        if (!below(object, top)) {
            link = &object->next;
            continue;
        }
        *link = object->next;
        bool last = object == top;
        release(client, object);
        if (last)
            return;
    }
}

static void free_client(struct rm_client *client)
{
    struct rm_client **link = &client->file->clients;
    free_tree(client, &client->root);
    while (*link != client)
        link = &(*link)->next;
    *link = client->next;
    client->file->nclients--;
    free(client);
}

uint32_t rm_free_object(struct rm_client *client, uint32_t handle)
{
    const struct rm_object *object = rm_object_find(client, handle);
    if (!object)
        return RM_NOT_FOUND;
    if (object == &client->root)
        free_client(client);
    else
        free_tree(client, object);
    return RM_OK;
}

void rm_free_file(struct gpu *gpu, struct rm_file *file)
{
    struct rm_file **link = &gpu->rm->files;
    while (file->clients)
        free_client(file->clients);
    while (*link != file)
        link = &(*link)->next;
    *link = file->next;
    gpu->rm->nfiles--;
    free(file);
}
