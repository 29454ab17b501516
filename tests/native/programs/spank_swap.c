/* SPDX-License-Identifier: Apache-2.0
 *
 * A user who renames directories under root, for test_spank_paths.py. It is preloaded into
 * slurmstepd's stand-in. Before call QGPU_SWAP_AT of those below, by root in the task's process, it
 * exchanges D and the first directory, and QGPU_SWAP_GAP calls later D and the second one.
 * QGPU_SWAP_IN has all three: d, first, second.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void exchange(int in, const char *other)
{
    if (renameat2(in, "d", in, other, RENAME_EXCHANGE) != 0)
        abort();
}

static pid_t stage; /* slurmstepd's stand-in; the task's process is its child */

__attribute__((constructor)) static void note(void)
{
    stage = getpid();
}

static void step(void)
{
    static int calls;
    const char *at = getenv("QGPU_SWAP_AT"), *gap = getenv("QGPU_SWAP_GAP");
    const char *place = getenv("QGPU_SWAP_IN");

    if (getpid() == stage || geteuid() != 0 || !at || !gap || !place)
        return;
    int due = calls++ - atoi(at);
    if (due != 0 && due != atoi(gap))
        return;
    int in = (int)syscall(SYS_openat, AT_FDCWD, place, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (in < 0)
        abort();
    exchange(in, due == 0 ? "first" : "second");
    close(in);
}

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);

    if (!found)
        abort();
    return found;
}

int stat(const char *restrict path, struct stat *restrict st)
{
    step();
    return ((int (*)(const char *, struct stat *))real("stat"))(path, st);
}

int fstat(int fd, struct stat *st)
{
    step();
    return ((int (*)(int, struct stat *))real("fstat"))(fd, st);
}

int openat(int dir, const char *path, int flags, ...)
{
    step();
    return ((int (*)(int, const char *, int, ...))real("openat"))(dir, path, flags, 0600);
}

int mount(const char *from, const char *to, const char *type, unsigned long flags, const void *data)
{
    step();
    return ((int (*)(const char *, const char *, const char *, unsigned long, const void *))real(
        "mount"))(from, to, type, flags, data);
}
