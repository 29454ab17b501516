/* SPDX-License-Identifier: Apache-2.0
 *
 * Events of several processes. They share a page (a memfd, found through /proc by the handle) in
 * which each record says where in which stream it is. The device side knows all contexts: a stream
 * waits for that place, and a program asks whether it was reached.
 */
#include "cu_context.h"
#include "cu_stream.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC   0x43504945u
#define RECORDS 64u /* so that a reader outruns writers */

struct place {
    uint64_t turn; /* of the record, from 1 on; 0: is being written */
    uint64_t seq;
    uint32_t ctx, stream;
};

struct page {
    uint64_t magic, nonce;
    uint64_t last_turn, newest; /* turns: handed out, and of the newest complete record */
    struct place places[RECORDS];
};

struct cu_ipc {
    struct page *page;
    int file; /* -1: another process's */
};

struct ticket { /* inside of a CUipcEventHandle */
    uint32_t magic, index;
    int32_t pid, file;
    uint64_t nonce;
};
_Static_assert(sizeof(struct ticket) <= CU_IPC_HANDLE_SIZE, "a ticket does not fit a handle");

/* ---- the page ---- */

static struct page *map_page(int file)
{
    void *map = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return map == MAP_FAILED ? NULL : map;
}

/* It cannot shrink, so no reader of it can fault. */
static int new_file(void)
{
    int file = memfd_create("qgpu-sim-event", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file >= 0 && (ftruncate(file, sizeof(struct page)) != 0 ||
                      fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)) {
        close(file);
        return -1;
    }
    return file;
}

static bool file_ok(int file)
{
    struct stat st;
    int seals = fcntl(file, F_GET_SEALS);
    return seals >= 0 && seals & F_SEAL_SHRINK && fstat(file, &st) == 0 &&
           st.st_size >= (off_t)sizeof(struct page);
}

static struct cu_ipc *share(void)
{
    struct cu_ipc *ipc = calloc(1, sizeof *ipc);
    if (!ipc)
        return NULL;
    ipc->file = new_file();
    ipc->page = ipc->file >= 0 ? map_page(ipc->file) : NULL;
    if (!ipc->page || getrandom(&ipc->page->nonce, sizeof ipc->page->nonce, GRND_NONBLOCK) !=
                          (ssize_t)sizeof ipc->page->nonce) {
        cu_ipc_end(&ipc);
        return NULL;
    }
    ipc->page->magic = MAGIC;
    return ipc;
}

void cu_ipc_end(struct cu_ipc **ipc)
{
    if (*ipc && (*ipc)->page)
        munmap((*ipc)->page, sizeof(struct page));
    if (*ipc && (*ipc)->file >= 0)
        close((*ipc)->file);
    free(*ipc);
    *ipc = NULL;
}

/* ---- records ---- */

void cu_ipc_record(CUevent event, uint32_t stream, uint64_t seq)
{
    struct page *page = event->ipc->page;
    uint64_t turn = __atomic_add_fetch(&page->last_turn, 1, __ATOMIC_SEQ_CST);
    struct place *place = &page->places[turn % RECORDS];
    __atomic_store_n(&place->turn, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&place->seq, seq, __ATOMIC_RELAXED);
    __atomic_store_n(&place->ctx, event->ctx->id, __ATOMIC_RELAXED);
    __atomic_store_n(&place->stream, stream, __ATOMIC_RELAXED);
    __atomic_store_n(&place->turn, turn, __ATOMIC_RELEASE);
    uint64_t newest = __atomic_load_n(&page->newest, __ATOMIC_SEQ_CST);
    while (newest < turn && !__atomic_compare_exchange_n(&page->newest, &newest, turn, false,
                                                         __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

/* The newest complete record; seq 0: there is none. Only other processes that scribble over the
 * page could let this end without one. */
static struct place newest(const struct cu_ipc *ipc)
{
    struct page *page = ipc->page;
    for (unsigned tries = 0; tries < 1000; tries++) {
        uint64_t turn = __atomic_load_n(&page->newest, __ATOMIC_SEQ_CST);
        const struct place *place = &page->places[turn % RECORDS];
        struct place copy = {.turn = __atomic_load_n(&place->turn, __ATOMIC_ACQUIRE),
                             .seq = __atomic_load_n(&place->seq, __ATOMIC_RELAXED),
                             .ctx = __atomic_load_n(&place->ctx, __ATOMIC_RELAXED),
                             .stream = __atomic_load_n(&place->stream, __ATOMIC_RELAXED)};
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (!turn)
            break;
        if (copy.turn == turn && __atomic_load_n(&place->turn, __ATOMIC_RELAXED) == turn)
            return copy;
    }
    return (struct place){0};
}

CUresult cu_ipc_wait(CUstream stream, CUevent event)
{
    struct place place = newest(event->ipc);
    struct sim_cmd cmd = {.op = SIM_OP_WAIT, .a = place.ctx, .b = place.stream, .c = place.seq};
    return place.seq ? cu_push(stream, &cmd, place.ctx != stream->ctx->id, NULL) : CUDA_SUCCESS;
}

CUresult cu_ipc_query(CUevent event)
{
    struct place place = newest(event->ipc);
    struct sim_rep rep;
    if (!place.seq)
        return CUDA_SUCCESS;
    CU_TRY(cu_reached(place.ctx, place.stream, place.seq, &rep));
    return rep.a ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* What another process's stream reaches rings no bell here. */
CUresult cu_ipc_synchronize(CUevent event)
{
    struct timespec pause = {.tv_nsec = 20000};
    CUresult status;
    while ((status = cu_ipc_query(event)) == CUDA_ERROR_NOT_READY) {
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 1000000)
            pause.tv_nsec *= 2;
        CU_TRY(cu_sticky(event->ctx));
    }
    return status;
}

/* ---- handles ---- */

CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
    const unsigned needed = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    CU_TRY(cu_ready());
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cu_handle_ok(CU_EVENT, event) || (event->flags & needed) != needed)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!cu_handle_ok(CU_CTX, event->ctx))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    pthread_mutex_lock(&lock);
    if (!event->ipc && (event->ipc = share()) != NULL && event->rec_seq) /* recorded before */
        cu_ipc_record(event, event->rec_stream, event->rec_seq);
    pthread_mutex_unlock(&lock);
    if (!event->ipc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (event->ipc->file < 0) /* it came from another process */
        return CUDA_ERROR_INVALID_HANDLE;
    struct ticket ticket = {.magic = MAGIC,
                            .index = event->ctx->device->info.index,
                            .pid = getpid(),
                            .file = event->ipc->file,
                            .nonce = event->ipc->page->nonce};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

static struct cu_ipc *find(const struct ticket *ticket)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket->pid, ticket->file);
    int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct cu_ipc *ipc = file >= 0 && file_ok(file) ? calloc(1, sizeof *ipc) : NULL;
    if (ipc) {
        ipc->file = -1;
        ipc->page = map_page(file);
        if (!ipc->page || ipc->page->magic != MAGIC || ipc->page->nonce != ticket->nonce)
            cu_ipc_end(&ipc);
    }
    if (file >= 0)
        close(file);
    return ipc;
}

CUresult CUDAAPI cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
    struct ticket ticket;
    CUcontext ctx;
    CU_TRY(cu_current(&ctx));
    memcpy(&ticket, &handle, sizeof ticket);
    if (!out || ticket.magic != MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (ticket.pid == getpid() || ticket.index != ctx->device->info.index)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct cu_ipc *ipc = find(&ticket);
    if (!ipc)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult status = cuEventCreate(out, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    if (status == CUDA_SUCCESS)
        (*out)->ipc = ipc;
    else
        cu_ipc_end(&ipc);
    return status;
}
