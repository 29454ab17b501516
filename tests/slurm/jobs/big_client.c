/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of Slurm's C interface that puts a long text into one field of a job.
 *
 *     big_client FIELD BYTES PIECE [COUNT [NODE [JOBID | ask]]]
 *
 * The text repeats PIECE. spank_job_env gets COUNT such texts. NODE ("" for any) is where the job
 * shall run. With JOBID that job is changed; `ask` only asks when the job would start (and prints
 * 0). Prints the job's number, or slurmctld's words.
 */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#define FIELD(name) {#name, offsetof(job_desc_msg_t, name)}

static const struct {
    const char *name;
    size_t offset;
} FIELDS[] = {
    FIELD(account),   FIELD(comment), FIELD(extra),         FIELD(features),      FIELD(licenses),
    FIELD(partition), FIELD(qos),     FIELD(req_context),   FIELD(reservation),   FIELD(std_err),
    FIELD(std_in),    FIELD(std_out), FIELD(tres_per_node), FIELD(tres_per_task), FIELD(work_dir),
};

static char *long_text(const char *head, size_t bytes, const char *piece)
{
    size_t step = strlen(piece), at = strlen(head);
    char *text = malloc(at + bytes + step + 1);

    if (!text || !step)
        exit(2);
    memcpy(text, head, at);
    for (size_t end = at + bytes; at < end; at += step)
        memcpy(text + at, piece, step);
    text[strlen(head) + bytes] = '\0';
    return text;
}

static void set_field(job_desc_msg_t *job, char **argv, uint32_t count)
{
    size_t bytes = strtoul(argv[2], NULL, 10);
    char **lines;

    for (size_t i = 0; i < sizeof(FIELDS) / sizeof(*FIELDS); i++)
        if (!strcmp(argv[1], FIELDS[i].name)) {
            *(char **)((char *)job + FIELDS[i].offset) = long_text("", bytes, argv[3]);
            return;
        }
    lines = calloc(count + 1, sizeof(*lines));
    for (uint32_t i = 0; lines && i < count; i++) {
        char head[32];

        snprintf(head, sizeof(head), "SPANK_X%u=", i);
        lines[i] = long_text(head, bytes, argv[3]);
    }
    if (strcmp(argv[1], "spank_job_env"))
        exit(2);
    job->spank_job_env = lines;
    job->spank_job_env_size = count;
}

static int said(int code, uint32_t number)
{
    if (code != SLURM_SUCCESS) {
        printf("refused: %s\n", slurm_strerror(errno));
        return 1;
    }
    printf("%u\n", number);
    return 0;
}

int main(int argc, char **argv)
{
    static char *environment[] = {"PATH=/usr/bin:/bin", NULL};
    uint32_t count = argc > 4 ? strtoul(argv[4], NULL, 10) : 1;
    submit_response_msg_t *answer = NULL;
    job_desc_msg_t job;

    if (argc < 4)
        return 2;
    slurm_init(NULL);
    slurm_init_job_desc_msg(&job);
    bool ask = argc > 6 && !strcmp(argv[6], "ask");

    if (argc > 6 && !ask) {
        uint32_t number = strtoul(argv[6], NULL, 10);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
        job.step_id.job_id = number;
#else
        job.job_id = number;
#endif
        set_field(&job, argv, count);
        return said(slurm_update_job(&job), number);
    }
    job.name = "big";
    job.script = "#!/bin/sh\nexec true\n";
    job.work_dir = "/tmp";
    job.std_out = "/dev/null";
    job.environment = environment;
    job.env_size = 1;
    job.user_id = getuid();
    job.group_id = getgid();
    job.min_nodes = 1;
    job.num_tasks = 1;
    if (argc > 5 && *argv[5])
        job.req_nodes = argv[5];
    set_field(&job, argv, count);
    if (ask)
        return said(slurm_job_will_run(&job), 0);
    int code = slurm_submit_batch_job(&job, &answer);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
    return said(code, answer ? answer->step_id.job_id : 0);
#else
    return said(code, answer ? answer->job_id : 0);
#endif
}
