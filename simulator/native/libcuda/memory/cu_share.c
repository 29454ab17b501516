/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of other processes: IPC handles, pools and their pointers, external memory. Shared in the
 * books only: an address from here has contents of its own (those of cuMemCreate memory are truly
 * shared, cu_vmm.c). The card counts memory for the process that made it, then for who still has it
 * open, and external memory, which no CUDA call made, for its importer.
 */
#include "cu_alloc.h"
#include "cu_context.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC_IPC     0x43504951u
#define MAGIC_POINTER 0x52544951u

unsigned cu_shared;

struct ticket { /* inside of a CUipcMemHandle or CUmemPoolPtrExportData, 64 bytes both */
    uint32_t magic, index;
    int32_t pid;
    uint32_t ctx;
    uint64_t size, base, id; /* id: 0: of a pool, which does not outlive its maker */
};
_Static_assert(sizeof(struct ticket) <= CU_IPC_HANDLE_SIZE, "a ticket does not fit a handle");

static CUresult device_of_card(uint32_t index, CUdevice *device)
{
    for (CUdevice i = 0; i < cu.ndevices; i++)
        if (cu.devices[i].info.index == index) {
            *device = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

bool cu_export_read(int fd, uint32_t magic, struct cu_export *out, CUdevice *device)
{
    off_t end = lseek(fd, 0, SEEK_END);
    if (end < (off_t)sizeof *out ||
        pread(fd, out, sizeof *out, end - (off_t)sizeof *out) != (ssize_t)sizeof *out ||
        out->magic != magic || out->size + sizeof *out != (uint64_t)end)
        return false;
    *device = -1;
    return (magic == CU_EXPORT_PHYSICAL && out->index == CU_EXPORT_OF_HOST) ||
           device_of_card(out->index, device) == CUDA_SUCCESS;
}

static CUresult ticket_for(CUdeviceptr ptr, uint32_t magic, struct ticket *out)
{
    pthread_rwlock_wrlock(&cu_alloc_lock);
    struct cu_alloc *alloc = cu_alloc_find(ptr);
    bool ok = alloc && alloc->kind == DEVICE && alloc->owner != BORROWED &&
              cu_handle_ok(CU_CTX, alloc->ctx);
    if (ok) {
        alloc->shared = true;
        *out = (struct ticket){.magic = magic,
                               .index = alloc->ctx->device->info.index,
                               .pid = getpid(),
                               .ctx = alloc->ctx->id,
                               .size = alloc->size,
                               .base = alloc->base,
                               .id = alloc->id};
    }
    pthread_rwlock_unlock(&cu_alloc_lock);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult open_ticket(CUdeviceptr *out, const struct ticket *ticket)
{
    CUcontext ctx;
    CUdevice device;
    CU_TRY(cu_current(&ctx));
    if (ticket->pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (device_of_card(ticket->index, &device) != CUDA_SUCCESS ||
        (kill(ticket->pid, 0) != 0 && errno == ESRCH))
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_rep held = {0}, ignored;
    if (ticket->id)
        CU_TRY(cu_request(SIM_REQ_HOLD, ticket->ctx, ticket->id, &held, sizeof held, NULL, 0));
    if (ticket->id && !held.a)
        return CUDA_ERROR_INVALID_VALUE; /* it was freed */
    CUresult status = cu_alloc_borrow(out, ticket->size, ctx, device, held.a, true);
    if (status != CUDA_SUCCESS && held.a)
        cu_request(SIM_REQ_LET_GO, held.a, 0, &ignored, sizeof ignored, NULL, 0);
    return status;
}

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
    struct ticket ticket;
    CU_TRY(cu_ready());
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(ticket_for(ptr, MAGIC_IPC, &ticket));
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
    struct ticket ticket;
    memcpy(&ticket, &handle, sizeof ticket);
    CU_TRY(cu_ready());
    if (!out || ticket.magic != MAGIC_IPC || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    return open_ticket(out, &ticket);
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
    return cuIpcOpenMemHandle_v2(out, handle, flags);
}

static CUresult close_borrowed(CUdeviceptr ptr)
{
    struct cu_alloc *alloc = cu_alloc_take(ptr, DEVICE, DEVICE);
    if (!alloc)
        return CUDA_ERROR_INVALID_VALUE;
    if (alloc->owner != BORROWED) {
        CUresult status = cu_alloc_insert(alloc);
        free(alloc);
        return status == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : status;
    }
    cu_alloc_release(alloc);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr ptr)
{
    CU_TRY(cu_ready());
    return close_borrowed(ptr);
}

/* ---- pools ---- */

CUresult CUDAAPI cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool,
                                                  CUmemAllocationHandleType type,
                                                  unsigned long long flags)
{
    CU_TRY(cu_ready());
    if (!out || !cu_handle_ok(CU_POOL, pool) || flags ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || cu_pool_device(pool) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct cu_export about = {.magic = CU_EXPORT_POOL,
                              .index = cu.devices[cu_pool_device(pool)].info.index};
    int file = memfd_create("qgpu-sim-pool", MFD_CLOEXEC);
    if (file < 0 || write(file, &about, sizeof about) != (ssize_t)sizeof about) {
        if (file >= 0)
            close(file);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    uint32_t before =
        __atomic_fetch_or(cu_pool_reachable(pool), CU_POOL_EXPORTED, __ATOMIC_RELAXED);
    __atomic_add_fetch(&cu_shared, !(before & CU_POOL_EXPORTED), __ATOMIC_RELAXED);
    *(int *)out = file;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *from,
                                                    CUmemAllocationHandleType type,
                                                    unsigned long long flags)
{
    struct cu_export about;
    CUdevice device;
    CU_TRY(cu_ready());
    if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !cu_export_read((int)(intptr_t)from, CU_EXPORT_POOL, &about, &device))
        return CUDA_ERROR_INVALID_VALUE;
    return cu_pool_import(out, device);
}

CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr ptr)
{
    struct ticket ticket;
    CU_TRY(cu_ready());
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(ticket_for(ptr, MAGIC_POINTER, &ticket));
    memset(out, 0, sizeof *out);
    memcpy(out, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool,
                                        CUmemPoolPtrExportData *data)
{
    struct ticket ticket;
    CU_TRY(cu_ready());
    if (!out || !data || !cu_handle_ok(CU_POOL, pool))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&ticket, data, sizeof ticket);
    return ticket.magic == MAGIC_POINTER ? open_ticket(out, &ticket) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- external memory ---- */

struct CUextMemory_st {
    CUexternalMemory self; /* the handle itself while it is valid */
    CUcontext ctx;
    uint64_t size, id;
    int fd;
};

CUresult CUDAAPI cuImportExternalMemory(CUexternalMemory *out,
                                        const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
    struct sim_rep rep;
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    if (!out || !desc || !desc->size || desc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_request(SIM_REQ_ALLOC, ctx->id, desc->size, &rep, sizeof rep, NULL, 0));
    struct CUextMemory_st *made = calloc(1, sizeof *made);
    if (!made) {
        cu_request(SIM_REQ_FREE, ctx->id, rep.a, &rep, sizeof rep, NULL, 0);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUextMemory_st){made, ctx, desc->size, rep.a, desc->handle.fd};
    __atomic_add_fetch(&cu_shared, 1, __ATOMIC_RELAXED);
    *out = made;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory memory,
                                                 const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
    CU_TRY(cu_ready());
    if (!out || !memory || memory->self != memory || !desc || desc->offset > memory->size ||
        !desc->size || desc->size > memory->size - desc->offset)
        return CUDA_ERROR_INVALID_VALUE;
    return cu_alloc_borrow(out, desc->size, memory->ctx,
                           (CUdevice)(memory->ctx->device - cu.devices), 0, true);
}

CUresult CUDAAPI cuDestroyExternalMemory(CUexternalMemory memory)
{
    struct sim_rep rep;
    CU_TRY(cu_ready());
    if (!memory || memory->self != memory)
        return CUDA_ERROR_INVALID_VALUE;
    if (cu_handle_ok(CU_CTX, memory->ctx))
        cu_request(SIM_REQ_FREE, memory->ctx->id, memory->id, &rep, sizeof rep, NULL, 0);
    __atomic_sub_fetch(&cu_shared, 1, __ATOMIC_RELAXED);
    memory->self = NULL;
    close(memory->fd); /* the import took it over */
    free(memory);
    return CUDA_SUCCESS;
}
