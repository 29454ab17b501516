/* SPDX-License-Identifier: Apache-2.0
 *
 * Injection by mounts. As root, in the task's own process, this makes a mount namespace. In it the
 * shim covers every file that a program could open as the driver. So a program gets the shim
 * whatever its environment is. Absolute paths and dlmopen() lead to it too. The namespace ends with
 * its last process, so nothing has to be undone. The user has no rights over it. Covered files stay
 * covered in a user namespace of his own: the kernel locks inherited mounts.
 *
 * The propagation is slave, not private. So mounts made here are not seen elsewhere. Mounts that
 * the node makes later still reach the job (autofs, a network share that comes back).
 *
 * Root mounts open files, found through directories that root alone can change (paths.h). A path
 * through a user's directory would lead to any file by the time it is mounted.
 */
#include "spank_qgpu.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "../common/paths.h"
#include "drivers.h"

#define LD_CACHE        "/etc/ld.so.cache"
#define LD_PRELOAD_FILE "/etc/ld.so.preload"
#define OUR_PRELOAD     QG_TASK_DIR "/ld.so.preload"
#define LIST_MAX        16384 /* bytes of /etc/ld.so.preload with our lines; chosen, not measured */
#define TMPFS_FLAGS     (MS_NOSUID | MS_NODEV | MS_NOEXEC)

struct why {
    char *text;
    size_t size;
};

__attribute__((format(printf, 2, 3))) static bool failed(const struct why *why, const char *format,
                                                         ...)
{
    int err = errno;
    va_list ap;

    va_start(ap, format);
    int len = vsnprintf(why->text, why->size, format, ap);
    va_end(ap);
    if (len >= 0 && (size_t)len < why->size)
        snprintf(why->text + len, why->size - (size_t)len, ": %s", strerror(err));
    return false;
}

static bool write_file(const char *path, const void *data, size_t size, const struct why *why)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

    if (fd < 0)
        return failed(why, "%s cannot be made", path);
    bool done = write(fd, data, size) == (ssize_t)size && fchmod(fd, 0444) == 0;
    if (!done)
        failed(why, "%s cannot be written", path);
    close(fd);
    return done;
}

/* Mounts an open file. `to` is a path that root alone can change; `shown` is its name in errors. */
static bool bind(int from, const char *to, const char *shown, const struct why *why)
{
    char link[32];

    snprintf(link, sizeof(link), "/proc/self/fd/%d", from);
    return mount(link, to, NULL, MS_BIND, NULL) == 0 ||
           failed(why, "a file cannot be mounted over %s", shown);
}

static int open_trusted(const char *path, const struct why *why)
{
    return qg_open_trusted(-1, path, 0, why->text, why->size);
}

/* Makes the mount namespace, and in it a tmpfs at QG_TASK_DIR. The empty directory stays on the
 * node, as the mount point of later tasks. The tmpfs has 256 KiB and 512 inodes, for some files of
 * a few KiB; chosen, not measured. */
static bool make_task_dir(const struct why *why)
{
    char link[32];

    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0)
        return failed(why, "the task gets no mount namespace of its own");
    if (mkdir(QG_TASK_DIR, 0755) != 0 && errno != EEXIST)
        return failed(why, QG_TASK_DIR " cannot be made");
    int dir = qg_open_trusted_dir(QG_TASK_DIR, why->text, why->size);
    if (dir < 0)
        return false;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
    bool done =
        mount("qgpu", link, "tmpfs", TMPFS_FLAGS, "mode=0755,size=256k,nr_inodes=512") == 0 ||
        failed(why, "no file system can be mounted at " QG_TASK_DIR);
    close(dir);
    return done && (mkdir(QG_TASK_REAL, 0755) == 0 || failed(why, QG_TASK_REAL " cannot be made"));
}

/* Mounts a real library at `place`, below QG_TASK_REAL. Nothing but reading and running is left:
 * the file may be writable where only its directory protects it. */
static bool keep_file(int library, const char *place, const struct why *why)
{
    struct statvfs fs;

    if (!write_file(place, "", 0, why) || !bind(library, place, place, why))
        return false;
    /* a remount sets all flags, so noexec must be said again */
    if (fstatvfs(library, &fs) != 0 || mount(NULL, place, NULL,
                                             MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID |
                                                 MS_NODEV | (fs.f_flag & ST_NOEXEC ? MS_NOEXEC : 0),
                                             NULL) != 0)
        return failed(why, "%s cannot be made read-only", place);
    return true;
}

/* Mounts the real library at a path that the shim knows, before the shim covers it. */
static bool keep_real(const char *library, const char *name, const struct why *why)
{
    char place[128];
    int fd = open_trusted(library, why);

    if (fd < 0)
        return false;
    snprintf(place, sizeof(place), QG_TASK_REAL "/%s", name);
    bool done = keep_file(fd, place, why);
    close(fd);
    return done;
}

/* Mounts a driver library of the program's own below QG_TASK_REAL, at its own path. The shim finds
 * it there (compat.c). */
static bool keep_own(const struct qg_target *target, const struct why *why)
{
    char place[PATH_MAX + sizeof(QG_TASK_REAL)];

    snprintf(place, sizeof(place), QG_TASK_REAL "%s", target->path);
    for (char *at = place + sizeof(QG_TASK_REAL); (at = strchr(at, '/')) != NULL; *at++ = '/') {
        *at = '\0';
        if (mkdir(place, 0755) != 0 && errno != EEXIST)
            return failed(why, "%s cannot be made", place);
    }
    return keep_file(target->fd, place, why);
}

static bool keep_all_own(const struct qg_targets *targets, const struct why *why)
{
    for (size_t i = 0; i < targets->count; i++)
        if (targets->at[i].own && !keep_own(&targets->at[i], why))
            return false;
    return true;
}

/* The node's NVML: the file beside the driver, else the first one in ld.so's cache. NULL = the node
 * has none, which is no fault. */
static const char *real_nvml(const char *driver_path, const struct qg_targets *targets, char *out,
                             size_t size)
{
    const char *slash = strrchr(driver_path, '/');

    if (slash &&
        snprintf(out, size, "%.*s/" QG_NVML_NAME, (int)(slash - driver_path), driver_path) <
            (int)size &&
        access(out, R_OK) == 0)
        return out;
    for (size_t i = 0; i < targets->count; i++)
        if (targets->at[i].nvml)
            return targets->at[i].path;
    return NULL;
}

static bool cover_with(const struct qg_targets *targets, const char *ours, bool nvml,
                       const struct why *why)
{
    struct stat st;
    char link[32];
    int fd = open_trusted(ours, why);
    bool done = fd >= 0;

    if (done && fstat(fd, &st) != 0)
        done = failed(why, "%s", ours);
    for (size_t i = 0; done && i < targets->count; i++) {
        const struct qg_target *target = &targets->at[i];

        if (target->nvml != nvml || (target->dev == st.st_dev && target->ino == st.st_ino))
            continue;
        snprintf(link, sizeof(link), "/proc/self/fd/%d", target->fd);
        done = bind(fd, link, target->path, why);
    }
    if (fd >= 0)
        close(fd);
    return done;
}

static bool cover(const struct qg_targets *targets, const char *shim, const char *nvml,
                  const struct why *why)
{
    return cover_with(targets, shim, false, why) &&
           (!*nvml || cover_with(targets, nvml, true, why));
}

/* Covers /etc/ld.so.preload with a list of the shim, qgpu's NVML, and what the node's own file has.
 */
static bool cover_preload(const char *shim, const char *nvml, const struct why *why)
{
    static char list[LIST_MAX];
    int len = snprintf(list, sizeof(list), "%s\n%s%s", shim, nvml, *nvml ? "\n" : "");
    int fd = open(LD_PRELOAD_FILE, O_RDONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);

    if (fd < 0)
        return failed(why, LD_PRELOAD_FILE " cannot be made; an empty one is enough");
    ssize_t got = read(fd, list + len, sizeof(list) - (size_t)len);
    close(fd);
    if (got < 0 || (size_t)got == sizeof(list) - (size_t)len) {
        errno = got < 0 ? errno : EFBIG;
        return failed(why, LD_PRELOAD_FILE " cannot be read");
    }
    if (!write_file(OUR_PRELOAD, list, (size_t)len + (size_t)got, why))
        return false;
    int ours = open_trusted(OUR_PRELOAD, why);
    if (ours < 0)
        return false;
    bool done = bind(ours, LD_PRELOAD_FILE, LD_PRELOAD_FILE, why);
    close(ours);
    return done;
}

static bool find_all(const struct qg_grant *grant, const char *library_path,
                     struct qg_targets *targets, const struct why *why)
{
    if (!qg_drivers_find(grant->driver_path, LD_CACHE, targets))
        return failed(why, "the driver's files cannot be opened");
    if (targets->too_many || targets->count == 0) {
        errno = targets->count ? E2BIG : ENOENT;
        return failed(why, "files named libcuda.so* beside %s", grant->driver_path);
    }
    return qg_drivers_own(library_path, targets) ||
           failed(why, "the libraries of LD_LIBRARY_PATH cannot be opened");
}

static bool make_all(struct qg_grant *grant, const char *nvml, const struct qg_targets *targets,
                     const struct why *why)
{
    char beside[sizeof(grant->driver_path) + sizeof(QG_NVML_NAME)];

    if (!keep_real(grant->driver_path, QG_CUDA ".1", why) || !keep_all_own(targets, why))
        return false;
    const char *nvml_real =
        *nvml ? real_nvml(grant->driver_path, targets, beside, sizeof(beside)) : NULL;
    if (nvml_real && !keep_real(nvml_real, QG_NVML_NAME, why))
        return false;
    memset(grant->driver_path, 0, sizeof(grant->driver_path));
    snprintf(grant->driver_path, sizeof(grant->driver_path), "%s", QG_TASK_REAL "/" QG_CUDA ".1");
    if (!write_file(QG_TASK_GRANT, grant, sizeof(*grant), why) ||
        !cover(targets, grant->shim_path, nvml, why) || !cover_preload(grant->shim_path, nvml, why))
        return false;
    if (mount(NULL, QG_TASK_DIR, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | TMPFS_FLAGS, NULL) != 0)
        return failed(why, QG_TASK_DIR " cannot be made read-only");
    return true;
}

bool qg_mounts_make(struct qg_grant *grant, const char *nvml, const char *library_path, char *text,
                    size_t size)
{
    static struct qg_targets targets;
    const struct why why = {text, size};

    text[0] = '\0';
    targets.count = 0;
    bool done = make_task_dir(&why) && find_all(grant, library_path, &targets, &why) &&
                make_all(grant, nvml, &targets, &why);
    if (done && targets.skipped[0])
        snprintf(text, size, "this library is not covered: %s", targets.skipped);
    qg_drivers_close(&targets);
    return done;
}
