/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of the driver's objects, for the two files that work on it: rm_table.c keeps it,
 * rm_snapshot.c reads it.
 */
#ifndef QG_SHIM_RM_TABLE_H
#define QG_SHIM_RM_TABLE_H

#include "groups/rm.h"

/* Clients of the driver in one process. Chosen, not measured: CUDA makes one or two. */
#define RM_CLIENTS 16u
/* Objects that are followed. Chosen, not measured; beyond it, the reports say that some are lost.
 */
#define RM_OBJECTS 1024u
/* Hash buckets, half as many as objects. Chosen, not measured. */
#define RM_HEADS 512u
/* Counters of the filter of handles, 8 KiB. Chosen, not measured: four per object, so few foreign
 * handles share one. */
#define RM_FILTER 4096u

enum rm_kind { RM_NOTHING, RM_DEVICE, RM_SUBDEVICE, RM_GROUP, RM_CHANNEL };

struct rm_client {
    uint32_t handle, serial; /* serial 0: not in use */
    int fd;
    bool lost; /* something of it could not be followed */
    struct qg_rm_file file;
};

struct rm_object {
    uint32_t client, handle, parent, engine, serial; /* serial 0: not in use */
    uint16_t next;                                   /* of the same hash, + 1 */
    uint8_t kind;
    bool scheduled, dying;
    int8_t card;
    uint64_t slice_us;
};

struct rm_table {
    uint32_t lock; /* 0 free, 1 held, 2 held and a thread sleeps */
    uint32_t serial;
    uint32_t changes;     /* atomic */
    uint32_t unreachable; /* atomic: number of clients whose descriptor was lost */
    bool lost;            /* an object of an unknown client could not be followed */
    unsigned used;        /* entries of objects ever used */
    uint16_t heads[RM_HEADS];
    /* atomic: objects and clients per hash, so that most handles are known as foreign at once */
    uint16_t filter[RM_FILTER];
    struct rm_client clients[RM_CLIENTS];
    struct rm_object objects[RM_OBJECTS];
};

/* NULL before the first client. The next four under its lock, but the first two. */
struct rm_table *rm_table(void);
void rm_lock(struct rm_table *t, uint64_t *mask);
void rm_unlock(struct rm_table *t, const uint64_t *mask);
struct rm_client *rm_client_of(struct rm_table *t, uint32_t handle);
struct rm_object *rm_object_of(struct rm_table *t, uint32_t client, uint32_t handle);
void rm_note_change(struct rm_table *t);
bool rm_file_of(int fd, struct qg_rm_file *file);

#endif
