/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory between processes. `mem_share make KIND` makes 64 MiB and gives them away as KIND (ipc,
 * file or pool): the step "made" is followed by what another process needs: the handle in
 * hexadecimal, or the number of a descriptor of this process. `mem_share take KIND WHAT PID` takes
 * them. One more word, and it then executes `mem_share idle`. KIND alike is file, but all
 * descriptors lead to one file; device: to one character device. `mem_share external` imports
 * memory of another interface; `mem_share own kept`, `number` and `import` keep and take their own
 * descriptors.
 */
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "step.h"

#define SIZE (64 * MIB)

static const CUmemAllocationProp wanted_file = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
/* what kind of file all of them are; 0: the simulated driver's own, which differ */
static mode_t alike;
static bool idles;

/* Before that of libc, for the shim too. */
int fstat(int fd, struct stat *st)
{
    char link[32], name[64] = "";
    int result = (int)syscall(SYS_fstat, fd, st);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (result == 0 && alike && readlink(link, name, sizeof(name) - 1) > 0 &&
        strstr(name, "qgpu-sim-memory")) {
        st->st_dev = 5;
        st->st_ino = 7;
        st->st_mode = alike | 0600;
    }
    return result;
}

/* What fstat was until glibc 2.33, and by which name the shim calls it. */
int __fxstat(int version, int fd, struct stat *st);
int __fxstat(int version, int fd, struct stat *st)
{
    (void)version;
    return fstat(fd, st);
}

static void maybe_idle(void)
{
    if (idles)
        execl("/proc/self/exe", "mem_share", "idle", NULL);
}

static void make_ipc(void)
{
    CUdeviceptr pointer;
    CUipcMemHandle handle;
    MUST(CALL(cuMemAlloc_v2)(&pointer, SIZE));
    MUST(CALL(cuIpcGetMemHandle)(&handle, pointer));
    for (size_t i = 0; i < sizeof(handle); i++)
        printf("%02x", (unsigned char)handle.reserved[i]);
    printf("\n");
    step("made");
    maybe_idle();
    MUST(CALL(cuMemFree_v2)(pointer));
    step("let_go");
}

static void make_file(void)
{
    CUmemGenericAllocationHandle handle, other;
    int file, others;
    if (alike == S_IFREG) {
        MUST(CALL(cuMemCreate)(&other, SIZE / 2, &wanted_file, 0));
        MUST(CALL(cuMemExportToShareableHandle)(&others, other,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    }
    MUST(CALL(cuMemCreate)(&handle, SIZE, &wanted_file, 0));
    MUST(CALL(cuMemExportToShareableHandle)(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            0));
    if (alike == S_IFREG) {
        close(others);
        MUST(CALL(cuMemRelease)(other));
    }
    printf("%d\n", file);
    step("made");
    maybe_idle();
    close(file);
    MUST(CALL(cuMemRelease)(handle));
    step("let_go");
}

/* A descriptor keeps its memory, whether anybody takes it or not. */
static void kept_by_descriptors(void)
{
    CUmemGenericAllocationHandle handle, more;
    int files[2];
    MUST(CALL(cuMemCreate)(&handle, SIZE, &wanted_file, 0));
    for (int i = 0; i < 2; i++)
        MUST(CALL(cuMemExportToShareableHandle)(&files[i], handle,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(CALL(cuMemRelease)(handle));
    step("kept");
    close(files[0]);
    REFUSED(CALL(cuMemCreate)(&more, 200 * MIB, &wanted_file, 0));
    step("kept_by_one");
    close(files[1]);
    MUST(CALL(cuMemCreate)(&more, 200 * MIB, &wanted_file, 0)); /* at once */
    step("returned");
    MUST(CALL(cuMemExportToShareableHandle)(&files[0], more,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(files[0]);
    MUST(CALL(cuMemRelease)(more));
    step("closed_before");
}

/* The same descriptor number, and an export that looks the same, of other memory. */
static void number_given_again(void)
{
    CUmemGenericAllocationHandle first, second;
    int one, two;
    alike = S_IFCHR;
    MUST(CALL(cuMemCreate)(&first, SIZE, &wanted_file, 0));
    MUST(CALL(cuMemCreate)(&second, SIZE / 2, &wanted_file, 0));
    MUST(CALL(cuMemExportToShareableHandle)(&one, first, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            0));
    close(one);
    MUST(CALL(cuMemExportToShareableHandle)(&two, second, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            0));
    MUST(one != two);
    MUST(CALL(cuMemRelease)(first));
    step("number_again");
    close(two);
    MUST(CALL(cuMemRelease)(second));
    alike = 0;
    step("number_gone");
}

static void own_import(void)
{
    CUmemGenericAllocationHandle handle, again, more;
    int file;
    MUST(CALL(cuMemCreate)(&handle, SIZE, &wanted_file, 0));
    MUST(CALL(cuMemExportToShareableHandle)(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            0));
    MUST(CALL(cuMemImportFromShareableHandle)(&again, (void *)(intptr_t)file,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    MUST(CALL(cuMemRelease)(handle));
    step("own_import");
    MUST(CALL(cuMemRelease)(again));
    MUST(CALL(cuMemCreate)(&more, 200 * MIB, &wanted_file, 0));
    step("own_import_gone");
    MUST(CALL(cuMemRelease)(more));
}

static void take_ipc(const char *text)
{
    CUipcMemHandle handle;
    CUdeviceptr pointer;
    for (size_t i = 0; i < sizeof(handle); i++) {
        unsigned int byte;
        MUST(sscanf(text + 2 * i, "%2x", &byte) != 1);
        handle.reserved[i] = (char)byte;
    }
    int result =
        (int)CALL(cuIpcOpenMemHandle_v2)(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        step("refused");
        return;
    }
    MUST(result);
    step("taken");
    maybe_idle();
    MUST(CALL(cuIpcCloseMemHandle)(pointer));
    step("closed");
}

static void take_file(int number, int pid)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr space;
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    int file = (int)syscall(SYS_pidfd_getfd, process, number, 0); /* as if it had been sent */
    MUST(file < 0);
    MUST(CALL(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)file,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    MUST(CALL(cuMemAddressReserve)(&space, SIZE, 0, 0, 0));
    int result = (int)CALL(cuMemMap)(space, SIZE, 0, handle, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        step("refused");
        return;
    }
    MUST(result);
    MUST(CALL(cuMemRelease)(handle));
    step("taken");
    maybe_idle();
    MUST(CALL(cuMemUnmap)(space, SIZE));
    step("closed");
}

/* A pool and a pointer of it by their shareable names. */
static void make_pool(void)
{
    CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemoryPool own;
    CUdeviceptr pointer;
    CUmemPoolPtrExportData name;
    int file;
    MUST(CALL(cuMemPoolCreate)(&own, &wanted));
    MUST(CALL(cuMemAllocFromPoolAsync)(&pointer, SIZE, own, stream));
    MUST(CALL(cuMemPoolExportToShareableHandle)(&file, own,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(CALL(cuMemPoolExportPointer)(&name, pointer));
    printf("%d:", file);
    for (size_t i = 0; i < sizeof(name); i++)
        printf("%02x", ((unsigned char *)&name)[i]);
    printf("\n");
    step("made");
    MUST(CALL(cuMemFreeAsync)(pointer, stream));
    MUST(CALL(cuMemPoolDestroy)(own));
    MUST(CALL(cuStreamSynchronize)(stream));
    step("let_go");
}

static void take_pool(const char *text, int pid)
{
    CUmemoryPool pool;
    CUdeviceptr pointer, none;
    CUmemPoolPtrExportData name;
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    int file = (int)syscall(SYS_pidfd_getfd, process, atoi(text), 0);
    text = strchr(text, ':') + 1;
    for (size_t i = 0; i < sizeof(name); i++) {
        unsigned int byte;
        MUST(sscanf(text + 2 * i, "%2x", &byte) != 1);
        ((unsigned char *)&name)[i] = (unsigned char)byte;
    }
    MUST(CALL(cuMemPoolImportFromShareableHandle)(&pool, (void *)(intptr_t)file,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(CALL(cuMemPoolImportPointer)(&pointer, pool, &name));
    step("taken");
    /* nothing comes out of it */
    MUST(CALL(cuMemAllocFromPoolAsync)(&none, MIB, pool, stream) == CUDA_SUCCESS);
    MUST(CALL(cuMemFreeAsync)(pointer, stream));
    MUST(CALL(cuStreamSynchronize)(stream));
    MUST(CALL(cuMemPoolDestroy)(pool));
    step("closed");
}

static void external(void)
{
    CUexternalMemory memory;
    CUdeviceptr buffer;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC wanted = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
                                               .size = SIZE};
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {.size = SIZE};
    wanted.handle.fd = memfd_create("vulkan", 0);
    MUST(CALL(cuImportExternalMemory)(&memory, &wanted));
    step("imported");
    MUST(CALL(cuExternalMemoryGetMappedBuffer)(&buffer, memory, &whole));
    step("buffer");
    MUST(CALL(cuMemFree_v2)(buffer));
    MUST(CALL(cuDestroyExternalMemory)(memory));
    wanted.size = 257 * MIB;
    wanted.handle.fd = memfd_create("vulkan", 0);
    REFUSED(CALL(cuImportExternalMemory)(&memory, &wanted));
    step("destroyed");
}

static void make(const char *kind)
{
    (!strcmp(kind, "ipc") ? make_ipc : !strcmp(kind, "pool") ? make_pool : make_file)();
}

static void take(const char *kind, const char *what, int pid)
{
    if (!strcmp(kind, "pool"))
        take_pool(what, pid);
    else if (!strcmp(kind, "ipc"))
        take_ipc(what);
    else
        take_file(atoi(what), pid);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 2 ? argv[2] : "";
    begin();
    alike = !strcmp(kind, "alike") ? S_IFREG : !strcmp(kind, "device") ? S_IFCHR : 0;
    if (argc == 2 && !strcmp(argv[1], "external")) {
        external();
    } else if (argc == 3 && !strcmp(argv[1], "own")) {
        (!strcmp(kind, "kept")     ? kept_by_descriptors
         : !strcmp(kind, "number") ? number_given_again
                                   : own_import)();
    } else if ((argc == 3 || argc == 4) && !strcmp(argv[1], "make")) {
        idles = argc == 4;
        make(kind);
    } else if (argc == 5 || argc == 6) {
        idles = argc == 6;
        take(kind, argv[3], atoi(argv[4]));
    } else if (argc != 2 || strcmp(argv[1], "idle")) {
        return 1;
    }
    step("end");
    return 0;
}
