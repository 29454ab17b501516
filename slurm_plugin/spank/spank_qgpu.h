/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the SPANK plugin share. dispatch.c says which hook runs where and as whom.
 * options.c and client.c are about the clients (sbatch, salloc, srun), the rest about slurmstepd:
 * args.c reads plugstack.conf, grant.c the grant as root; task.c prepares one task, by preload.c or
 * by mounts.c.
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

/* args.c: defaults first, unknown words are logged and skipped (an optional plugin must not stop a
 * job). */
void qg_args_parse(int argc, char **argv, struct qg_args *args);

enum qg_read {
    QG_READ_NONE,   /* this job has no grant */
    QG_READ_OVER,   /* it had one that ended, and no Prolog has given it another; why says it */
    QG_READ_OK,     /* *grant is checked */
    QG_READ_BROKEN, /* there is one, but it cannot be believed; why says it */
    QG_READ_NO_DIR  /* the directory itself cannot be used; why says it */
};

/* grant.c: reads RUN_DIR/grants/JOB.grant as if an enemy had written it. */
enum qg_read qg_grant_read(const char *run_dir, uint32_t job_id, uid_t uid, struct qg_grant *grant,
                           char *path, size_t path_size, char *why, size_t why_size);

/* Leaves RUN_DIR/grants/JOB.fetched: a task of this job runs under its grant. False with a sentence
 * in why. */
bool qg_grant_note_fetched(const char *run_dir, uint32_t job_id, char *why, size_t why_size);

/* Makes the sealed copy, owned by the caller's euid, as an inheritable descriptor >= 100. -1 with
 * errno. */
int qg_grant_seal(const struct qg_grant *grant);

/* options.c: the users' options, in each context; what they said, NULL where they were not given.
 */
void qg_options_register(spank_t sp);
const char *qg_option_mem(void);
const char *qg_option_cards(void);

/* client.c: in sbatch, salloc and srun, before the request is sent. Slurm puts SPANK_ in front of
 * the names. */
#define QG_SPANK_MEM   "QGPU_MEM"
#define QG_SPANK_CARDS "QGPU_CARDS"
void qg_client_hand_over(spank_t sp);

#define QG_NVML_NAME "libnvidia-ml.so.1"

/* mounts.c: as root; from here on the task sees the shims under all names of the driver.
 * grant->driver_path becomes the real driver's new place; nvml is the job's NVML, or empty;
 * library_path the task's LD_LIBRARY_PATH. False with a sentence in text. */
bool qg_mounts_make(struct qg_grant *grant, const char *nvml, const char *library_path, char *text,
                    size_t size);

/* preload.c: LD_PRELOAD of a task. The list with `shim` and `nvml` (may be empty) in front and ours
 * nowhere else; with shim NULL, the list without anything that looks like ours. False: it does not
 * fit. */
bool qg_preload_list(const char *list, const char *shim, const char *nvml, char *out, size_t size);

/* The job's view of NVML, which lies beside the shim where this release has it. Empty if it is not
 * there. */
void qg_nvml_beside(const char *shim, char *out, size_t size);

/* task.c: both run in the task's own process, the first as root, the second as the user. */
void qg_task_as_root(spank_t sp, const struct qg_args *args);
void qg_task_as_user(spank_t sp);

#endif
