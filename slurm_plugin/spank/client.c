/* SPDX-License-Identifier: Apache-2.0
 *
 * In sbatch, salloc and srun, as the user: copies the options' values into SPANK's job environment.
 * That is part of the request. job_submit.lua can read it in all versions of Slurm. Without the
 * copy, srun would send its options to slurmstepd only, too late for the request. These variables
 * need no trust: they can ask for nothing that --gres could not.
 */
#include "spank_qgpu.h"

#include <stdlib.h>

static void hand_over(spank_t sp, const char *name, const char *value)
{
    if (!value)
        return;
    spank_err_t err = spank_job_control_setenv(sp, name, value, 1);
    if (err != ESPANK_SUCCESS)
        slurm_error("qgpu: spank: %s could not be handed over (%s); use --gres=qgpu:N,vram:SIZE",
                    name, spank_strerror(err));
}

void qg_client_hand_over(spank_t sp)
{
    hand_over(sp, QG_SPANK_MEM, qg_option_mem());
    hand_over(sp, QG_SPANK_CARDS, qg_option_cards());
    /* job_submit.lua then says what it would book (slurm_plugin/lua/qgpu_plan.lua). */
    hand_over(sp, QG_SPANK_PLAN, getenv(QG_SPANK_PLAN) ? "1" : NULL);
}
