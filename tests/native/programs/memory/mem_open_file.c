/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is exported as a character device, as NVIDIA's driver does: descriptors look alike.
 * `mem_open_file make` makes 32 and 64 MiB, and says the number of the second one's descriptor; it
 * then closes all numbers, and lets the second memory go before the first. `mem_open_file take
 * NUMBER PID` gets that descriptor and imports it; `hold` only keeps the descriptor for a while.
 */
#include <sys/stat.h>
#include <sys/syscall.h>

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
    } else {
        make();
    }
    step("end");
    return 0;
}
