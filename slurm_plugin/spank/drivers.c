/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the driver's files (drivers.h). It reads the cache of ld.so itself: running ldconfig would
 * cost each task three milliseconds. The cache is root's file. Yet a damaged one must not crash the
 * task's process.
 *
 * Users choose LD_LIBRARY_PATH and rename directories at any moment. So root holds each file by a
 * descriptor, which no name leads to again (../common/paths.h).
 */
#include "drivers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/paths.h"

#define CACHE_MAX (64u << 20) /* bytes; a cache is some 100 KiB, a larger file is no cache */
#define OLD_MAGIC "ld.so-1.7.0"
#define NEW_MAGIC "glibc-ld.so.cache1.1"
/* Directories in which the driver or NVML lies. Chosen, not measured. */
#define MAX_DIRS 32
/* Directories of LD_LIBRARY_PATH that are searched. A bound on the time of a task's start; chosen,
 * not measured. */
#define MAX_OWN_DIRS 16

/* The layout of glibc's sysdeps/generic/dl-cache.h, which has been the same since 2.2. */
struct old_head {
    char magic[sizeof(OLD_MAGIC) - 1];
    char pad;
    uint32_t count;
};
struct new_head {
    char magic[sizeof(NEW_MAGIC) - 1];
    uint32_t count;
    uint32_t len_strings;
    uint32_t flags_and_extension[2];
    uint32_t unused[3];
};
struct new_entry {
    int32_t flags;
    uint32_t key;   /* offset of the SONAME */
    uint32_t value; /* offset of the path */
    uint32_t os_version;
    uint64_t hwcap;
};
_Static_assert(sizeof(struct old_head) == 16 && sizeof(struct new_head) == 48 &&
                   sizeof(struct new_entry) == 24,
               "layout of ld.so.cache");

struct dirs {
    size_t count;
    char at[MAX_DIRS][PATH_MAX];
};

static const char *library_of(const char *name)
{
    if (strncmp(name, QG_CUDA, sizeof(QG_CUDA) - 1) == 0)
        return QG_CUDA;
    return strncmp(name, QG_NVML, sizeof(QG_NVML) - 1) == 0 ? QG_NVML : NULL;
}

static void add_dir(struct dirs *dirs, const char *file)
{
    const char *slash = strrchr(file, '/');
    size_t len = slash ? (size_t)(slash - file) : 0;

    if (len == 0 || len >= PATH_MAX)
        return;
    for (size_t i = 0; i < dirs->count; i++)
        if (strlen(dirs->at[i]) == len && memcmp(dirs->at[i], file, len) == 0)
            return;
    if (dirs->count < MAX_DIRS)
        snprintf(dirs->at[dirs->count++], PATH_MAX, "%.*s", (int)len, file);
}

/* False: no descriptor is left, or no memory. Users choose these limits, so that fails the task:
 * else they would choose what is not covered. */
static bool may_skip(int err)
{
    return err != EMFILE && err != ENFILE && err != ENOMEM;
}

/* What the node has and root cannot use: one sentence is kept for slurmd's log. */
static bool skip(struct qg_targets *targets, bool own, int err)
{
    if (!own && err != ENOENT && !targets->skipped[0])
        snprintf(targets->skipped, sizeof(targets->skipped), "%s", targets->why);
    errno = err;
    return may_skip(err);
}

/* Takes the descriptor over. False: it is not a target. */
static bool keep(struct qg_targets *targets, int fd, const char *library, bool own)
{
    struct qg_target *found = &targets->at[targets->count];
    struct stat st;

    if (targets->count == QG_MAX_TARGETS) {
        targets->too_many = targets->too_many || !own;
        return false;
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) ||
        !qg_fd_path(fd, found->path, sizeof(found->path)))
        return false;
    if (strncmp(strrchr(found->path, '/') + 1, library, strlen(library)) != 0)
        return false; /* a symbolic link to another library, which must not be covered */
    for (size_t i = 0; i < targets->count; i++)
        if (strcmp(targets->at[i].path, found->path) == 0)
            return false;
    found->fd = fd;
    found->nvml = strcmp(library, QG_NVML) == 0;
    found->own = own;
    found->dev = st.st_dev;
    found->ino = st.st_ino;
    targets->count++;
    return true;
}

static bool add_file(struct qg_targets *targets, int dir, const char *name, bool own)
{
    const char *library = library_of(name);

    if (!library || (own && strcmp(library, QG_CUDA) != 0))
        return true;
    int fd = qg_open_trusted(dir, name, own ? QG_FOR_ALL : 0, targets->why, sizeof(targets->why));
    if (fd < 0)
        return skip(targets, own, errno);
    if (!keep(targets, fd, library, own))
        close(fd);
    return true;
}

static bool add_matches(struct qg_targets *targets, const char *path, bool own)
{
    const struct dirent *entry;
    bool done = true;
    int dir = qg_open_trusted(-1, path, own ? QG_FOR_ALL : 0, targets->why, sizeof(targets->why));

    if (dir < 0)
        return skip(targets, own, errno);
    int list = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = list < 0 ? NULL : fdopendir(list);
    if (!stream) {
        int err = errno;
        if (list >= 0)
            close(list);
        snprintf(targets->why, sizeof(targets->why), "%s: %s", path, strerror(err));
        close(dir);
        return skip(targets, own, err);
    }
    while (done && (entry = readdir(stream)) != NULL)
        done = add_file(targets, dir, entry->d_name, own);
    int err = errno;
    closedir(stream);
    close(dir);
    errno = err;
    return done;
}

/* The string at that offset of the cache, or NULL if it does not end inside the cache. */
static const char *text_at(const char *base, size_t size, uint32_t offset)
{
    return offset < size && memchr(base + offset, '\0', size - offset) ? base + offset : NULL;
}

static void dirs_of_cache(const char *base, size_t size, struct dirs *dirs)
{
    struct old_head old;
    struct new_head head;

    /* before glibc 2.32 the old format comes first, the new one behind it */
    if (size >= sizeof(old) && memcmp(base, OLD_MAGIC, sizeof(old.magic)) == 0) {
        memcpy(&old, base, sizeof(old));
        size_t skip = (sizeof(old) + 12 * (size_t)old.count + 7) & ~(size_t)7;
        if (skip >= size)
            return;
        base += skip;
        size -= skip;
    }
    if (size < sizeof(head) || memcmp(base, NEW_MAGIC, sizeof(head.magic)) != 0)
        return;
    memcpy(&head, base, sizeof(head));
    for (uint32_t i = 0;
         i < head.count && sizeof(head) + (i + 1ull) * sizeof(struct new_entry) <= size; i++) {
        struct new_entry entry;

        memcpy(&entry, base + sizeof(head) + i * sizeof(entry), sizeof(entry));
        const char *name = text_at(base, size, entry.key), *path = text_at(base, size, entry.value);
        if (name && path && path[0] == '/' && library_of(name))
            add_dir(dirs, path);
    }
}

/* Without a cache programs find the driver in its directory only. */
static bool read_cache(const char *path, struct dirs *dirs, struct qg_targets *targets)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool done = true;

    snprintf(targets->why, sizeof(targets->why), "%s cannot be read", path);
    if (fd < 0)
        return may_skip(errno);
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size < CACHE_MAX) {
        size_t size = (size_t)st.st_size;
        void *base = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (base == MAP_FAILED) {
            done = may_skip(errno);
        } else {
            dirs_of_cache(base, size, dirs);
            munmap(base, size);
        }
    }
    close(fd);
    return done;
}

bool qg_drivers_find(const char *driver_path, const char *ld_cache, struct qg_targets *targets)
{
    static struct dirs dirs;
    char real[PATH_MAX];
    bool done;

    dirs.count = 0;
    targets->count = 0;
    targets->too_many = false;
    targets->skipped[0] = '\0';
    add_dir(&dirs, driver_path);
    int fd = qg_open_trusted(-1, driver_path, 0, targets->why, sizeof(targets->why));
    if (fd < 0)
        return skip(targets, false, errno);
    if (qg_fd_path(fd, real, sizeof(real)))
        add_dir(&dirs, real);
    close(fd);
    done = read_cache(ld_cache, &dirs, targets);
    for (size_t i = 0; done && i < dirs.count; i++)
        done = add_matches(targets, dirs.at[i], false);
    return done;
}

static bool add_compat(struct qg_targets *targets, const char *pattern)
{
    glob_t found;
    bool done = true;
    int status = glob(pattern, GLOB_NOSORT, NULL, &found);

    if (status == GLOB_NOMATCH)
        return true;
    if (status != 0)
        return may_skip(errno);
    for (size_t i = 0; done && i < found.gl_pathc; i++)
        done = add_matches(targets, found.gl_pathv[i], true);
    globfree(&found);
    return done;
}

bool qg_drivers_own(const char *library_path, struct qg_targets *targets)
{
    char dir[PATH_MAX];
    bool done = add_compat(targets, "/usr/local/cuda*/compat") &&
                add_compat(targets, "/usr/local/cuda*/compat/lib*");

    for (int i = 0; done && i < MAX_OWN_DIRS && *library_path; i++) {
        size_t len = strcspn(library_path, ":;");
        if (library_path[0] == '/' && len < sizeof(dir)) {
            snprintf(dir, sizeof(dir), "%.*s", (int)len, library_path);
            done = add_matches(targets, dir, true);
        }
        library_path += len + (library_path[len] != '\0');
    }
    return done;
}

void qg_drivers_close(struct qg_targets *targets)
{
    for (size_t i = 0; i < targets->count; i++)
        close(targets->at[i].fd);
    targets->count = 0;
}
