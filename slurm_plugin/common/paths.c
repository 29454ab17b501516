/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of paths that root acts on; paths.h describes each function.
 */
#include "paths.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_LINKS 16 /* symbolic links on one path; a loop ends here; chosen, not measured */

bool qg_node_name_ok(const char *node)
{
    if (!node || !*node || *node == '.' || strlen(node) >= 64)
        return false;
    for (const char *c = node; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._-", *c))
            return false;
    return true;
}

bool qg_expand_node(const char *pattern, const char *node, char *out, size_t size)
{
    size_t used = 0;

    while (*pattern) {
        const char *piece = pattern;
        size_t len = 1;

        if (pattern[0] == '%' && pattern[1] == 'n') {
            if (!qg_node_name_ok(node))
                return false;
            piece = node;
            len = strlen(node);
            pattern += 2;
        } else {
            pattern++;
        }
        if (used + len + 1 > size)
            return false;
        memcpy(out + used, piece, len);
        used += len;
    }
    out[used] = '\0';
    return used > 0;
}

/* True if only root can change the directory st. A parent may be sticky: there no other user can
 * replace an entry that root owns. */
static bool only_root(const struct stat *st, bool is_parent)
{
    if (st->st_uid != 0)
        return false;
    if (!(st->st_mode & (S_IWGRP | S_IWOTH)))
        return true;
    return is_parent && (st->st_mode & S_ISVTX);
}

static bool step_trusted(const char *step, const struct stat *st, char *why, size_t size)
{
    bool link = S_ISLNK(st->st_mode);

    if (link ? st->st_uid == 0 : only_root(st, S_ISDIR(st->st_mode)))
        return true;
    snprintf(why, size, "%s is writable by others than root (owner %u, mode %04o)", step,
             (unsigned)st->st_uid, (unsigned)(st->st_mode & 07777));
    errno = EPERM;
    return false;
}

/* Puts the target of the link `step` before `rest`, the remaining part of the path. */
static bool follow(const char *step, char *rest, char *why, size_t size)
{
    char target[PATH_MAX], joined[PATH_MAX];
    ssize_t len = readlink(step, target, sizeof(target) - 1);

    if (len < 0) {
        snprintf(why, size, "%s: %s", step, strerror(errno));
        return false;
    }
    target[len] = '\0';
    if ((size_t)snprintf(joined, sizeof(joined), "%s/%s", target, rest) >= sizeof(joined)) {
        snprintf(why, size, "%s leads to a path that is too long", step);
        errno = ENAMETOOLONG;
        return false;
    }
    memcpy(rest, joined, strlen(joined) + 1);
    return true;
}

/* Removes the first name from rest; step becomes here + "/" + that name. False: rest is empty. */
static bool next_step(char *rest, const char *here, char *step, size_t size)
{
    size_t skip = strspn(rest, "/"), len = strcspn(rest + skip, "/");

    if (len == 0)
        return false;
    snprintf(step, size, "%s/%.*s", here, (int)len, rest + skip);
    memmove(rest, rest + skip + len, strlen(rest + skip + len) + 1);
    return true;
}

bool qg_path_trusted(const char *path, char *why, size_t size)
{
    char rest[PATH_MAX], here[PATH_MAX] = "", step[2 * PATH_MAX];
    struct stat st;
    int links = 0;

    if (path[0] != '/' || (size_t)snprintf(rest, sizeof(rest), "%s", path) >= sizeof(rest)) {
        snprintf(why, size, "%.200s is no absolute path", path);
        errno = EINVAL;
        return false;
    }
    while (next_step(rest, here, step, sizeof(step))) {
        const char *name = strrchr(step, '/') + 1;

        if (strcmp(name, ".") == 0)
            continue;
        if (strcmp(name, "..") == 0) {
            if (strrchr(here, '/'))
                *strrchr(here, '/') = '\0';
            continue;
        }
        if (lstat(step, &st) != 0) {
            snprintf(why, size, "%s: %s", step, strerror(errno));
            return false;
        }
        if (!step_trusted(step, &st, why, size))
            return false;
        if (!S_ISLNK(st.st_mode)) {
            snprintf(here, sizeof(here), "%.*s", (int)sizeof(here) - 1, step);
            continue;
        }
        if (++links > MAX_LINKS || !follow(step, rest, why, size)) {
            errno = ELOOP;
            return false;
        }
        if (rest[0] == '/')
            here[0] = '\0';
    }
    return true;
}

int qg_open_trusted_dir(const char *path, char *why, size_t size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0) {
        int err = errno;
        snprintf(why, size, "%s: %s", path, strerror(err));
        errno = err;
        return -1;
    }
    if (fstat(fd, &st) != 0 || !only_root(&st, false)) {
        snprintf(why, size,
                 "%s must be owned by root and writable by no other user (owner %u, mode %04o)",
                 path, (unsigned)st.st_uid, (unsigned)(st.st_mode & 07777));
        close(fd);
        errno = EPERM;
        return -1;
    }
    if (!qg_path_trusted(path, why, size)) {
        int err = errno;
        close(fd);
        errno = err;
        return -1;
    }
    return fd;
}

int qg_open_own_dir(const char *run_dir, const char *name, unsigned mode, char *why, size_t size)
{
    char path[PATH_MAX];

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", run_dir, name) >= sizeof(path)) {
        snprintf(why, size, "%s is too long a path", run_dir);
        errno = ENAMETOOLONG;
        return -1;
    }
    if (mode && mkdir(path, mode) != 0 && errno != EEXIST) {
        int err = errno;
        snprintf(why, size, "%s: %s", path, strerror(err));
        errno = err;
        return -1;
    }
    return qg_open_trusted_dir(path, why, size);
}

bool qg_leave_file(int dir, const char *name, unsigned mode, const char *text)
{
    char temporary[64];

    snprintf(temporary, sizeof(temporary), ".%.31s.%d.tmp", name, (int)getpid());
    unlinkat(dir, temporary, 0);
    int fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) &&
                fchmod(fd, mode) == 0 && renameat(dir, temporary, dir, name) == 0;
    int err = errno;
    if (!done)
        unlinkat(dir, temporary, 0);
    if (fd >= 0)
        close(fd);
    errno = err;
    return done;
}
