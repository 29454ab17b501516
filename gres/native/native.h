/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The two plugins: gres_qgpu.so (percent of cards, with the class as Type) and gres_qgpu_mem.so
 * (bytes of cards). Both are plugin.c and node_config.c; qgpu.c or qgpu_mem.c says what is
 * particular.
 */
#ifndef QGPU_NATIVE_H
#define QGPU_NATIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "compat.h"
#include "pack.h"

struct qgn_kind {
    const char *gres;       /* name in gres.conf */
    const char *prep_count; /* variable of Prolog and Epilog: the node's part of the job */
    const char *prep_class; /* the same for the class; NULL if it has none */
    const char *task_count; /* variable of job, step and task */
    uint64_t task_unit;     /* the task's variable counts in this */
    /* variable that a job, step or task without any must not have inherited, or NULL */
    const char *clears;
    bool (*valid)(list_t *records);
};

extern const struct qgn_kind qgn_kind;

/* Of the records of gres.conf merged with slurm.conf: those of one gres. */
uint64_t qgn_sum(list_t *records, const char *gres);
bool qgn_valid_qgpu(list_t *records);
bool qgn_valid_mem(list_t *records);

#endif
