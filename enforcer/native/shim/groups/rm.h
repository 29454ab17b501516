/* SPDX-License-Identifier: Apache-2.0
 *
 * The channel groups of this process, learned from its own control calls. rm_ioctl.c observes the
 * calls, rm_table.c keeps the objects. rm_report.c reports them to the arbiter and acts on them.
 * rm_contexts.c serves the hooks of contexts. docs/specs/shim/channel-groups.md.
 */
#ifndef QG_SHIM_RM_H
#define QG_SHIM_RM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "qgpu_messages.h"
#include "qgpu_rm.h"

/* ---- rm_table.c: callable everywhere, also from a signal handler; nothing here allocates or waits
 * ---- */

struct qg_rm_file { /* an open control device, as the program's descriptor table knows it */
    dev_t dev, rdev;
    ino_t ino;
};

/* or an index into qg_cards */
enum qg_rm_card { QG_RM_CARD_UNKNOWN = -2, QG_RM_CARD_FOREIGN = -1 };

/* One device of one client, and its objects. */
struct qg_rm_snapshot {
    uint32_t client_serial, device_serial; /* handles are used again, serial numbers are not */
    /* the number by which the program last used the client; -1: none */
    int fd;
    struct qg_rm_file file;
    int card;                  /* enum qg_rm_card */
    struct qg_groups reported; /* all but head, job and UUID */
    uint32_t group_serial[QG_MAX_GROUPS];
    uint64_t slice_us[QG_MAX_GROUPS]; /* before any change of ours; 0: not asked yet */
};

/* Records what the program did, after the driver confirmed it. */
void qg_rm_allocated(int fd, uint32_t client, uint32_t parent, uint32_t object, uint32_t class_id,
                     uint32_t engine);
void qg_rm_duplicated(int fd, uint32_t client, uint32_t parent, uint32_t object,
                      uint32_t from_client, uint32_t from);
void qg_rm_scheduled(int fd, uint32_t client, uint32_t object);
void qg_rm_not_understood(void); /* a call of a size that is not the published one */

/* Around a FREE: the object's serial number before the call (0: not followed), and the result. */
uint32_t qg_rm_freeing(uint32_t client, uint32_t object);
void qg_rm_freed(uint32_t client, uint32_t object, uint32_t serial);
void qg_rm_not_freed(uint32_t client, uint32_t object, uint32_t serial);

/* The program uses this client by this number. */
void qg_rm_used(int fd, uint32_t client);

/* The next device from index *at on; *at becomes the index after it. False: there is none. */
bool qg_rm_next(unsigned *at, struct qg_rm_snapshot *snapshot);
void qg_rm_set_card(const struct qg_rm_snapshot *snapshot, int card);
void qg_rm_set_slice(const struct qg_rm_snapshot *snapshot, unsigned group, uint64_t us);
void qg_rm_unreachable(
    const struct qg_rm_snapshot *snapshot); /* its descriptor was closed or replaced */

/* Rises with each change that an arbiter may want to know. */
uint32_t qg_rm_changes(void);

/* A private descriptor of the client's file, for one use; -1: the program closed it. To be closed
 * by the caller. */
int qg_rm_borrow(const struct qg_rm_snapshot *snapshot);

/* ---- rm_ioctl.c, rm_import.c ---- */

/* off: this process is not governed, and all calls pass unobserved */
void qg_rm_watch(bool on);
/* its calls of ioctl() go through ours, however we were loaded */
void qg_rm_driver_opened(void *library);

/* ---- rm_report.c ---- */

void qg_rm_changed(void); /* wakes the reporter */

/* Called by register.c: a connection on which all cards are registered, and its end. */
void qg_rm_connected(int sock, dev_t dev, ino_t ino);
void qg_rm_disconnected(void);
/* messages that the arbiter sends unrequested */
void qg_rm_received(const void *message, size_t size);
void qg_rm_poll(void); /* at intervals: a lease may have run out */

void qg_rm_after_fork(void);

/* ---- rm_contexts.c ---- */

struct qg_card;
bool qg_rm_reports(void); /* the arbiter wants reports of contexts */
/* a context is about to be made; then the next, with the answer and the result */
bool qg_rm_making(void);
/* waits shortly until the arbiter knows its groups */
void qg_rm_context_made(bool counted, bool made);
/* a context of it is about to be destroyed: nothing of it is stopped any more */
bool qg_rm_leave(struct qg_card *card);
void qg_rm_left(struct qg_card *card); /* it was; only after a true qg_rm_leave() */

#endif
