/* SPDX-License-Identifier: Apache-2.0
 *
 * The descriptors of exported memory. By default each leads to the file of the contents. With
 * QGPU_SIM_EXPORTS=device they are as NVIDIA's: each has an open file of its own, and all are the
 * same character device. Masters of pseudo terminals are such files, and the kernel keeps 64 bits
 * with each, the size of the window. These say where the maker has the contents.
 */
#include "cu_alloc.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define MAGIC 0x51e7u

struct place { /* as long as a struct winsize */
    uint16_t magic, file;
    uint32_t pid;
};
_Static_assert(sizeof(struct place) == sizeof(struct winsize), "a place does not fit");

static int device_for(int contents)
{
    struct place place = {MAGIC, (uint16_t)contents, (uint32_t)getpid()};
    struct winsize size;
    memcpy(&size, &place, sizeof size);
    int fd = contents > UINT16_MAX ? -1 : open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 && ioctl(fd, TIOCSWINSZ, &size) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int cu_export_open(int contents)
{
    const char *kind = getenv(SIM_ENV_EXPORTS);
    return kind && strcmp(kind, "device") == 0 ? device_for(contents)
                                               : fcntl(contents, F_DUPFD_CLOEXEC, 0);
}

int cu_export_contents(int fd)
{
    struct winsize size;
    struct place place;
    char path[64];
    if (ioctl(fd, TIOCGWINSZ, &size) != 0)
        return fcntl(fd, F_DUPFD_CLOEXEC, 0);
    memcpy(&place, &size, sizeof place);
    snprintf(path, sizeof path, "/proc/%u/fd/%u", place.pid, place.file);
    return place.magic == MAGIC ? open(path, O_RDWR | O_CLOEXEC) : -1;
}
