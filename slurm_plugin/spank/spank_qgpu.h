/* SPDX-License-Identifier: Apache-2.0
 *
 * What the sources of the SPANK plugin share. dispatch.c says which hook runs in which process and
 * as which user. options.c and client.c run in the clients (sbatch, salloc, srun), the others in
 * slurmstepd: args.c reads plugstack.conf, step.c notes the step, grant.c reads the grant as root,
 * task.c prepares one task by preload.c or mounts.c, memory.c, and moved.c.
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

/* args.c: sets defaults, then reads the arguments. Unknown ones are logged and skipped, since an
 * optional plugin must not stop a job. */
void qg_args_parse(int argc, char **argv, struct qg_args *args);

enum qg_read {
    QG_READ_NONE,   /* this job has no grant */
    QG_READ_OVER,   /* its grant has ended, and no Prolog made a new one; a sentence is in why */
    QG_READ_OK,     /* *grant is checked */
    QG_READ_BROKEN, /* its grant is not valid; a sentence is in why */
    QG_READ_NO_DIR  /* the directory of grants cannot be used; a sentence is in why */
};

/* grant.c: reads RUN_DIR/grants/JOB.grant, and trusts nothing in it without a check. */
enum qg_read qg_grant_read(const char *run_dir, uint32_t job_id, uid_t uid, struct qg_grant *grant,
                           char *path, size_t path_size, char *why, size_t why_size);

/* Can root alone change the libraries that the job will load? qgpud checked this during the Prolog;
 * they may have changed since. A path that does not exist is left to the loader, which reports it.
 * False with a sentence in why. */
bool qg_libraries_trusted(const struct qg_grant *grant, const char *nvml, char *why, size_t size);

/* Writes RUN_DIR/grants/JOB.fetched, which shows that a task of this job runs under its grant.
 * False with a sentence in why. */
bool qg_grant_note_fetched(const char *run_dir, uint32_t job_id, char *why, size_t why_size);

/* Makes the sealed copy, owned by the caller's effective uid, as an inheritable descriptor of at
 * least 100. -1 with errno. */
int qg_grant_seal(const struct qg_grant *grant);

/* options.c: registers the users' options, and gives their values; NULL = not given. */
void qg_options_register(spank_t sp);
const char *qg_option_mem(void);
const char *qg_option_cards(void);

/* client.c: in sbatch, salloc and srun, before the request is sent. Slurm puts SPANK_ before the
 * names of these variables. */
#define QG_SPANK_MEM   "QGPU_VRAM"
#define QG_SPANK_CARDS "QGPU_CARDS"
#define QG_SPANK_PLAN  "QGPU_PLAN"
void qg_client_hand_over(spank_t sp);

#define QG_NVML_NAME "libnvidia-ml.so.1"

/* mounts.c: as root, makes the task see the shims under all names of the driver and of NVML.
 * grant->driver_path becomes the new path of the real driver. nvml is qgpu's NVML, or empty;
 * library_path is the task's LD_LIBRARY_PATH. False with a sentence in text. True: text is empty,
 * or says which of the node's libraries is not covered. */
bool qg_mounts_make(struct qg_grant *grant, const char *nvml, const char *library_path, char *text,
                    size_t size);

/* preload.c: LD_PRELOAD of a task. Copies the list with `shim` and `nvml` (may be empty) first, and
 * without them elsewhere. With shim NULL, it removes all that have the names of qgpu's libraries.
 * False: it does not fit. */
bool qg_preload_list(const char *list, const char *shim, const char *nvml, char *out, size_t size);

/* memory.c: as root, in a task of a job whose GPU memory may be taken back. The second is its part
 * for a text as /proc/PID/cgroup has it, which it takes apart: false with a sentence in why. */
void qg_memory_prepare(const struct qg_grant *grant, uint32_t job_id);
bool qg_memory_as_job(const char *root, char *groups, char *why, size_t size);

/* moved.c: as the user, before the program starts: waits until the device cgroup allows the cards
 * that the job was moved to, for 5 s at most. Never fails the task. */
void qg_moved_wait(const struct qg_grant *grant, uint32_t job_id);

/* The path of qgpu's NVML, which lies beside the shim. Empty if there is none. */
void qg_nvml_beside(const char *shim, char *out, size_t size);

/* task.c: both run in the task's own process, the first as root, the second as the user. */
void qg_task_as_root(spank_t sp, const struct qg_args *args);
void qg_task_as_user(spank_t sp);
void qg_node_name(char *out, size_t size); /* the node's, as slurmd knows it */

/* step.c: in slurmstepd as root, for each step of each job. The record says which process is the
 * slurmstepd of which job (docs/specs/identity.md). */
void qg_step_note(spank_t sp, const struct qg_args *args);
void qg_step_forget(const struct qg_args *args);

#endif
