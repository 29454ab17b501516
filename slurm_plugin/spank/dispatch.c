/* SPDX-License-Identifier: Apache-2.0
 *
 * The SPANK entry points. srun, sbatch, salloc, slurmd and slurmstepd load the same shared object.
 * The hooks, in order:
 *
 *   slurm_spank_job_prolog            in `slurmstepd spank prolog`, as root, right before slurmd's
 *                                     Prolog: writes the proof
 *   slurm_spank_init                  in all of them: registers the options; in slurmstepd, as
 *                                     root: reads the plugstack arguments, notes the step
 *   slurm_spank_init_post_opt         in srun, sbatch, salloc: puts the options into the request
 *   slurm_spank_task_init_privileged  in the task's process, as root: reads the grant, makes the
 *                                     sealed descriptor
 *   slurm_spank_task_init             in the task's process, as the user, with the task's stdio:
 *                                     sets the environment, or refuses
 *   slurm_spank_task_post_fork        in slurmstepd, as root, before the task's exec: notes the
 *                                     step again if slurmstepd has another cgroup by then
 *   slurm_spank_exit                  in slurmstepd, as root: forgets the step
 *
 * task_init and task_init_privileged run for batch scripts, srun tasks and interactive steps, but
 * not for the extern step.
 */
#include "spank_qgpu.h"

#include <stdlib.h>

#include "../common/paths.h"
#include "../common/proof.h"

SPANK_PLUGIN(qgpu, 1)

static struct qg_args args;

int slurm_spank_init(spank_t sp, int argc, char **argv)
{
    spank_context_t context = spank_context();

    if (context == S_CTX_REMOTE)
        qg_args_parse(argc, argv, &args);
    if (context == S_CTX_REMOTE || context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR)
        qg_options_register(sp);
    if (context == S_CTX_REMOTE)
        qg_step_note(sp, &args);
    return ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t sp, int argc, char **argv)
{
    spank_context_t context = spank_context();

    (void)argc;
    (void)argv;
    if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR)
        qg_client_hand_over(sp);
    return ESPANK_SUCCESS;
}

/* If this writes no proof, qgpu-hook in the Prolog drains the node. slurmd's log has the reason. */
int slurm_spank_job_prolog(spank_t sp, int argc, char **argv)
{
    char run_dir[PATH_MAX], why[PATH_MAX + 256] = "";

    (void)sp;
    if (!qg_env_concerns_us())
        return ESPANK_SUCCESS;
    qg_args_parse(argc, argv, &args);
    if (!qg_expand_node(args.run_dir, getenv("SLURMD_NODENAME"), run_dir, sizeof(run_dir)))
        slurm_error("qgpu: spank: run_dir=%s cannot be used on this node", args.run_dir);
    else if (!qg_proof_leave(run_dir, why, sizeof(why)))
        slurm_error("qgpu: spank: %s", why);
    return ESPANK_SUCCESS;
}

int slurm_spank_task_init_privileged(spank_t sp, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    if (spank_context() == S_CTX_REMOTE)
        qg_task_as_root(sp, &args);
    return ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t sp, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    if (spank_context() == S_CTX_REMOTE)
        qg_task_as_user(sp);
    return ESPANK_SUCCESS;
}

int slurm_spank_task_post_fork(spank_t sp, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    if (spank_context() == S_CTX_REMOTE)
        qg_step_note(sp, &args);
    return ESPANK_SUCCESS;
}

int slurm_spank_exit(spank_t sp, int argc, char **argv)
{
    (void)sp;
    (void)argc;
    (void)argv;
    if (spank_context() == S_CTX_REMOTE)
        qg_step_forget(&args);
    return ESPANK_SUCCESS;
}
