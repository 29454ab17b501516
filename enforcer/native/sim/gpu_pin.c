/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory that a process registered, as the device side reaches it. A card writes a word into such memory without
 * anybody's help; through /proc/PID/mem it costs 4 us of the device side's time, which would be the kernels'. So what
 * can be mapped here is: pages of a file in memory that nobody can shorten, mapped shared and for writing.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "gpu.h"

struct gpu_pin {
    struct gpu_pin *next;
    uint64_t base, size; /* in the process */
    char *map;
};

struct area { /* a line of /proc/PID/maps */
    uint64_t start, end, offset;
};

static bool area_of(pid_t pid, uint64_t base, uint64_t size, struct area *area)
{
    char name[64], line[512], access[5];
    bool found = false;
    snprintf(name, sizeof name, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(name, "re");
    while (maps && !found && fgets(line, sizeof line, maps))
        found = sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64, &area->start, &area->end, access, &area->offset) == 4 &&
                area->start <= base && base < area->end;
    if (maps)
        fclose(maps);
    return found && size <= area->end - base && access[0] == 'r' && access[1] == 'w' && access[3] == 's';
}

/* It is still the process that asked: neither gone nor another user's by exec(2). */
static bool still(const struct gpu_conn *conn)
{
    struct pollfd end = {.fd = conn->pidfd, .events = POLLIN};
    char name[64];
    struct stat st;
    snprintf(name, sizeof name, "/proc/%d", (int)conn->pid);
    return stat(name, &st) == 0 && st.st_uid == conn->uid && poll(&end, 1, 0) == 0;
}

static int open_area(const struct gpu_conn *conn, const struct area *area)
{
    char name[96];
    struct statfs fs;
    snprintf(name, sizeof name, "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, (int)conn->pid, area->start, area->end);
    int fd = open(name, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int seals = fd >= 0 && fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC ? fcntl(fd, F_GET_SEALS) : -1;
    if (seals >= 0 && seals & F_SEAL_SHRINK && still(conn))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static char *map_area(const struct gpu_conn *conn, uint64_t base, uint64_t size)
{
    struct area area;
    struct stat st;
    if (!area_of(conn->pid, base, size, &area))
        return NULL;
    uint64_t offset = area.offset + (base - area.start);
    int fd = open_area(conn, &area);
    if (fd < 0)
        return NULL;
    void *map = MAP_FAILED;
    if (fstat(fd, &st) == 0 && offset + size <= (uint64_t)st.st_size) /* past the end a mapping faults */
        map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    close(fd);
    return map == MAP_FAILED ? NULL : map;
}

void gpu_pin(struct gpu_conn *conn, uint64_t base, uint64_t size)
{
    if (base % GPU_PAGE || size % GPU_PAGE || !size || size > GPU_PIN_MOST || conn->npins >= GPU_MAX_PINS)
        return;
    char *map = map_area(conn, base, size);
    struct gpu_pin *pin = map ? malloc(sizeof *pin) : NULL;
    if (pin) {
        *pin = (struct gpu_pin){conn->pins, base, size, map};
        conn->pins = pin;
        conn->npins++;
    } else if (map) {
        munmap(map, size);
    }
}

void gpu_unpin(struct gpu_conn *conn, uint64_t base)
{
    for (struct gpu_pin **link = &conn->pins; *link; link = &(*link)->next) {
        struct gpu_pin *pin = *link;
        if (pin->base != base)
            continue;
        *link = pin->next;
        conn->npins--;
        munmap(pin->map, pin->size);
        free(pin);
        return;
    }
}

void gpu_unpin_all(struct gpu_conn *conn)
{
    while (conn->pins)
        gpu_unpin(conn, conn->pins->base);
}

static char *pinned(const struct gpu_conn *conn, uint64_t address, size_t size)
{
    for (const struct gpu_pin *pin = conn->pins; pin; pin = pin->next)
        if (address >= pin->base && address - pin->base < pin->size)
            return address % size ? NULL : pin->map + (address - pin->base);
    return NULL;
}

/* Little endian: of four bytes the low half of the value. */
bool gpu_word_read(const struct gpu_conn *conn, uint64_t address, size_t size, uint64_t *value)
{
    const char *at = pinned(conn, address, size);
    *value = 0;
    if (!at)
        return pread(conn->mem, value, size, (off_t)address) == (ssize_t)size;
    *value = size == 8 ? __atomic_load_n((const uint64_t *)(const void *)at, __ATOMIC_ACQUIRE)
                       : __atomic_load_n((const uint32_t *)(const void *)at, __ATOMIC_ACQUIRE);
    return true;
}

bool gpu_word_write(const struct gpu_conn *conn, uint64_t address, size_t size, uint64_t value)
{
    char *at = pinned(conn, address, size);
    if (!at)
        return pwrite(conn->mem, &value, size, (off_t)address) == (ssize_t)size;
    if (size == 8)
        __atomic_store_n((uint64_t *)(void *)at, value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)(void *)at, (uint32_t)value, __ATOMIC_RELEASE);
    return true;
}
