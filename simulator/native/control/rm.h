/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated driver's resource manager: what programs make and command by ioctl(2) on the
 * control device, in the layouts of abi/qgpu_rm.h. An open file of the device owns clients, a
 * client a tree of objects. Only the file that made a client may use it, even by a
 * descriptor that was passed on. docs/specs/simulator.md says what is modelled.
 */
#ifndef QGPU_SIM_RM_H
#define QGPU_SIM_RM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpu.h"
#include "gpu_fuse.h"
#include "qgpu_rm.h"

#define RM_MAX_FILES   4096u
#define RM_MAX_CLIENTS 64u    /* of a file */
#define RM_MAX_OBJECTS 16384u /* of a client */
#define RM_PARAMS      1024u  /* the longest parameters of a command */
#define RM_CLIENT_BASE 0xc1d00000u
#define RM_HANDLE_BASE 0xcaf00000u /* of objects whose handle the driver chooses */

struct rm_object {
    struct rm_object *next; /* of the client; parents come after their children */
    struct rm_object *parent;
    struct gpu_card *card;  /* of devices and what is below them */
    struct rm_group *group; /* of groups and channels */
    uint32_t handle, class_id;
    bool disabled; /* a channel */
};

struct rm_client {
    struct rm_client *next; /* of the file */
    struct rm_file *file;
    struct rm_object root; /* the client itself; its handle names both */
    struct rm_object *objects;
    uint32_t nobjects, next_handle;
};

struct rm_file {
    struct rm_file *next;
    uint64_t fh; /* also its name in the log: counted from 1 */
    /* the process that it was made for; NULL: it is gone, or the file was reopened by path */
    struct gpu_conn *conn;
    struct rm_client *clients;
    uint32_t nclients;
};

/* what a call that waits is waiting for: its turn; the end of its effect */
enum rm_phase { RM_ARRIVED, RM_EXECUTED };

struct rm_call {
    struct rm_call *next;
    struct gpu_ioctl ioctl;
    enum rm_phase phase;
    bool hangs, waited;     /* waited: for its turn */
    int memory;             /* then: of the caller */
    uint32_t caller, owner; /* processes: that called; that the file was made for */
    uint32_t status;
    /* until: end of the effect; deadline: then the answer is RM_TIMEOUT */
    uint64_t due, until, deadline;
    uint32_t waits[RM_MAX_DISABLED]; /* contexts that have to leave their engines first */
    uint32_t nwaits;
    uint32_t params_size;
    _Alignas(8) uint8_t params[RM_PARAMS];
};

enum rm_fault_kind {
    RM_FAULT_NONE,
    RM_FAULT_STATUS,
    RM_FAULT_ERRNO,
    RM_FAULT_DELAY,
    RM_FAULT_HANG
};
struct rm_fault {
    char call[SIM_CALL_LEN]; /* "rm.schedule"; "rm.*" any */
    enum rm_fault_kind kind;
    uint64_t value;
    int64_t left; /* negative: until it is taken away */
    uint32_t pid; /* of the caller or of the file's owner; 0: any */
};

#define RM_FAULTS 16u
struct rm {
    struct gpu_fuse fuse;
    struct rm_file *files;
    struct rm_call *calls;  /* that wait */
    struct gpu_conn *asked; /* for whom the opener opens a file now; NULL: he is gone */
    bool opening;
    struct rm_fault faults[RM_FAULTS];
    uint64_t next_fh, next_group;
    uint32_t next_client, nfiles;
    /* answers the process that asked for a file; -1: there is none */
    void (*answer)(struct gpu_conn *conn, int fd);
    int log;
    char why[160]; /* there is no control device */
};

/* rm_object.c */
/* NULL: not of this file */
struct rm_client *rm_client_find(const struct rm_file *file, uint32_t handle);
struct rm_client *rm_client_any(const struct gpu *gpu, uint32_t handle); /* of any file */
struct rm_object *rm_object_find(struct rm_client *client, uint32_t handle);
uint32_t rm_alloc_client(struct gpu *gpu, struct rm_file *file, uint32_t *handle);
uint32_t rm_alloc_object(struct gpu *gpu, struct rm_client *client, uint32_t parent,
                         uint32_t *handle, uint32_t class_id, const void *params, uint32_t size);
uint32_t rm_dup_object(struct rm_client *client, uint32_t parent, uint32_t *handle,
                       struct rm_client *from, uint32_t object);
uint32_t rm_free_object(struct rm_client *client, uint32_t handle);
void rm_free_file(struct gpu *gpu, struct rm_file *file);

/* rm_group.c: the effect on the model */
bool rm_group_runs(const struct rm_group *group);
void rm_group_apply(struct rm_group *group);
void rm_group_slice(struct rm_group *group, uint64_t us);
void rm_group_gone(struct rm_group *group);
bool rm_bind(struct gpu_ctx *ctx, struct rm_file *file, uint32_t client,
             const uint32_t groups[MODEL_ENGINES]);

/* rm_control.c: a command; a status. call: takes what has to be waited for */
uint32_t rm_control(struct gpu *gpu, struct rm_client *client, const struct rm_control *control,
                    struct rm_call *call);
bool rm_known_size(uint32_t cmd, uint32_t *size);
/* executed by the card's own processor, and takes --control-us */
bool rm_reaches_card(uint32_t cmd);

/* rm_call.c: the calls themselves */
/* also true when there is no control device */
bool rm_open(struct gpu *gpu, void (*answer)(struct gpu_conn *conn, int fd));
uint64_t rm_next(const struct gpu *gpu); /* when the first waiting call is due */
void rm_settle(struct gpu *gpu, uint64_t now);
void rm_request_file(struct gpu_conn *conn);
void rm_forget(struct gpu_conn *conn); /* it ends */

/* rm_fault.c */
bool rm_wants_caller(const struct rm *rm); /* a log or a fault needs the caller's pid */
bool rm_fault_add(struct rm *rm, const struct rm_fault *fault);
void rm_fault_clear(struct gpu *gpu, uint32_t pid);
const struct rm_fault *rm_fault_take(struct rm *rm, const char *name, uint32_t caller,
                                     uint32_t owner);
const char *rm_call_name(const struct gpu_ioctl *ioctl);
bool rm_call_exists(const char *name); /* or it is "rm.*" */

/* rm_log.c */
bool rm_log_open(struct rm *rm, const char *path);
void rm_log(const struct rm *rm, const struct rm_call *call, uint32_t status, int error);

#endif
