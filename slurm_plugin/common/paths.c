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

/* The next name of the path in a walk. `fd` is -1, or the name's own O_PATH descriptor. */
struct step {
    int fd;
    struct stat st;
    char name[NAME_MAX + 1];
};

bool qg_fd_path(int fd, char *out, size_t size)
{
    char link[32];

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, out, size);
    if (len <= 0 || (size_t)len >= size)
        return false;
    out[len] = '\0';
    return true;
}

/* Writes "PATH: WHAT" with the step's path. False, for the caller to return. */
static bool refused(int here, const struct step *step, int err, const char *what, char *why,
                    size_t size)
{
    char folder[PATH_MAX];

    if (!qg_fd_path(here, folder, sizeof(folder)) || strcmp(folder, "/") == 0)
        folder[0] = '\0';
    snprintf(why, size, "%s/%s%s", folder, step->name, what);
    errno = err;
    return false;
}

static bool failed(int here, const struct step *step, int err, char *why, size_t size)
{
    char what[128];

    snprintf(what, sizeof(what), ": %s", strerror(err));
    return refused(here, step, err, what, why, size);
}

/* The number of the mount that an open file is on; 0 = unknown. */
static int mount_of(int fd)
{
    char path[48], text[512];

    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    int info = open(path, O_RDONLY | O_CLOEXEC);
    if (info < 0)
        return 0;
    ssize_t len = read(info, text, sizeof(text) - 1);
    close(info);
    text[len < 0 ? 0 : len] = '\0';
    const char *at = strstr(text, "mnt_id:");
    return at ? atoi(at + strlen("mnt_id:")) : 0;
}

/* Is the mount a FUSE file system of another user than root? An unknown mount counts as one. In a
 * row " - " and the last blank are the kernel's: it escapes blanks of users' texts. */
static bool users_fuse(int mount)
{
    char *row = NULL;
    size_t room = 0;
    bool users = true;
    FILE *table = fopen("/proc/self/mountinfo", "re");

    while (table && getline(&row, &room, table) > 0) {
        const char *kind = strstr(row, " - "), *options = strrchr(row, ' ');
        if (atoi(row) != mount || !kind)
            continue;
        users = strncmp(kind, " - fuse", 7) == 0 && !strstr(options, ",user_id=0,");
        break;
    }
    free(row);
    if (table)
        fclose(table);
    return users;
}

/* Can what is here be believed? A file system that is a user's program (FUSE) may claim any owner,
 * or never answer stat() and statfs(). So this comes before all calls that ask it. */
static bool of_the_kernel(int here, const struct step *step, char *why, size_t size)
{
    int mount = mount_of(step->fd);

    if (mount && (mount == mount_of(here) || !users_fuse(mount)))
        return true;
    return refused(here, step, EPERM, " is on a FUSE file system of a user", why, size);
}

/* O_DIRECTORY makes an automounter act; a link or a file is opened without it. */
static bool open_step(int here, struct step *step, char *why, size_t size)
{
    const int flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;

    step->fd = openat(here, step->name, flags | O_DIRECTORY);
    if (step->fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        step->fd = openat(here, step->name, flags);
    if (step->fd < 0)
        return failed(here, step, errno, why, size);
    return of_the_kernel(here, step, why, size) &&
           (fstat(step->fd, &step->st) == 0 || failed(here, step, errno, why, size));
}

static bool step_trusted(int here, const struct step *step, unsigned flags, char *why, size_t size)
{
    const struct stat *st = &step->st;
    bool link = S_ISLNK(st->st_mode), dir = S_ISDIR(st->st_mode);
    char what[128];

    if (!(link ? st->st_uid == 0 : only_root(st, dir))) {
        snprintf(what, sizeof(what), " is writable by others than root (owner %u, mode %04o)",
                 (unsigned)st->st_uid, (unsigned)(st->st_mode & 07777));
        return refused(here, step, EPERM, what, why, size);
    }
    if ((flags & QG_FOR_ALL) && !link && !(st->st_mode & (dir ? S_IXOTH : S_IROTH)))
        return failed(here, step, EACCES, why, size);
    return true;
}

/* Puts the target of the link `step` before `rest`, the remaining part of the path. */
static bool follow(int here, const struct step *step, char *rest, char *why, size_t size)
{
    char target[PATH_MAX], joined[PATH_MAX];
    ssize_t len = readlinkat(step->fd, "", target, sizeof(target) - 1);

    if (len < 0)
        return failed(here, step, errno, why, size);
    target[len] = '\0';
    if ((size_t)snprintf(joined, sizeof(joined), "%s/%s", target, rest) >= sizeof(joined))
        return failed(here, step, ENAMETOOLONG, why, size);
    memcpy(rest, joined, strlen(joined) + 1);
    return true;
}

/* Removes the first name from rest. False: rest is empty, or the name is too long, then *name is
 * not empty. */
static bool next_name(char *rest, char *name)
{
    size_t skip = strspn(rest, "/"), len = strcspn(rest + skip, "/");

    snprintf(name, NAME_MAX + 1, "%.*s", (int)(len > NAME_MAX ? NAME_MAX : len), rest + skip);
    if (len == 0 || len > NAME_MAX)
        return false;
    memmove(rest, rest + skip + len, strlen(rest + skip + len) + 1);
    return true;
}

/* Goes one step from *here, which it replaces. A link only changes rest. */
static bool take(int *here, struct step *step, char *rest, unsigned flags, char *why, size_t size)
{
    if (!open_step(*here, step, why, size) || !step_trusted(*here, step, flags, why, size))
        return false;
    if (S_ISLNK(step->st.st_mode)) {
        if ((flags & QG_NO_LAST_LINK) && !rest[strspn(rest, "/")])
            return failed(*here, step, ELOOP, why, size);
        if (!follow(*here, step, rest, why, size))
            return false;
        if (rest[0] != '/')
            return true;
        close(step->fd);
        step->fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (step->fd < 0)
            return failed(*here, step, errno, why, size);
    }
    close(*here);
    *here = step->fd;
    step->fd = -1;
    return true;
}

static int walk(int here, char *rest, unsigned flags, char *why, size_t size)
{
    struct step step = {.fd = -1};
    bool done = true;
    int links = 0;

    while (done && next_name(rest, step.name)) {
        if (strcmp(step.name, ".") == 0)
            continue;
        done = take(&here, &step, rest, flags, why, size);
        if (done && S_ISLNK(step.st.st_mode) && ++links > MAX_LINKS)
            done = failed(here, &step, ELOOP, why, size);
        int err = errno;
        if (step.fd >= 0)
            close(step.fd);
        step.fd = -1;
        errno = err;
    }
    if (done && step.name[0] && rest[strspn(rest, "/")])
        done = failed(here, &step, ENAMETOOLONG, why, size);
    if (done)
        return here;
    int err = errno;
    close(here);
    errno = err;
    return -1;
}

int qg_open_trusted(int from, const char *path, unsigned flags, char *why, size_t size)
{
    char rest[PATH_MAX];

    if ((from < 0 && path[0] != '/') ||
        (size_t)snprintf(rest, sizeof(rest), "%s", path) >= sizeof(rest)) {
        snprintf(why, size, "%.200s is no absolute path", path);
        errno = EINVAL;
        return -1;
    }
    int here = path[0] == '/' ? open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)
                              : openat(from, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (here < 0) {
        int err = errno;
        snprintf(why, size, "%.200s: %s", path, strerror(err));
        errno = err;
        return -1;
    }
    return walk(here, rest, flags, why, size);
}

bool qg_path_trusted(const char *path, char *why, size_t size)
{
    int fd = qg_open_trusted(-1, path, 0, why, size);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

int qg_open_trusted_dir(const char *path, char *why, size_t size)
{
    struct stat st;
    int place = qg_open_trusted(-1, path, QG_NO_LAST_LINK, why, size);

    if (place < 0)
        return -1;
    int fd = openat(place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int err = errno;
    close(place);
    if (fd < 0) {
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
