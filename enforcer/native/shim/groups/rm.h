/* SPDX-License-Identifier: Apache-2.0
 *
 * The channel groups of this process, as its own control calls told them: rm_ioctl.c hears the
 * calls, rm_table.c keeps what they made, rm_report.c tells the arbiter and acts, rm_contexts.c is
 * what the hooks of contexts need. docs/specs/shim/channel-groups.md.
 */
#ifndef QG_SHIM_RM_H
#define QG_SHIM_RM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "qgpu_abi.h"
#include "qgpu_rm.h"

/* ---- rm_table.c: callable everywhere, also from a signal handler; nothing here allocates or waits
 * ---- */

struct qg_rm_file { /* an open control device, as the program's descriptor table knows it */
    dev_t dev, rdev;
    ino_t ino;
};

/* or an index into qg_cards */
enum qg_rm_card { QG_RM_CARD_UNKNOWN = -2, QG_RM_CARD_FOREIGN = -1 };

/* One device of one client, and what lies below it. */
struct qg_rm_view {
    uint32_t client_serial, device_serial; /* handles are used again, these are not */
    /* the number by which the program last used the client; -1: none */
    int fd;
    struct qg_rm_file file;
    int card;              /* enum qg_rm_card */
    struct qg_groups told; /* all but head, job and UUID */
    uint32_t group_serial[QG_MAX_GROUPS];
    uint64_t slice_us[QG_MAX_GROUPS]; /* before anybody changed it; 0: not asked yet */
};

/* What the program did, after the driver said yes. */
void qg_rm_allocated(int fd, uint32_t client, uint32_t parent, uint32_t object, uint32_t class_id,
                     uint32_t engine);
void qg_rm_duplicated(int fd, uint32_t client, uint32_t parent, uint32_t object,
                      uint32_t from_client, uint32_t from);
void qg_rm_scheduled(int fd, uint32_t client, uint32_t object);
void qg_rm_not_understood(void); /* a call of a size that is not the published one */

/* Around a FREE: its number before the call (0: not ours), and what came of it. */
uint32_t qg_rm_freeing(uint32_t client, uint32_t object);
void qg_rm_freed(uint32_t client, uint32_t object, uint32_t serial);
void qg_rm_not_freed(uint32_t client, uint32_t object, uint32_t serial);

/* The program uses this client by this number. */
void qg_rm_used(int fd, uint32_t client);

/* The device at *at or behind it, and in *at where to go on. False: there is none. */
bool qg_rm_next(unsigned *at, struct qg_rm_view *view);
void qg_rm_set_card(const struct qg_rm_view *view, int card);
void qg_rm_set_slice(const struct qg_rm_view *view, unsigned group, uint64_t us);
void qg_rm_unreachable(const struct qg_rm_view *view); /* its descriptor is not what it was */

/* Rises with each change that an arbiter may want to know. */
uint32_t qg_rm_changes(void);

/* A private descriptor of the client's file, for one use; -1: the program closed it. To be closed
 * by the caller. */
int qg_rm_borrow(const struct qg_rm_view *view);

/* ---- rm_ioctl.c, rm_import.c ---- */

/* off: this process is not governed, and all calls pass unseen */
void qg_rm_watch(bool on);
/* its calls of ioctl() go through ours, however we were loaded */
void qg_rm_driver_opened(void *library);

/* ---- rm_report.c ---- */

void qg_rm_changed(void); /* wakes the teller */

/* register.c tells: a connection on which all cards are registered, and its end. */
void qg_rm_connected(int sock, dev_t dev, ino_t ino);
void qg_rm_disconnected(void);
void qg_rm_received(const void *message, size_t size); /* whatever the arbiter sends unasked */
void qg_rm_look(void);                                 /* at intervals: a lease may have run out */

void qg_rm_after_fork(void);

/* ---- rm_contexts.c ---- */

struct qg_card;
bool qg_rm_any(void); /* somebody wants to know of contexts at all */
/* a context is about to be made; then the next, with the answer and the result */
bool qg_rm_making(void);
/* waits shortly until the arbiter knows its groups */
void qg_rm_context_made(bool counted, bool made);
/* a context of it is about to be destroyed: nothing of it is stopped any more */
bool qg_rm_leave(struct qg_card *card);
void qg_rm_left(struct qg_card *card); /* it was; only after a true qg_rm_leave() */

#endif
