/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory that a process registered, as the device side reaches it. A card writes a word into
 * such memory by itself. A write through /proc/PID/mem takes the device side 4 us, which would be
 * missing from kernels. So memory that can be mapped here is mapped: pages of a memfd of root that
 * is sealed against shrinking, if the process mapped them shared and for writing.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "gpu.h"

struct gpu_pin {
    struct gpu_pin *next;
    uint64_t base, size; /* in the process */
    char *map;           /* NULL: it cannot be mapped here */
    /* since when it is registered no more: words that were queued before fault; 0: it is */
    uint64_t gone_ns;
};

struct area { /* a line of /proc/PID/maps */
    uint64_t start, end, offset;
    unsigned major, minor;
    uint64_t inode;
};

/* The device of all files in memory that have no name; nothing else is even opened. */
static dev_t memory_device(void)
{
    static dev_t device;
    struct stat st;
    int fd = device ? -1 : memfd_create("qgpu-sim-probe", MFD_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0)
        device = st.st_dev;
    if (fd >= 0)
        close(fd);
    return device;
}

/* The rest of a long name is skipped: it may look like a line. */
static bool next_line(FILE *maps, char *line, int size)
{
    if (!fgets(line, size, maps))
        return false;
    for (int c = 0; !strchr(line, '\n') && c != '\n' && c != EOF;)
        c = getc(maps);
    return true;
}

static bool area_of(pid_t pid, uint64_t base, uint64_t size, struct area *area)
{
    char name[64], line[512], access[5];
    bool found = false;
    snprintf(name, sizeof name, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(name, "re");
    while (maps && !found && next_line(maps, line, sizeof line))
        found = sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64, &area->start,
                       &area->end, access, &area->offset, &area->major, &area->minor,
                       &area->inode) == 7 &&
                area->start <= base && base < area->end;
    if (maps)
        fclose(maps);
    return found && size <= area->end - base && access[0] == 'r' && access[1] == 'w' &&
           access[3] == 's' && makedev(area->major, area->minor) == memory_device();
}

static int open_area(const struct gpu_conn *conn, const struct area *area, uint64_t end)
{
    struct pollfd over = {.fd = conn->pidfd, .events = POLLIN};
    char name[96];
    struct stat st;
    snprintf(name, sizeof name, "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, (int)conn->pid,
             area->start, area->end);
    int fd = open(name, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    /* Root's: what a job made would be filled with our memory. Past the end of a file a mapping
     * faults. */
    bool good = fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
                st.st_dev == memory_device() && st.st_ino == area->inode &&
                end <= (uint64_t)st.st_size;
    int seals = good ? fcntl(fd, F_GET_SEALS) : -1;
    if (seals >= 0 && seals & F_SEAL_SHRINK && gpu_same_user(conn->pid, conn->uid) &&
        poll(&over, 1, 0) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static char *map_area(const struct gpu_conn *conn, uint64_t base, uint64_t size)
{
    struct area area;
    if (!area_of(conn->pid, base, size, &area))
        return NULL;
    uint64_t offset = area.offset + (base - area.start);
    int fd = open_area(conn, &area, offset + size);
    if (fd < 0)
        return NULL;
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    close(fd);
    return map == MAP_FAILED ? NULL : map;
}

static uint32_t mapped; /* of all processes */

static void unmap(struct gpu_pin *pin)
{
    if (pin->map && munmap(pin->map, pin->size) == 0)
        mapped--;
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

/* What was registered there before is of no interest any more; of too many the oldest of these
 * neither. */
static bool make_place(struct gpu_conn *conn, uint64_t base, uint64_t size)
{
    struct gpu_pin **link = &conn->pins, **oldest = NULL;
    while (*link) {
        struct gpu_pin *pin = *link;
        if (pin->gone_ns && pin->base < base + size && base < pin->base + pin->size) {
            forget(conn, link);
            continue;
        }
        oldest = pin->gone_ns ? link : oldest;
        link = &pin->next;
    }
    if (conn->npins >= GPU_MAX_PINS && oldest)
        forget(conn, oldest);
    return conn->npins < GPU_MAX_PINS;
}

void gpu_pin(struct gpu_conn *conn, uint64_t base, uint64_t size)
{
    if (!size || base + size < base || !make_place(conn, base, size))
        return;
    struct gpu_pin *pin = malloc(sizeof *pin);
    if (!pin)
        return;
    bool pages = base % GPU_PAGE == 0 && size % GPU_PAGE == 0 && size <= GPU_PIN_MOST &&
                 mapped < GPU_MAX_MAPPED;
    *pin = (struct gpu_pin){conn->pins, base, size, pages ? map_area(conn, base, size) : NULL, 0};
    mapped += pin->map != NULL;
    conn->pins = pin;
    conn->npins++;
}

void gpu_unpin(struct gpu_conn *conn, uint64_t base)
{
    for (struct gpu_pin *pin = conn->pins; pin; pin = pin->next) {
        if (pin->base != base || pin->gone_ns)
            continue;
        unmap(pin);
        pin->gone_ns = gpu_now();
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

bool gpu_pin_gone(const struct gpu_conn *conn, uint64_t address, uint64_t since_ns)
{
    const struct gpu_pin *pin = pin_of(conn, address);
    return pin && since_ns < pin->gone_ns;
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
