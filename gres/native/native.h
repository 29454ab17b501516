/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The two plugins: gres_qgpu.so (percent of cards, with the class as Type) and gres_qgpu_mem.so (bytes of cards).
 * Both are plugin.c and node_config.c; qgpu.c or qgpu_mem.c says what is particular.
 */
#ifndef QGPU_NATIVE_H
#define QGPU_NATIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "compat.h"

/* The classes as they travel to the node. */
enum qgn_class { QGN_NONE = 0, QGN_ONLINE = 1, QGN_OFFLINE = 2, QGN_OTHER = 15 };

struct qgn_kind {
    const char *gres;          /* name in gres.conf */
    const char *prep_count;    /* variable of Prolog and Epilog: the node's part of the job */
    const char *prep_class;    /* the same for the class; NULL if it has none */
    const char *task_count;    /* variable of job, step and task */
    uint64_t task_unit;        /* the task's variable counts in this */
    const char *clears;        /* variable that a job, step or task without any must not have inherited, or NULL */
    bool (*valid)(list_t *records);
};

extern const struct qgn_kind qgn_kind;

/*
 * The number that slurmctld (or slurmd, from the signed credential) hands to the node for each gres of a job. The
 * structure has no field for the Type, so the class is in the high bits of the count, which nobody but this plugin
 * reads: bits 60..63 say that it is packed so, 56..59 are the class, 0..55 the count.
 */
#define QGN_COUNT_BITS 56
#define QGN_COUNT_MASK ((UINT64_C(1) << QGN_COUNT_BITS) - 1)
#define QGN_PACKED UINT64_C(0xA)

uint64_t qgn_pack(uint64_t count, const char *type);
bool qgn_unpack(uint64_t packed, uint64_t *count, enum qgn_class *type);
const char *qgn_class_name(enum qgn_class type);
enum qgn_class qgn_class_of(const char *type);

/* Of the records of gres.conf merged with slurm.conf: those of one gres. */
uint64_t qgn_sum(list_t *records, const char *gres);
bool qgn_valid_qgpu(list_t *records);
bool qgn_valid_mem(list_t *records);

#endif
