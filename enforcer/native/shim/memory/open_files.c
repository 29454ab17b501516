/* SPDX-License-Identifier: Apache-2.0
 *
 * Exported descriptors are put into an epoll instance without a waiter. It holds no reference:
 * the kernel takes an entry out when the last descriptor of the open file is closed, in whatever
 * process. So it says which exported files are still open, also those whose number here was closed.
 * kcmp(2) compares a descriptor of another process with an entry.
 */
#include "memory/open_files.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/kcmp.h>

/* Entries of one process that are looked at. Chosen, not measured; an importer pays for memory
 * behind further ones. */
#define ENTRIES 512u

/* A name: mark (2 bits), pid (22, the kernel's limit), number of the epoll instance, serial (20
 * each). Other names are hashes; one that looks like this leads nowhere. */
#define MARK      (2ull << 62)
#define NUMBERS   (1u << 20)
#define PID_OF(n) ((uint32_t)((n) >> 40) & 0x3fffff)
#define SET_OF(n) ((int)((n) >> 20) & (int)(NUMBERS - 1))

static int set = -1;           /* the epoll instance */
static uint32_t serial, maker; /* pid of the process that made it */

struct entry {
    int number; /* at which it was put in; it may have been closed since */
    uint64_t name;
};

/* What an epoll instance holds, in the order in which kcmp counts entries of one number. */
static unsigned entries_of(uint32_t pid, int number, struct entry *out)
{
    char line[256];
    unsigned count = 0;
    snprintf(line, sizeof(line), "/proc/%u/fdinfo/%d", pid, number);
    FILE *info = fopen(line, "re");
    while (info && count < ENTRIES && fgets(line, sizeof(line), info)) {
        unsigned long long name;
        int at;
        if (sscanf(line, "tfd: %d events: %*x data: %llx", &at, &name) == 2)
            out[count++] = (struct entry){at, name};
    }
    if (info)
        fclose(info);
    return count;
}

bool qg_open_file_of(uint64_t name, uint32_t pid)
{
    return (name & 3ull << 62) == MARK && PID_OF(name) == pid;
}

/* A program may close all its descriptors and be given the number for an epoll instance of its own.
 * Ours has entries of ours alone. */
static bool set_is_ours(void)
{
    struct entry entries[ENTRIES];
    char path[32], what[32] = "";
    snprintf(path, sizeof(path), "/proc/self/fd/%d", set);
    if (set < 0 || readlink(path, what, sizeof(what) - 1) < 0 ||
        strcmp(what, "anon_inode:[eventpoll]") != 0)
        return false;
    unsigned count = entries_of((uint32_t)getpid(), set, entries);
    for (unsigned i = 0; i < count; i++)
        if (!qg_open_file_of(entries[i].name, maker))
            return false;
    return true;
}

void qg_open_files_after_fork(void)
{
    if (set_is_ours())
        close(set);
    set = -1;
}

bool qg_open_file_is_device(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISCHR(st.st_mode);
}

/* A process in a PID namespace of its own has another pid there than in the job page: it is not
 * followed, nor does it follow others. */
uint64_t qg_open_file_name(uint32_t pid)
{
    if (!pid || pid != (uint32_t)getpid())
        return 0;
    if (!set_is_ours()) {
        set = epoll_create1(EPOLL_CLOEXEC);
        maker = pid;
    }
    if (set < 0 || (unsigned)set >= NUMBERS)
        return 0;
    return MARK | (uint64_t)pid << 40 | (uint64_t)set << 20 | (serial++ & (NUMBERS - 1));
}

bool qg_open_file_watch(int fd, uint64_t name)
{
    struct epoll_event none = {.data.u64 = name};
    return set_is_ours() && epoll_ctl(set, EPOLL_CTL_ADD, fd, &none) == 0;
}

bool qg_open_file_is_open(uint64_t name)
{
    struct entry entries[ENTRIES];
    unsigned count = set < 0 ? 0 : entries_of((uint32_t)getpid(), set, entries);
    for (unsigned i = 0; i < count; i++)
        if (entries[i].name == name)
            return true;
    return false;
}

uint64_t qg_open_file_match(uint64_t like, int fd)
{
    struct entry entries[ENTRIES];
    unsigned count = entries_of(PID_OF(like), SET_OF(like), entries);
    for (unsigned i = 0; i < count; i++) {
        struct kcmp_epoll_slot slot = {.efd = (uint32_t)SET_OF(like),
                                       .tfd = (uint32_t)entries[i].number};
        for (unsigned before = 0; before < i; before++)
            slot.toff += entries[before].number == entries[i].number;
        if (syscall(SYS_kcmp, getpid(), PID_OF(like), KCMP_EPOLL_TFD, fd, &slot) == 0)
            return entries[i].name;
    }
    return 0;
}
