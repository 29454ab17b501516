/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the SPANK plugin share. One file per place where Slurm runs us: dispatch.c says which hook
 * runs as whom, args.c reads plugstack.conf, grant.c reads the grant as root, task.c prepares one task.
 */
#ifndef QGPU_SPANK_H
#define QGPU_SPANK_H

#include <limits.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "qgpu_abi.h"

struct qg_args {
    char run_dir[PATH_MAX]; /* may hold %n */
};

/* args.c: defaults first, unknown words are logged and skipped (an optional plugin must not stop a job). */
void qg_args_parse(int argc, char **argv, struct qg_args *args);

enum qg_read {
    QG_READ_NONE,   /* this job has no grant */
    QG_READ_OVER,   /* it had one that ended, and no Prolog has given it another; why says it */
    QG_READ_OK,     /* *grant is checked */
    QG_READ_BROKEN, /* there is one, but it cannot be believed; why says it */
    QG_READ_NO_DIR  /* the directory itself cannot be used; why says it */
};

/* grant.c: reads RUN_DIR/grants/JOB.grant as if an enemy had written it. */
enum qg_read qg_grant_read(const char *run_dir, uint32_t job_id, uid_t uid, struct qg_grant *grant, char *path,
                           size_t path_size, char *why, size_t why_size);

/* Makes the sealed copy, owned by the caller's euid, as an inheritable descriptor >= 100. -1 with errno. */
int qg_grant_seal(const struct qg_grant *grant);

/* task.c: both run in the task's own process, the first as root, the second as the user. */
void qg_task_as_root(spank_t sp, const struct qg_args *args);
void qg_task_as_user(spank_t sp);

#endif
