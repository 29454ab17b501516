/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of Slurm's C interface, as slurmrestd or a site's own portal is one: no sbatch, no
 * cli_filter, no SPANK.
 *
 *     api_client GRES COMMENT EXTRA QOS     ("" leaves a field out); prints the job's number, or
 *                                           slurmctld's words
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

static char *given(char *text)
{
    return *text ? text : NULL;
}

int main(int argc, char **argv)
{
    static char *environment[] = {"PATH=/usr/bin:/bin", NULL};
    submit_response_msg_t *answer = NULL;
    job_desc_msg_t job;

    if (argc != 5)
        return 2;
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(22, 5, 0)
    slurm_init(NULL);
#endif
    slurm_init_job_desc_msg(&job);
    job.tres_per_node = given(argv[1]);
    job.comment = given(argv[2]);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)
    job.extra = given(argv[3]);
#endif
    job.qos = given(argv[4]);
    job.name = "api";
    job.script = "#!/bin/sh\nexec sleep 600\n";
    job.work_dir = "/tmp";
    job.std_out = "/dev/null";
    job.environment = environment;
    job.env_size = 1;
    job.user_id = getuid();
    job.group_id = getgid();
    job.min_nodes = 1;
    if (slurm_submit_batch_job(&job, &answer) != SLURM_SUCCESS) {
        printf("refused: %s\n", slurm_strerror(errno));
        return 1;
    }
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
    printf("%u\n", answer->step_id.job_id);
#else
    printf("%u\n", answer->job_id);
#endif
    return 0;
}
