/* SPDX-License-Identifier: Apache-2.0
 *
 * The slurmstepds of this node's jobs, and what they are in. Of one thread of a program only.
 */
#ifndef QG_STEPS_H
#define QG_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Ancestors that are checked. A bound on reads below /proc; deeper trees are not recognised.
 * Chosen, not measured. */
enum { MAX_ANCESTORS = 64 };
/* Slurmstepds of a job on record. One finds all processes of the job by its cgroup. Chosen, not
 * measured. */
enum { MAX_STEPS_PER_JOB = 32 };

struct step_daemon {
    uint64_t job;
    int pid;
    uint64_t start; /* with the pid it names one process only */
};

/* The job whose slurmstepd is recorded in run_dir/steps, and in whose cgroup or below which the
 * process is. 0 = none. Only records of `owner` count. */
uint64_t steps_job_of(const char *run_dir, uid_t owner, pid_t pid);

/* How many living slurmstepds of the job are on record, this process not counted. Removes the
 * records of those that ended, of all jobs. */
unsigned int steps_others(int dir, uid_t owner, uint64_t job);

/* The length of the job's directory in the path of a slurmstepd's cgroup; 0 = it is in none. */
size_t steps_job_dir(const char *path, size_t len);
/* The lines of a slurmstepd's cgroup file, each cut to the job's directory. The caller frees it. */
char *steps_job_dirs(const char *text);
/* Is a line of the cgroup file `text` at or below one of `dirs`? The length of that one; 0 = no. */
size_t steps_inside(const char *text, const char *dirs);

/* Reads a small file of /proc, NUL-terminated; returns its length or -1. */
ssize_t slurp(pid_t pid, const char *name, char *buf, size_t cap);
/* When a process started, in clock ticks since boot. 0 = the process ended. */
uint64_t start_of(pid_t pid);
pid_t parent_of(pid_t pid); /* 0 = it ended */
/* Reads a file that only `owner` can write. */
bool steps_read(int dir, const char *name, uid_t owner, char *buf, size_t cap, ino_t *inode);

#endif
