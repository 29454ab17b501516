/* SPDX-License-Identifier: Apache-2.0
 *
 * The proof that Slurm loads the SPANK plugin (proof.h). A proof is one line that names one start
 * of one job. So a proof that was left behind is not valid later. It has the boot, the job and the
 * number of its requeues. It also has the version of grants that the plugin reads. It is read and
 * removed once.
 */
#include "proof.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paths.h"
#include "qgpu_abi.h"

#define BOOT_ID "/proc/sys/kernel/random/boot_id"

static const char *digits_of(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    size_t len = value ? strlen(value) : 0;

    return len > 0 && len < 20 && strspn(value, "0123456789") == len ? value : otherwise;
}

static bool boot_id(char *out, size_t size)
{
    int fd = open(BOOT_ID, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, out, size - 1);

    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return false;
    out[got] = '\0';
    out[strcspn(out, "\n ")] = '\0';
    return out[0] != '\0';
}

/* The line that the proof of this start must have, and the name of its file. */
static bool expected(char *line, size_t size, char *name, size_t name_size, char *why,
                     size_t why_size)
{
    char boot[64];
    const char *job = digits_of("SLURM_JOB_ID", NULL);

    if (!job || !boot_id(boot, sizeof(boot))) {
        snprintf(why, why_size, "%s",
                 job ? "the kernel does not give its " BOOT_ID : "SLURM_JOB_ID is no number");
        return false;
    }
    snprintf(name, name_size, "%s", job);
    snprintf(line, size, "qgpu-spank/1 job=%s restarts=%s boot=%s grant=%u\n", job,
             digits_of("SLURM_JOB_RESTART_COUNT", "0"), boot, QG_GRANT_VERSION);
    return true;
}

bool qg_proof_leave(const char *run_dir, char *why, size_t size)
{
    char line[QG_PROOF_MAX], name[32];

    if (!expected(line, sizeof(line), name, sizeof(name), why, size))
        return false;
    int dir = qg_open_own_dir(run_dir, QG_PROOF_DIR, 0700, why, size);
    if (dir < 0)
        return false;
    bool done = qg_leave_file(dir, name, 0600, line);
    if (!done)
        snprintf(why, size, "%s/" QG_PROOF_DIR "/%s: %s", run_dir, name, strerror(errno));
    close(dir);
    return done;
}

static ssize_t read_file(int dir, const char *name, char *out, size_t size)
{
    struct stat st;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t got = -1;

    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == 0 &&
        !(st.st_mode & (S_IWGRP | S_IWOTH)))
        got = read(fd, out, size - 1);
    close(fd);
    if (got >= 0)
        out[got] = '\0';
    return got;
}

/* Do the two lines differ only in the version of grants, which is their last word? */
static bool other_release(const char *found, const char *line)
{
    size_t same = (size_t)(strstr(line, " grant=") - line) + strlen(" grant=");

    if (strncmp(found, line, same) != 0)
        return false;
    return strcmp(found + same + strspn(found + same, "0123456789"), "\n") == 0;
}

bool qg_proof_take(const char *run_dir, char *why, size_t size)
{
    char line[QG_PROOF_MAX], found[QG_PROOF_MAX], name[32];

    if (!expected(line, sizeof(line), name, sizeof(name), why, size))
        return false;
    int dir = qg_open_own_dir(run_dir, QG_PROOF_DIR, 0, why, size);
    if (dir < 0)
        return false;
    ssize_t got = read_file(dir, name, found, sizeof(found));
    int err = errno;
    unlinkat(dir, name, 0);
    close(dir);
    if (got >= 0 && (size_t)got == strlen(line) && strcmp(found, line) == 0)
        return true;
    if (got < 0)
        snprintf(why, size, "%s/" QG_PROOF_DIR "/%s: %s", run_dir, name, strerror(err));
    else
        snprintf(why, size, "%s",
                 other_release(found, line) ? "the plugin is of another release of qgpu"
                                            : "its proof is of an earlier start of the job");
    return false;
}

void qg_proof_drop(const char *run_dir)
{
    char why[256];
    const char *job = digits_of("SLURM_JOB_ID", NULL);
    int dir = job ? qg_open_own_dir(run_dir, QG_PROOF_DIR, 0, why, sizeof(why)) : -1;

    if (dir < 0)
        return;
    unlinkat(dir, job, 0);
    close(dir);
}
