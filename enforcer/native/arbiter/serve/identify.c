/* SPDX-License-Identifier: Apache-2.0
 *
 * Does a process belong to the job that it names? Its user must be the grant's. Then one of these
 * must hold, the strongest proof first: it is in the cgroup of a recorded slurmstepd of the job, or
 * descends from one; it shows the sealed grant, which only root can make; it descends from the
 * program that got the grant from qgpud (qgpu run). docs/specs/identity.md has what each proves.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "model/model.h"
#include "serve/serve.h"
#include "qg_seal.h"
#include "qg_steps.h"

/* The program that holds a grant without Slurm, from the file that qgpud keeps beside the grant. */
static bool program_of(const struct arbiter *a, uint64_t job_id, int *pid, uint64_t *start)
{
    char path[512], buf[256];
    snprintf(path, sizeof(path), "%s/grants/%" PRIu64 ".run", a->run_dir, job_id);
    return steps_read(AT_FDCWD, path, a->owner, buf, sizeof(buf), NULL) &&
           sscanf(buf, " { \"pid\" : %d , \"start\" : %" SCNu64, pid, start) == 2 && *pid > 1 &&
           *start;
}

/* Does the process descend from the program that got the grant? A child that closed all descriptors
 * has no grant to show. Children of Python's subprocess and daemons do that. */
static bool below_program(const struct arbiter *a, pid_t pid, uint64_t job_id)
{
    int program;
    uint64_t start;
    if (!program_of(a, job_id, &program, &start))
        return false;
    for (int i = 0; i < MAX_ANCESTORS && pid > 1; i++) {
        if (pid == program)
            return start_of(pid) == start;
        pid = parent_of(pid);
    }
    return false;
}

const char *identify(const struct arbiter *a, pid_t pid, uid_t uid, uint64_t job_id,
                     uid_t grant_uid, int grant_fd, char *text, size_t cap)
{
    struct qg_grant grant;
    if (uid != grant_uid && uid != 0) {
        snprintf(text, cap, "process %d runs as uid %u, but job %" PRIu64 " belongs to uid %u",
                 (int)pid, uid, job_id, grant_uid);
        return text;
    }
    uint64_t found = steps_job_of(a->run_dir, a->owner, pid);
    if (found == job_id)
        return NULL;
    if (found) {
        snprintf(text, cap, "process %d belongs to job %" PRIu64 ", not to job %" PRIu64, (int)pid,
                 found, job_id);
        return text;
    }
    const char *why =
        grant_fd < 0 ? "it sent no grant" : qg_grant_from_fd(grant_fd, a->owner, &grant);
    if (!why && (grant.job_id != job_id || grant.uid != grant_uid))
        why = "the grant it sent is another job's";
    if (!why || below_program(a, pid, job_id))
        return NULL;
    snprintf(text, cap,
             "process %d is in no cgroup and below no slurmstepd of job %" PRIu64 ", and %s",
             (int)pid, job_id, why);
    return text;
}
