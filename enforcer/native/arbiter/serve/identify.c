/* SPDX-License-Identifier: Apache-2.0
 *
 * Does a process belong to the job that it names? Its user must be the grant's. Then one of these
 * must hold, the strongest proof first: slurmd put it into the job's cgroup; a slurmstepd of root
 * is among its ancestors; it shows the sealed grant, which only root can make; it descends from the
 * program that got the grant from qgpud (qgpu run). docs/specs/registration.md has what each
 * proves.
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
#include "qg_cgroup.h"
#include "qg_seal.h"

/* Ancestors that are checked. A bound on reads below /proc; deeper trees are not recognised.
 * Chosen, not measured. */
enum { MAX_ANCESTORS = 64 };

/* Reads a small file of /proc, NUL-terminated; returns its length or -1. */
static ssize_t slurp(pid_t pid, const char *name, char *buf, size_t cap)
{
    char path[64];
    size_t len = 0;
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    while (len < cap - 1) {
        ssize_t got = read(fd, buf + len, cap - 1 - len);
        if (got <= 0)
            break;
        len += (size_t)got;
    }
    close(fd);
    buf[len] = 0;
    return (ssize_t)len;
}

static uint64_t job_of_cgroup(pid_t pid)
{
    char buf[8192];
    return slurp(pid, "cgroup", buf, sizeof(buf)) <= 0 ? 0 : qg_job_of_cgroups(buf);
}

/* The parent of a process. *trusted: all four user ids of the process are the arbiter's. For a
 * setuid program that a user started they are not. */
static pid_t parent_of(const struct arbiter *a, pid_t pid, bool *trusted)
{
    char buf[4096];
    unsigned int id[4] = {1, 1, 1, 1};
    int parent = 0;
    *trusted = false; /* also if it ended: its pid may belong to another process next */
    if (slurp(pid, "status", buf, sizeof(buf)) <= 0)
        return 0;
    const char *uids = strstr(buf, "\nUid:"), *pp = strstr(buf, "\nPPid:");
    if (!uids || !pp || sscanf(uids, " Uid: %u %u %u %u", &id[0], &id[1], &id[2], &id[3]) != 4)
        return 0;
    if (sscanf(pp, " PPid: %d", &parent) != 1)
        return 0;
    *trusted = true;
    for (int i = 0; i < 4; i++)
        *trusted = *trusted && id[i] == a->owner;
    return parent;
}

static uint64_t job_of_step_daemon(pid_t pid)
{
    static const char prefix[] = "slurmstepd: [";
    char buf[256];
    if (slurp(pid, "cmdline", buf, sizeof(buf)) <= 0)
        return 0;
    if (strncmp(buf, prefix, sizeof(prefix) - 1) != 0)
        return 0;
    return qg_number_ending_in(buf + sizeof(prefix) - 1, ".]");
}

static uint64_t job_of_ancestors(const struct arbiter *a, pid_t pid)
{
    bool trusted = false;
    for (int i = 0; i < MAX_ANCESTORS && pid > 1; i++) {
        pid_t parent = parent_of(a, pid, &trusted);
        uint64_t job = i > 0 && trusted ? job_of_step_daemon(pid) : 0;
        if (job)
            return job;
        pid = parent;
    }
    return 0;
}

/* When a process started, in clock ticks since boot. Together with the pid it names one process
 * only. 0 = the process ended. */
static uint64_t start_of(pid_t pid)
{
    char buf[1024];
    if (slurp(pid, "stat", buf, sizeof(buf)) <= 0)
        return 0;
    char *at = strrchr(buf, ')'); /* the last one: the program's name may contain others */
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? qg_number_ending_in(at + 1, " ") : 0;
}

/* The program that holds a grant without Slurm, from the file that qgpud keeps beside the grant. */
static bool program_of(const struct arbiter *a, uint64_t job_id, int *pid, uint64_t *start)
{
    char path[512], buf[256];
    struct stat st;
    snprintf(path, sizeof(path), "%s/grants/%" PRIu64 ".run", a->run_dir, job_id);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool ours =
        fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == a->owner && !(st.st_mode & 022);
    ssize_t got = ours ? read(fd, buf, sizeof(buf) - 1) : -1;
    close(fd);
    if (got <= 0)
        return false;
    buf[got] = 0;
    return sscanf(buf, " { \"pid\" : %d , \"start\" : %" SCNu64, pid, start) == 2 && *pid > 1 &&
           *start;
}

/* Does the process descend from the program that got the grant? A child that closed all descriptors
 * has no grant to show. Children of Python's subprocess and daemons do that. */
static bool below_program(const struct arbiter *a, pid_t pid, uint64_t job_id)
{
    int program;
    uint64_t start;
    bool trusted;
    if (!program_of(a, job_id, &program, &start))
        return false;
    for (int i = 0; i < MAX_ANCESTORS && pid > 1; i++) {
        if (pid == program)
            return start_of(pid) == start;
        pid = parent_of(a, pid, &trusted);
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
    uint64_t found = job_of_cgroup(pid);
    if (!found)
        found = job_of_ancestors(a, pid);
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
