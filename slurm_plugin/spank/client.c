/* SPDX-License-Identifier: Apache-2.0
 *
 * sbatch, salloc and srun, as the user: what the options said goes into the job's environment of
 * SPANK, which travels with the request itself and which job_submit.lua reads there in all versions
 * of Slurm. srun's options alone would travel to slurmstepd only, too late for a request. Nobody
 * trusts these variables: they say no more than --gres could say.
 */
#include "spank_qgpu.h"

static void hand_over(spank_t sp, const char *name, const char *value)
{
    if (!value)
        return;
    spank_err_t err = spank_job_control_setenv(sp, name, value, 1);
    if (err != ESPANK_SUCCESS)
        slurm_error(
            "qgpu: spank: %s could not be handed over (%s); use --gres=qgpu:N,qgpu_mem:SIZE", name,
            spank_strerror(err));
}

void qg_client_hand_over(spank_t sp)
{
    hand_over(sp, QG_SPANK_MEM, qg_option_mem());
    hand_over(sp, QG_SPANK_CARDS, qg_option_cards());
}
