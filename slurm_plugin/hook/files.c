/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that the hook writes when qgpud does not answer: the reason of the last failure, and a note
 * that a job ended.
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../common/paths.h"
#include "qgpu_abi.h"

static int open_grants(const struct hook *hook, char *why, size_t size)
{
    char path[PATH_MAX];

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", hook->run_dir, QG_GRANTS_DIR) >=
        sizeof(path)) {
        snprintf(why, size, "%s is too long a path", hook->run_dir);
        return -1;
    }
    return qg_open_trusted_dir(path, why, size);
}

bool hook_has_grant(const struct hook *hook)
{
    char name[64], why[HOOK_TEXT_MAX];
    int dir = open_grants(hook, why, sizeof(why));

    if (dir < 0)
        return false;
    snprintf(name, sizeof(name), "%s.json", hook->job_id);
    bool found = faccessat(dir, name, F_OK, 0) == 0;
    close(dir);
    return found;
}

bool hook_daemon_was_here(const struct hook *hook)
{
    char why[HOOK_TEXT_MAX];
    int dir = qg_open_trusted_dir(hook->run_dir, why, sizeof(why));

    if (dir < 0)
        return false;
    bool found = faccessat(dir, QG_SOCK_HOOK, F_OK, 0) == 0;
    close(dir);
    return found;
}

bool hook_leave_ended_marker(const struct hook *hook, char *why, size_t size)
{
    char name[64];
    int dir = open_grants(hook, why, size);

    if (dir < 0)
        return false;
    snprintf(name, sizeof(name), "%s.ended", hook->job_id);
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool done = fd >= 0 && fsync(fd) == 0 && fsync(dir) == 0;
    if (!done)
        snprintf(why, size, "%s/%s/%s: %s", hook->run_dir, QG_GRANTS_DIR, name, strerror(errno));
    if (fd >= 0)
        close(fd);
    close(dir);
    return done;
}

void hook_write_last_failure(const struct hook *hook, const char *sentence)
{
    static const char tmp[] = "last-failure.tmp";
    char why[HOOK_TEXT_MAX], stamp[32] = "", line[HOOK_TEXT_MAX + 256];
    time_t now = time(NULL);
    struct tm tm;
    int dir = qg_open_trusted_dir(hook->run_dir, why, sizeof(why));

    if (dir < 0)
        return; /* slurmd logs the same sentence, from standard error */
    if (gmtime_r(&now, &tm))
        strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", &tm);
    int len = snprintf(line, sizeof(line), "%s hook=%s job=%s %s\n", stamp,
                       hook->kind == HOOK_PROLOG ? "prolog" : "epilog", hook->job_id, sentence);
    if (len > (int)sizeof(line) - 1)
        len = (int)sizeof(line) - 1;
    unlinkat(dir, tmp, 0);
    int fd = openat(dir, tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd >= 0 && write(fd, line, (size_t)len) == len)
        (void)renameat(dir, tmp, dir, "last-failure");
    if (fd >= 0)
        close(fd);
    close(dir);
}
