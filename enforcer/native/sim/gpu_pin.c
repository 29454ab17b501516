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
    char *map;           /* NULL: it cannot be mapped here */
    bool gone;           /* it is registered no more: who writes there faults */
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

static void unmap(struct gpu_pin *pin)
{
    if (pin->map)
        munmap(pin->map, pin->size);
    pin->map = NULL;
}

static void forget(struct gpu_conn *conn, struct gpu_pin **link)
{
    struct gpu_pin *pin = *link;
    *link = pin->next;
    conn->npins--;
    unmap(pin);
    free(pin);
}

/* What was registered there before is of no interest any more. Too many: the oldest neither. */
static void make_place(struct gpu_conn *conn, uint64_t base, uint64_t size)
{
    struct gpu_pin **link = &conn->pins;
    for (uint32_t kept = 0; *link;) {
        struct gpu_pin *pin = *link;
        bool over = pin->gone && pin->base < base + size && base < pin->base + pin->size;
        if (over || ++kept >= GPU_MAX_PINS)
            forget(conn, link);
        else
            link = &pin->next;
    }
}

void gpu_pin(struct gpu_conn *conn, uint64_t base, uint64_t size)
{
    if (!size || base + size < base)
        return;
    make_place(conn, base, size);
    struct gpu_pin *pin = malloc(sizeof *pin);
    if (!pin)
        return;
    bool pages = base % GPU_PAGE == 0 && size % GPU_PAGE == 0 && size <= GPU_PIN_MOST;
    *pin = (struct gpu_pin){conn->pins, base, size, pages ? map_area(conn, base, size) : NULL, false};
    conn->pins = pin;
    conn->npins++;
}

void gpu_unpin(struct gpu_conn *conn, uint64_t base)
{
    for (struct gpu_pin *pin = conn->pins; pin; pin = pin->next) {
        if (pin->base != base || pin->gone)
            continue;
        unmap(pin);
        pin->gone = true;
        return;
    }
}

void gpu_unpin_all(struct gpu_conn *conn)
{
    while (conn->pins)
        forget(conn, &conn->pins);
}

static const struct gpu_pin *pin_of(const struct gpu_conn *conn, uint64_t address)
{
    const struct gpu_pin *pin = conn->pins;
    while (pin && !(address >= pin->base && address - pin->base < pin->size))
        pin = pin->next;
    return pin;
}

bool gpu_pin_gone(const struct gpu_conn *conn, uint64_t address)
{
    const struct gpu_pin *pin = pin_of(conn, address);
    return pin && pin->gone;
}

static char *pinned(const struct gpu_conn *conn, uint64_t address, size_t size)
{
    const struct gpu_pin *pin = pin_of(conn, address);
    return pin && pin->map && address % size == 0 ? pin->map + (address - pin->base) : NULL;
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
