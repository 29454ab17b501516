/* SPDX-License-Identifier: Apache-2.0
 *
 * See paths.h.
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

/* True if only root can change the directory st; a sticky one is good enough for a parent, because there
 * nobody can replace an entry that root owns. */
static bool only_root(const struct stat *st, bool is_parent)
{
    if (st->st_uid != 0)
        return false;
    if (!(st->st_mode & (S_IWGRP | S_IWOTH)))
        return true;
    return is_parent && (st->st_mode & S_ISVTX);
}

static bool parents_trusted(const char *path, char *why, size_t size)
{
    char real[PATH_MAX];
    struct stat st;

    if (!realpath(path, real)) {
        snprintf(why, size, "%s: %s", path, strerror(errno));
        return false;
    }
    for (char *slash = strrchr(real, '/'); slash; slash = strrchr(real, '/')) {
        *slash = '\0';
        const char *parent = *real ? real : "/";
        if (stat(parent, &st) != 0) {
            snprintf(why, size, "%s: %s", parent, strerror(errno));
            return false;
        }
        if (!only_root(&st, true)) {
            snprintf(why, size, "%s is writable by others than root (owner %u, mode %04o)", parent,
                     (unsigned)st.st_uid, (unsigned)(st.st_mode & 07777));
            errno = EPERM;
            return false;
        }
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
        snprintf(why, size, "%s must be owned by root and writable by nobody else (owner %u, mode %04o)", path,
                 (unsigned)st.st_uid, (unsigned)(st.st_mode & 07777));
        close(fd);
        errno = EPERM;
        return -1;
    }
    if (!parents_trusted(path, why, size)) {
        int err = errno;
        close(fd);
        errno = err;
        return -1;
    }
    return fd;
}
