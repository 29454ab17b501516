/* SPDX-License-Identifier: Apache-2.0
 *
 * What a registration brings: descriptors of pages and of a doorbell, believed if root made them.
 */
#ifndef QG_PAGES_H
#define QG_PAGES_H

#include "process/process.h"
#include "qgpu_messages.h"

#define QG_PAGE_FDS 3 /* gate page, job page, doorbell */

bool qg_same_file(int fd, dev_t dev, ino_t ino);

/* Moves a descriptor to a number that programs rarely use. */
int qg_move_high(int fd);

/* NULL: they are not what they should be. Takes the doorbell's descriptor; the others stay the
 * caller's. */
struct qg_pages *qg_pages_from(const struct qg_registered *answer, int fds[QG_PAGE_FDS]);

/* the arbiter refuses this process: closes the gate. False: no memory */
bool qg_pages_shut(struct qg_pages *pages);
void qg_pages_after_fork(void); /* in the child: the parent's slots are not its own */

/* slot_mappings.c. A context that owns memory (contexts.h) has one mapping of the slot to itself,
 * which it registers with CUDA. */
void qg_slot_mappings_map(struct qg_pages *pages, int fd);
void qg_slot_mappings_unmap(const struct qg_pages *pages);
struct qg_proc *qg_slot_mapping_of(struct qg_pages *pages,
                                   CUcontext owner); /* NULL: all are taken */
/* newer pages replaced these: unused mappings are removed */
void qg_slot_mappings_retire(struct qg_pages *pages);
void qg_slot_mappings_release(struct qg_pages *pages, CUcontext owner); /* the context is gone */
/* the same for all pages that ever were */
void qg_pages_context_gone(CUcontext owner);

#endif
