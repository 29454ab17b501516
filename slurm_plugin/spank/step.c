/* SPDX-License-Identifier: Apache-2.0
 *
 * Notes which process is the slurmstepd of which job, in RUN_DIR/steps/PID. Root alone can write
 * there. So qgpud and the arbiter know a job's processes by what this slurmstepd is in, and need no
 * names (docs/specs/identity.md). All steps are noted, the extern step too: it has the ssh sessions
 * that pam_slurm_adopt brings. A fault here only means that the job is not found that way.
 */
#include "spank_qgpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/paths.h"
#include "qg_steps.h"

#define STEPS_DIR "steps" /* as qgpud and the arbiter have it */

static struct {
    pid_t pid; /* that was noted, 0 = none */
    char groups[8192];
} noted;

static int steps_dir(const struct qg_args *args, char *why, size_t size)
{
    char run_dir[PATH_MAX], node[256];

    qg_node_name(node, sizeof(node));
    if (!qg_expand_node(args->run_dir, node, run_dir, sizeof(run_dir))) {
        snprintf(why, size, "run_dir=%s cannot be used on this node", args->run_dir);
        errno = EINVAL;
        return -1;
    }
    return qg_open_own_dir(run_dir, STEPS_DIR, 0755, why, size);
}

/* Leaves the record, unless the job has enough of them: then its processes are found by its cgroup,
 * and no job can make readers slow. Writing comes before counting, so that of steps that start at
 * once none is overlooked. */
static void leave(int dir, uint32_t job, unsigned long long start)
{
    char name[32], text[128];

    snprintf(name, sizeof(name), "%d", (int)noted.pid);
    snprintf(text, sizeof(text), "{\"job\": %u, \"pid\": %d, \"start\": %llu}\n", job,
             (int)noted.pid, start);
    if (!qg_leave_file(dir, name, 0644, text)) {
        slurm_error("qgpu: spank: " STEPS_DIR "/%s: %s", name, strerror(errno));
        noted.pid = 0; /* a later call tries again */
        return;
    }
    unsigned int others = steps_others(dir, 0, job);
    if (others >= MAX_STEPS_PER_JOB)
        unlinkat(dir, name, 0);
    else if (others == MAX_STEPS_PER_JOB - 1)
        slurm_info("qgpu: spank: %d steps of job %u are on record, which is the limit; processes "
                   "of further steps are found by the job's cgroup alone",
                   MAX_STEPS_PER_JOB, job);
}

/* Slurm has moved slurmstepd into its cgroup before the first call, where proctrack/cgroup is in
 * use. task/cgroup alone moves it later. So a later call writes again if the cgroup has changed:
 * that makes all readers look at it anew. */
void qg_step_note(spank_t sp, const struct qg_args *args)
{
    char groups[sizeof(noted.groups)], why[PATH_MAX + 256] = "";
    unsigned long long start = start_of(getpid());
    uint32_t job = 0;

    if (noted.pid && noted.pid != getpid())
        return; /* a child that Slurm made to run the hook inside the job's namespace */
    if (spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS || start == 0 ||
        slurp(getpid(), "cgroup", groups, sizeof(groups)) <= 0)
        return;
    if (noted.pid && strcmp(groups, noted.groups) == 0)
        return;
    int dir = steps_dir(args, why, sizeof(why));
    if (dir < 0) {
        if (errno != ENOENT) /* else qgpud never ran on this node */
            slurm_error("qgpu: spank: %s", why);
        return;
    }
    noted.pid = getpid();
    memcpy(noted.groups, groups, sizeof(groups));
    leave(dir, job, start);
    close(dir);
}

void qg_step_forget(const struct qg_args *args)
{
    char why[PATH_MAX + 256], name[32];

    if (noted.pid != getpid())
        return;
    int dir = steps_dir(args, why, sizeof(why));
    if (dir < 0)
        return;
    snprintf(name, sizeof(name), "%d", (int)getpid());
    unlinkat(dir, name, 0);
    close(dir);
}
