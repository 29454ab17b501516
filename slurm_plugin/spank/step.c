/* SPDX-License-Identifier: Apache-2.0
 *
 * Notes which process is the slurmstepd of which job, in RUN_DIR/steps/PID. Root alone can write
 * there. So qgpud and the arbiter know a job's processes by what this slurmstepd is in, and need no
 * names (docs/specs/identity.md). All steps are noted, the extern step too: it has the ssh sessions
 * that pam_slurm_adopt brings. A fault here only means that the job is not found that way.
 */
#include "spank_qgpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/paths.h"

#define STEPS_DIR "steps" /* as qgpud and the arbiter have it */

static struct {
    pid_t pid; /* that was noted, 0 = none */
    char groups[8192];
} noted;

static bool read_text(const char *path, char *out, size_t size)
{
    size_t len = 0;
    ssize_t got;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    while (len < size - 1 && (got = read(fd, out + len, size - 1 - len)) > 0)
        len += (size_t)got;
    close(fd);
    out[len] = '\0';
    return len > 0;
}

/* When this process started, in clock ticks since boot: the 22nd field of its stat. 0 = unknown. */
static unsigned long long own_start(void)
{
    char stat[1024];
    char *at = read_text("/proc/self/stat", stat, sizeof(stat)) ? strrchr(stat, ')') : NULL;

    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

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

/* Slurm has moved slurmstepd into its cgroup before the first call, where proctrack/cgroup is in
 * use. task/cgroup alone moves it later. So a later call writes again if the cgroup has changed:
 * that makes all readers look at it anew. */
void qg_step_note(spank_t sp, const struct qg_args *args)
{
    char groups[sizeof(noted.groups)], why[PATH_MAX + 256] = "", name[32], text[128];
    unsigned long long start = own_start();
    uint32_t job = 0;

    if (noted.pid && noted.pid != getpid())
        return; /* a child that Slurm made to run the hook inside the job's namespace */
    if (spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS || start == 0 ||
        !read_text("/proc/self/cgroup", groups, sizeof(groups)))
        return;
    if (noted.pid && strcmp(groups, noted.groups) == 0)
        return;
    int dir = steps_dir(args, why, sizeof(why));
    if (dir < 0) {
        if (errno != ENOENT) /* else qgpud never ran on this node */
            slurm_error("qgpu: spank: %s", why);
        return;
    }
    snprintf(name, sizeof(name), "%d", (int)getpid());
    snprintf(text, sizeof(text), "{\"job\": %u, \"pid\": %d, \"start\": %llu}\n", job,
             (int)getpid(), start);
    if (qg_leave_file(dir, name, 0644, text)) {
        noted.pid = getpid();
        memcpy(noted.groups, groups, sizeof(groups));
    } else {
        slurm_error("qgpu: spank: " STEPS_DIR "/%s: %s", name, strerror(errno));
    }
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
