/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory of the device side: device nodes, socket, the number of the control device. If
 * no process holds the lock on the directory, what a killed predecessor left there is removed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "serve.h"

#define SIM_MIG_MINORS "mig-minors" /* as /proc/driver/nvidia-caps/mig-minors */

static bool complain(const char *what, const char *where)
{
    fprintf(stderr, "qgpu-simgpu: cannot %s %s: %s\n", what, where, strerror(errno));
    return false;
}

static bool open_dir(struct gpu *gpu)
{
    struct stat st;
    const char *dir = gpu->config.dir;
    if (mkdir(dir, 0755) != 0 && errno != EEXIST)
        return complain("create the directory", dir);
    gpu->dir = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (gpu->dir < 0)
        return complain("open the directory", dir);
    if (fstat(gpu->dir, &st) != 0 || st.st_uid != geteuid() || st.st_mode & 022) {
        fprintf(stderr,
                "qgpu-simgpu: %s must belong to the user that runs this and be writable by no "
                "other\n",
                dir);
        return false;
    }
    return true;
}

static bool take_lock(struct gpu *gpu)
{
    if (flock(gpu->dir, LOCK_EX | LOCK_NB) != 0) {
        fprintf(stderr, "qgpu-simgpu: another one serves %s already\n", gpu->config.dir);
        return false;
    }
    gpu->locked = true;
    return true;
}

static void remove_leftovers(struct gpu *gpu)
{
    char name[32];
    unlinkat(gpu->dir, SIM_SOCK, 0);
    for (unsigned i = 0; i < SIM_MAX_CARDS; i++) {
        snprintf(name, sizeof name, "dev/qgpusim%u", i);
        unlinkat(gpu->dir, name, 0);
        snprintf(name, sizeof name, "dev/qgpusim-card%u", i);
        unlinkat(gpu->dir, name, 0);
        snprintf(name, sizeof name, "dev/qgpusim-gi%u", i);
        unlinkat(gpu->dir, name, 0);
    }
    unlinkat(gpu->dir, SIM_MIG_MINORS, 0);
    unlinkat(gpu->dir, SIM_CONTROL, 0);
    unlinkat(gpu->dir, "dev", AT_REMOVEDIR);
}

/* 245 by default; if a driver has it here, the first unused one of the range for local and
 * experimental use. */
static unsigned unused_major(unsigned wanted)
{
    bool used[512] = {false};
    char line[128];
    unsigned major;
    FILE *devices = fopen("/proc/devices", "re");
    bool chars = false;
    while (devices && fgets(line, sizeof line, devices)) {
        if (strchr(line, ':'))
            chars = line[0] == 'C';
        else if (chars && sscanf(line, "%u", &major) == 1 && major < 512)
            used[major] = true;
    }
    if (devices)
        fclose(devices);
    if (!used[wanted])
        return wanted;
    for (major = 240; major <= 254; major++)
        if (!used[major])
            return major;
    return wanted;
}

static bool make_node(struct gpu *gpu, const char *kind, unsigned index, unsigned minor)
{
    char name[32];
    snprintf(name, sizeof name, "dev/qgpusim%s%u", kind, index);
    if (mknodat(gpu->dir, name, S_IFCHR | 0666, makedev(gpu->config.major, minor)) != 0) {
        if (errno != EPERM || geteuid() == 0)
            return complain("make the device node", name);
        /* Without root: a plain file whose mode decides as well who sees the card. */
        int fd = openat(gpu->dir, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
        if (fd < 0)
            return complain("make", name);
        close(fd);
    }
    return fchmodat(gpu->dir, name, 0666, 0) == 0 || complain("chmod", name);
}

static bool make_device(struct gpu *gpu, const struct gpu_card *card)
{
    unsigned first = card->index - (gpu->config.mig ? card->index % gpu->config.mig : 0);
    if (!make_node(gpu, "", card->index, card->minor))
        return false;
    return !gpu->config.mig ||
           (make_node(gpu, "-gi", card->index, card->minor + SIM_MIG_GI_MINOR) &&
            (card->index != first ||
             make_node(gpu, "-card", first / gpu->config.mig, card->minor + SIM_MIG_CARD_MINOR)));
}

/* GPU instances count from 1 and have one compute instance each, of number 0. */
static bool make_minors(struct gpu *gpu)
{
    unsigned mig = gpu->config.mig;
    int fd = openat(gpu->dir, SIM_MIG_MINORS, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file)
        return complain("make", SIM_MIG_MINORS);
    for (unsigned i = 0; i < gpu->config.cards; i++) {
        unsigned card = gpu->cards[i - i % mig].minor + SIM_MIG_CARD_MINOR,
                 minor = gpu->cards[i].minor;
        fprintf(file, "gpu%u/gi%u/access %u\ngpu%u/gi%u/ci0/access %u\n", card, i % mig + 1,
                minor + SIM_MIG_GI_MINOR, card, i % mig + 1, minor);
    }
    return (fclose(file) == 0 && fchmodat(gpu->dir, SIM_MIG_MINORS, 0644, 0) == 0) ||
           complain("write", SIM_MIG_MINORS);
}

static bool make_socket(struct gpu *gpu)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    /* By descriptor: a directory's name may be longer than a socket's address. */
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", gpu->dir, SIM_SOCK);
    gpu->listen = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (gpu->listen < 0 || bind(gpu->listen, (struct sockaddr *)&address, sizeof address) != 0 ||
        fchmodat(gpu->dir, SIM_SOCK, 0666, 0) != 0 || listen(gpu->listen, 128) != 0)
        return complain("listen on", SIM_SOCK);
    return true;
}

bool gpu_node_open(struct gpu *gpu)
{
    gpu->dir = gpu->listen = gpu->trace = -1;
    if (!open_dir(gpu) || !take_lock(gpu))
        return false;
    remove_leftovers(gpu);
    gpu->config.major = unused_major(gpu->config.major);
    if (mkdirat(gpu->dir, "dev", 0755) != 0 && errno != EEXIST)
        return complain("create", "dev");
    for (unsigned i = 0; i < gpu->config.cards; i++)
        if (!gpu_card_init(gpu, i) || !make_device(gpu, &gpu->cards[i]))
            return false;
    if (gpu->config.mig && !make_minors(gpu))
        return false;
    return (!gpu->config.trace || gpu_trace_open(gpu)) && make_socket(gpu);
}

bool gpu_node_tell_control(struct gpu *gpu)
{
    const struct gpu_fuse *fuse = &gpu->rm->fuse;
    int fd = openat(gpu->dir, SIM_CONTROL, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file)
        return complain("make", SIM_CONTROL);
    if (fuse->device >= 0)
        fprintf(file, "%llu %llu\n", (unsigned long long)fuse->st_dev,
                (unsigned long long)fuse->st_ino);
    else
        fputs("none\n", file);
    return fclose(file) == 0 || complain("write", SIM_CONTROL);
}

/* The trace stays: it is read after the end. */
void gpu_node_close(struct gpu *gpu)
{
    gpu_trace_flush(gpu);
    if (gpu->listen >= 0)
        close(gpu->listen);
    if (gpu->locked)
        remove_leftovers(gpu);
}
