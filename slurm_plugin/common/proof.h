/* SPDX-License-Identifier: Apache-2.0
 *
 * The proof that Slurm loads our SPANK plugin on this node, for one start of one job. slurmd runs
 * the plugin's job prolog right before its Prolog script; the plugin leaves RUN_DIR/spank/JOBID
 * there, and the hook takes it away. Without it the tasks of the job would run without limits
 * (docs/adr/0023-proof-of-the-plugin.md).
 */
#ifndef QGPU_PROOF_H
#define QGPU_PROOF_H

#include <stdbool.h>
#include <stddef.h>

#define QG_PROOF_DIR "spank"
#define QG_PROOF_MAX 256u /* bytes of one proof */

/* Whether the job of this hook's environment has a card or was promised one. Others never depend on
 * qgpu. */
bool qg_env_concerns_us(void);

/* Both read SLURM_JOB_ID and SLURM_JOB_RESTART_COUNT of the environment. False with a sentence in
 * why. Root only. */
bool qg_proof_leave(const char *run_dir, char *why, size_t size);
bool qg_proof_take(const char *run_dir, char *why, size_t size);

/* Removes what an earlier start of the job left. */
void qg_proof_drop(const char *run_dir);

#endif
