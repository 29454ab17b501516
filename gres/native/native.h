/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The two plugins: gres_qgpu.so (percent of cards, with the class as Type) and gres_vram.so
 * (bytes of cards' memory). Both are built from plugin.c, node_config.c and pack.c; qgpu.c or
 * vram.c has the differences.
 */
#ifndef QGPU_NATIVE_H
#define QGPU_NATIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "compat.h"
#include "pack.h"

struct qgn_kind {
    const char *gres;       /* name in gres.conf */
    const char *prep_count; /* variable of Prolog and Epilog: the job's count on this node */
    const char *prep_class; /* variable of Prolog and Epilog: the class; NULL if it has none */
    const char *task_count; /* variable of job, step and task */
    uint64_t task_unit;     /* unit of the value in task_count */
    /* Variable that is removed from a job, step or task with a count of 0, or NULL. */
    const char *clears;
    bool (*valid)(list_t *records);
};

extern const struct qgn_kind qgn_kind;

/* The records are those of gres.conf merged with slurm.conf. */
/* The sum of the counts of one gres. */
uint64_t qgn_sum(list_t *records, const char *gres);
/* Are the records of qgpu, and those of vram, valid? Each fault is logged. */
bool qgn_valid_qgpu(list_t *records);
bool qgn_valid_mem(list_t *records);

#endif
