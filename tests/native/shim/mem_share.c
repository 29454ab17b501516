/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory between processes. `mem_share make KIND` makes 64 MiB and gives them away as KIND (ipc, file or pool): the step
 * "made" is followed by what another process needs: the handle in hexadecimal, or the number of a descriptor of this
 * process. `mem_share take KIND WHAT PID` takes them. `mem_share external` imports memory of another interface.
 */
#include <sys/mman.h>
#include <sys/syscall.h>

#include "step.h"

#define SIZE (64 * MIB)

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
    MUST(CALL(cuMemFree_v2)(pointer));
    step("let_go");
}

static void make_file(void)
{
    CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle;
    int file;
    MUST(CALL(cuMemCreate)(&handle, SIZE, &wanted, 0));
    MUST(CALL(cuMemExportToShareableHandle)(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    printf("%d\n", file);
    step("made");
    MUST(CALL(cuMemRelease)(handle));
    step("let_go");
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
    int result = (int)CALL(cuIpcOpenMemHandle_v2)(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        step("refused");
        return;
    }
    MUST(result);
    step("taken");
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
    MUST(CALL(cuMemPoolExportToShareableHandle)(&file, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
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
    MUST(CALL(cuMemAllocFromPoolAsync)(&none, MIB, pool, stream) == CUDA_SUCCESS); /* nothing comes out of it */
    MUST(CALL(cuMemFreeAsync)(pointer, stream));
    MUST(CALL(cuStreamSynchronize)(stream));
    MUST(CALL(cuMemPoolDestroy)(pool));
    step("closed");
}

static void external(void)
{
    CUexternalMemory memory;
    CUdeviceptr buffer;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC wanted = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = SIZE};
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

int main(int argc, char **argv)
{
    begin();
    if (argc == 2 && !strcmp(argv[1], "external"))
        external();
    else if (argc == 3)
        (!strcmp(argv[2], "ipc") ? make_ipc : !strcmp(argv[2], "file") ? make_file : make_pool)();
    else if (argc == 5 && !strcmp(argv[2], "pool"))
        take_pool(argv[3], atoi(argv[4]));
    else if (argc == 5 && !strcmp(argv[2], "ipc"))
        take_ipc(argv[3]);
    else if (argc == 5)
        take_file(atoi(argv[3]), atoi(argv[4]));
    else
        return 1;
    step("end");
    return 0;
}
