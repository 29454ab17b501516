/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is exported as a character device, as NVIDIA's driver does: descriptors look alike.
 * `mem_open_file make` makes 32 and 64 MiB, and says the number of the second one's descriptor; it
 * then closes all numbers, and lets the second memory go before the first. `mem_open_file take
 * NUMBER PID` gets that descriptor and imports it; `hold` only keeps the descriptor for a while.
 * `mem_open_file replace` puts an epoll instance of its own in the place of the shim's.
 */
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "step.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static const CUmemAllocationProp wanted = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .requestedHandleTypes = FD,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};

static void make(void)
{
    CUmemGenericAllocationHandle first, second;
    struct stat one, two;
    int files[3];
    MUST(CALL(cuMemCreate)(&first, 32 * MIB, &wanted, 0));
    MUST(CALL(cuMemCreate)(&second, 64 * MIB, &wanted, 0));
    for (int i = 0; i < 2; i++)
        MUST(CALL(cuMemExportToShareableHandle)(&files[i], first, FD, 0));
    MUST(CALL(cuMemExportToShareableHandle)(&files[2], second, FD, 0));
    MUST(fstat(files[0], &one) || fstat(files[2], &two));
    MUST(!S_ISCHR(one.st_mode) || one.st_ino != two.st_ino || one.st_dev != two.st_dev);
    printf("%d\n", files[2]);
    step("made");
    for (int i = 0; i < 3; i++)
        close(files[i]);
    step("numbers_closed");
    MUST(CALL(cuMemRelease)(second));
    step("let_go");
    MUST(CALL(cuMemRelease)(first));
}

static int entries_of(int epoll)
{
    char line[256];
    int count = 0;
    snprintf(line, sizeof(line), "/proc/self/fdinfo/%d", epoll);
    FILE *info = fopen(line, "r");
    MUST(!info);
    while (fgets(line, sizeof(line), info))
        count += !strncmp(line, "tfd:", 4);
    fclose(info);
    return count;
}

/* The number of the epoll instance with that many entries. */
static int epoll_with(int entries)
{
    for (int fd = 3; fd < 1024; fd++) {
        char path[32], what[32] = "";
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        if (readlink(path, what, sizeof(what) - 1) > 0 && !strcmp(what, "anon_inode:[eventpoll]") &&
            entries_of(fd) == entries)
            return fd;
    }
    return -1;
}

static void replace(void)
{
    CUmemGenericAllocationHandle handle;
    struct epoll_event event = {.events = EPOLLIN};
    int files[2], ends[2], own = epoll_create1(0);
    MUST(CALL(cuMemCreate)(&handle, 32 * MIB, &wanted, 0));
    MUST(CALL(cuMemExportToShareableHandle)(&files[0], handle, FD, 0));
    int theirs = epoll_with(1);
    MUST(theirs < 0 || pipe(ends) || epoll_ctl(own, EPOLL_CTL_ADD, ends[0], &event));
    MUST(dup2(own, theirs) != theirs);
    MUST(CALL(cuMemExportToShareableHandle)(&files[1], handle, FD, 0));
    MUST(entries_of(own) != 1);
    pid_t child = fork(); /* it closes what it inherited of the shim, and nothing else */
    if (!child)
        _exit(entries_of(theirs) != 1);
    int status;
    MUST(waitpid(child, &status, 0) != child || status);
    step("replaced");
    MUST(CALL(cuMemRelease)(handle));
}

static int received(int number, int pid)
{
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    int file = (int)syscall(SYS_pidfd_getfd, process, number, 0); /* as if it had been sent */
    MUST(file < 0);
    step("received");
    return file;
}

static void take(int file)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr space;
    MUST(CALL(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)file, FD));
    close(file);
    MUST(CALL(cuMemAddressReserve)(&space, 64 * MIB, 0, 0, 0));
    MUST(CALL(cuMemMap)(space, 64 * MIB, 0, handle, 0));
    MUST(CALL(cuMemRelease)(handle));
    step("taken");
    MUST(CALL(cuMemUnmap)(space, 64 * MIB));
    step("closed");
}

int main(int argc, char **argv)
{
    begin();
    if (argc == 4 && !strcmp(argv[1], "take")) {
        take(received(atoi(argv[2]), atoi(argv[3])));
    } else if (argc == 4) {
        close(received(atoi(argv[2]), atoi(argv[3])));
        step("dropped");
    } else if (!strcmp(argv[1], "replace")) {
        replace();
    } else {
        make();
    }
    step("end");
    return 0;
}
