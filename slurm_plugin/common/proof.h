/* SPDX-License-Identifier: Apache-2.0
 *
 * The proof that Slurm loads qgpu's SPANK plugin on this node. It is for one start of one job.
 * slurmd runs the plugin's job prolog right before its Prolog script. There the plugin writes
 * RUN_DIR/spank/JOBID, and qgpu-hook reads and removes it. If there is no proof, the Prolog fails:
 * the tasks of the job would run without limits (docs/adr/0023-proof-of-the-plugin.md).
 */
#ifndef QGPU_PROOF_H
#define QGPU_PROOF_H

#include <stdbool.h>
#include <stddef.h>

#define QG_PROOF_DIR "spank"
#define QG_PROOF_MAX 256u /* bytes of one proof: about 130 are used */

/* Has the job of this process's environment a card, or a tag that promises one? Other jobs never
 * depend on qgpu. */
bool qg_env_concerns_us(void);

/* These write a proof, and read and remove it. Both use SLURM_JOB_ID and SLURM_JOB_RESTART_COUNT of
 * the environment. Root only. False with a sentence in why. */
bool qg_proof_leave(const char *run_dir, char *why, size_t size);
bool qg_proof_take(const char *run_dir, char *why, size_t size);

/* Removes the proof of an earlier start of the job. */
void qg_proof_drop(const char *run_dir);

#endif
