/* SPDX-License-Identifier: Apache-2.0
 *
 * GPU memory that is taken back goes to the job's processes, and job_submit asked for it: the job's
 * limit has room. A step with a --mem of its own has not. So each step of such a job gets the
 * limit of the job. It stays below that, since the kernel counts for both.
 */
#include "spank_qgpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "qg_steps.h"

#define ROOT "/sys/fs/cgroup"

/* The limits of memory of one version of cgroups. Of version 1 the sum with swap comes first: the
 * kernel takes no limit above that. */
static const char *const unified[] = {"memory.swap.max", "memory.high", "memory.max", NULL};
static const char *const single[] = {"memory.memsw.limit_in_bytes", "memory.limit_in_bytes",
                                     "memory.soft_limit_in_bytes", NULL};

static unsigned long long value_of(const char *text)
{
    return strncmp(text, "max", 3) == 0 ? ~0ULL : strtoull(text, NULL, 10);
}

static bool read_limit(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return false;
    ssize_t len = read(fd, text, size - 1);
    close(fd);
    if (len <= 0)
        return false;
    text[len] = '\0';
    text[strcspn(text, "\n")] = '\0';
    return text[0] != '\0';
}

/* Raises one limit of the step's directory to that of the job's. True where nothing is left to do:
 * also where this kernel has no such file. */
static bool raise_limit(const char *job, const char *step, const char *name, char *why, size_t size)
{
    char path[PATH_MAX], wanted[64], has[64];

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", job, name) >= sizeof(path) ||
        !read_limit(path, wanted, sizeof(wanted)))
        return true;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", step, name) >= sizeof(path) ||
        !read_limit(path, has, sizeof(has)) || value_of(has) >= value_of(wanted))
        return true;
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    bool done = fd >= 0 && write(fd, wanted, strlen(wanted)) == (ssize_t)strlen(wanted);
    if (!done)
        snprintf(why, size, "%s cannot be set to %s: %s", path, wanted, strerror(errno));
    if (fd >= 0)
        close(fd);
    return done;
}

/* One line of /proc/PID/cgroup: the step's own directory, and that of its tasks in version 2. */
static bool raise_line(const char *root, char *line, char *why, size_t size)
{
    char job[PATH_MAX], step[PATH_MAX], user[PATH_MAX + 8];
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : 0;
    bool done = true;

    if (!path)
        return true;
    *path++ = '\0';
    bool is_unified = controllers[1] == '\0';
    size_t cut = steps_job_dir(path, strlen(path));
    if ((!is_unified && strcmp(controllers + 1, "memory") != 0) || cut == 0 || path[cut] != '/')
        return true;
    const char *base = is_unified ? "" : "/memory";
    int own = (int)(cut + 1 + strcspn(path + cut + 1, "/"));
    if ((size_t)snprintf(job, sizeof(job), "%s%s%.*s", root, base, (int)cut, path) >= sizeof(job) ||
        (size_t)snprintf(step, sizeof(step), "%s%s%.*s", root, base, own, path) >= sizeof(step))
        return true;
    snprintf(user, sizeof(user), "%s/user", step);
    for (const char *const *name = is_unified ? unified : single; *name; name++)
        done = raise_limit(job, step, *name, why, size) &&
               raise_limit(job, user, *name, why, size) && done;
    return done;
}

bool qg_memory_as_job(const char *root, char *groups, char *why, size_t size)
{
    char *rest = groups, *line;
    bool done = true;

    while ((line = strsep(&rest, "\n")))
        done = raise_line(root, line, why, size) && done;
    return done;
}

void qg_memory_prepare(const struct qg_grant *grant, uint32_t job_id)
{
    char groups[8192], why[PATH_MAX + 256] = "";
    bool reclaimable = false;

    for (uint32_t i = 0; i < grant->ncards; i++)
        reclaimable = reclaimable || (grant->cards[i].flags & QG_GRANT_CARD_RECLAIMABLE);
    if (!reclaimable || slurp(getpid(), "cgroup", groups, sizeof(groups)) <= 0)
        return;
    /* The task runs all the same: it may lose its memory only when that is taken back. */
    if (!qg_memory_as_job(ROOT, groups, why, sizeof(why)))
        slurm_error("qgpu: spank: job %u: the limit of the step's memory stays: %s", job_id, why);
}
