/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded into slurmd and slurmstepd of a sandbox with cgroups version 2 (files.wrap_slurmd).
 *
 * The kernel lists every mounted hierarchy in /proc/PID/cgroup, whatever the reader's mount
 * namespace has. Slurm's plugin refuses to start where it reads one of version 1. Here it reads the
 * line of version 2 alone, as on a host without the others.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

/* A line has a path of at most 4096 characters, and the kernel has some ten controllers. */
#define MOST 65536

typedef int open_fn(const char *path, int flags, ...);

/* The C library's. Other libraries' constructors open files before one of ours could run. */
static open_fn *real_open(void)
{
    static _Atomic(open_fn *) known;

    if (!known)
        known = (open_fn *)dlsym(RTLD_NEXT, "open");
    return known;
}

static bool tells_cgroups(const char *path)
{
    size_t length = strlen(path);
    return !strncmp(path, "/proc/", 6) && length > 7 && !strcmp(path + length - 7, "/cgroup");
}

static ssize_t read_all(int fd, char *text, size_t size)
{
    size_t have = 0;

    while (have < size) {
        ssize_t got = read(fd, text + have, size - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

/* A file with the line of version 2 in `text`; -1 if there is none. */
static int unified_line(const char *text)
{
    const char *line = strncmp(text, "0::", 3) ? strstr(text, "\n0::") : text;

    if (!line)
        return -1;
    line += *line == '\n';
    size_t length = strcspn(line, "\n") + 1;
    int fd = memfd_create("cgroup", MFD_CLOEXEC);
    if (fd >= 0 && (write(fd, line, length) != (ssize_t)length || lseek(fd, 0, SEEK_SET))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* `fd`, which was opened for reading, or in its place a file with the line of version 2. */
static int only_unified(int fd)
{
    char *text = malloc(MOST);
    ssize_t length = text ? read_all(fd, text, MOST - 1) : -1;
    int instead = -1;

    if (length > 0) {
        text[length] = 0;
        instead = unified_line(text);
    }
    free(text);
    if (instead < 0) {
        lseek(fd, 0, SEEK_SET);
        return fd;
    }
    close(fd);
    return instead;
}

__attribute__((visibility("default"))) int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    int fd = real_open()(path, flags, mode);
    return fd >= 0 && tells_cgroups(path) ? only_unified(fd) : fd;
}
