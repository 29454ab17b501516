/* SPDX-License-Identifier: Apache-2.0
 *
 * The client side of the simulated driver, libcuda.so.1: its objects, the connection to the device
 * side, and the table of handles. Handles are addresses
 * in arenas that are never unmapped, so that any stale or invented handle can be examined without a
 * crash and refused.
 */
#ifndef QGPU_SIM_CU_H
#define QGPU_SIM_CU_H

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cu_image.h"
#include "sim_client.h"
#include "sim_proto.h"

#define CU_SIM_VERSION SIM_CUDA_VERSION
#define CU_MAX_STACK   32
#define CU_EXEC_SIZE   512 /* of an executable graph, and of a graph's node */
#define CU_NODE_SIZE   512

/* One definition of a function and of its per-thread default stream variant. */
#define CU_BOTH(name, pt_name, impl, params, ...)                                                  \
    CUresult CUDAAPI name params                                                                   \
    {                                                                                              \
        CU_TRY(cu_enter(#name));                                                                   \
        return impl(__VA_ARGS__, false);                                                           \
    }                                                                                              \
    CUresult CUDAAPI pt_name params                                                                \
    {                                                                                              \
        CU_TRY(cu_enter(#pt_name));                                                                \
        return impl(__VA_ARGS__, true);                                                            \
    }

#define CU_TRY(expression)                                                                         \
    do {                                                                                           \
        CUresult try_status = (expression);                                                        \
        if (try_status != CUDA_SUCCESS)                                                            \
            return try_status;                                                                     \
    } while (0)

enum cu_magic {
    CU_CTX = 0x43545831,
    CU_STREAM,
    CU_EVENT,
    CU_MODULE,
    CU_FUNCTION,
    CU_GRAPH,
    CU_EXEC,
    CU_POOL,
    CU_ARRAY,
    CU_NODE,
    CU_GREEN,
    CU_LINK
};

#define CU_GROUPS 3u /* of a context: compute, host to card, card to host */

struct cu_rm_place { /* objects of the control device that stand for a card, cu_rm.c */
    uint32_t client, device, subdevice, memory_device;
};

struct cu_device {
    struct sim_card_info info;
    struct cu_rm_place rm;
    CUcontext primary;        /* while it is active, else NULL */
    CUcontext primary_handle; /* its handle for the process's whole life; NULL: never asked for */
    unsigned primary_refs, primary_flags;
};

struct cu_state {
    bool initialised, forked, lost; /* lost: the device side is gone */
    int sock;
    pthread_mutex_t lock, sock_lock;
    struct sim_node node;
    struct sim_page *page; /* faults and rules; NULL before cuInit */
    struct {
        int fd; /* of the control device; -1: there is none */
        uint32_t client, memory_client;
    } rm;
    int ndevices;
    struct cu_device devices[SIM_MAX_CARDS];
};
extern struct cu_state cu;

struct CUstream_st {
    enum cu_magic magic;
    CUcontext ctx;
    uint32_t ctx_id; /* of that context: a primary one's handle is used again */
    uint32_t slot, cmd_flags;
    unsigned flags;
    int priority;
    _Atomic uint64_t last_seq, fence_seq; /* newest command, newest fence */
    struct cu_host_queue *host;           /* thread that runs host functions; made on first use */
    CUgraph capture;
    struct cu_front *front; /* cu_capture.c */
    CUgreenCtx green;       /* it was made in this one; NULL: in none */
};

struct CUctx_st {
    enum cu_magic magic;
    struct cu_device *device;
    CUgreenCtx green; /* cu_green.c: this is no context of its own, but goes as the primary one */
    unsigned more;    /* uses by cuCtxAttach() */
    unsigned flags;
    _Atomic uint32_t peers; /* cards whose memory it may access, a bit each */
    bool is_primary;
    uint32_t id;
    int bell;
    struct sim_shared *shm;
    pthread_mutex_t ring_lock;
    uint64_t head;
    struct CUstream_st legacy, all, per_thread[SIM_STREAM_PT_N];
    uint32_t next_stream, next_event;
    uint8_t stream_used[SIM_STREAMS];
    uint8_t event_used[SIM_EVENTS];
    CUmemoryPool pool;
    struct cu_stored *stored; /* cu_storage.c */
    struct {                  /* cu_limit.c */
        size_t value;
        uint64_t charge; /* number of an allocation of the card; 0: none */
    } limits[CU_LIMIT_MAX];
    struct {
        bool own_client;
        struct cu_rm_place place;
        uint32_t groups[CU_GROUPS], space, memory_space;
    } rm;
};

struct CUevent_st {
    enum cu_magic magic;
    CUcontext ctx;
    uint32_t ctx_id, slot;
    unsigned flags;
    _Atomic uint32_t rec_stream;
    _Atomic uint64_t rec_seq;
    CUgraph capture; /* it was recorded in this one */
    uint64_t capture_id;
    struct cu_front *front;
    struct cu_ipc *ipc; /* shared with other processes, cu_ipc_event.c */
};

#define CU_OLD_PARAMS 256u /* bytes of parameters that cuParamSet* keeps */
struct CUfunc_st {
    enum cu_magic magic;
    CUmodule module;
    struct CUfunc_st *next;
    bool is_work; /* qgpu_work(u64 iterations): the kernel whose duration is its argument */
    const struct sim_rule *rule;          /* for its duration; NULL: --unknown-us */
    const struct cu_image_kernel *kernel; /* NULL: its module could not be read */
    int attributes[CU_FUNC_ATTRIBUTE_MAX];
    char *name;
    struct { /* cu_launch_old.c */
        uint64_t threads;
        unsigned shared;
        char params[CU_OLD_PARAMS];
    } old;
};

struct CUmod_st {
    enum cu_magic magic;
    struct cu_image image;
    struct CUfunc_st *functions;  /* that were asked for */
    struct CUfunc_st **of_kernel; /* as many as the image has kernels */
    struct cu_globals *globals;   /* cu_globals.c: its variables, once for each context */
    pthread_mutex_t lock;
    bool is_library;
    bool misfit; /* a library without code for the card */
};

/* cu_conn.c */
uint64_t cu_now(void);
CUresult cu_connect(void);
CUresult cu_request(uint32_t type, uint64_t a, uint64_t b, void *answer, size_t size, int *fds,
                    unsigned nfds);
CUresult cu_bind_groups(uint32_t ctx, uint32_t client, const uint32_t groups[CU_GROUPS]);
/* rep->a: whether a place in a stream of any process's context was reached */
CUresult cu_reached(uint32_t ctx, uint32_t stream, uint64_t seq, struct sim_rep *rep);
bool cu_server_alive(void);
CUresult cu_not_ready(void); /* CUDA_ERROR_NOT_READY, or that the device side is gone */
/* CUDA_SUCCESS after cuInit in this process, and no fault asked for */
CUresult cu_ready_in(const char *function);
#define cu_ready() cu_ready_in(__func__)

/* cu_gate.c: calls of a locked process wait. They do so where they begin, and before each thing
 * that reaches the card or moves contents. All such things are guarded by locks. Whoever locks the
 * process shuts the gate and passes through all of these locks: then nobody is within. */
extern uint32_t cu_gate_word;            /* atomic; not 0: it is shut */
extern __thread unsigned cu_gate_exempt; /* not 0: the gate is none for this thread */
void cu_gate_set(bool shut);
void cu_gate_wait(void);
void cu_gate_lock(pthread_mutex_t *lock); /* with the gate open */
/* What makes or ends a context on the device side is within as a whole. It takes no lock whose
 * holder may wait at the gate. */
extern pthread_rwlock_t cu_gate_contexts;
void cu_gate_begin(void);
void cu_gate_end(void);

static inline bool cu_gate_shut(void)
{
    return __atomic_load_n(&cu_gate_word, __ATOMIC_ACQUIRE) && !cu_gate_exempt;
}

/* Where every function of the API begins, by CU_BOTH, cu_ready() or cu_current(): faults on demand
 * act here. */
static inline CUresult cu_enter(const char *function)
{
    if (cu_gate_shut())
        cu_gate_wait();
    return (CUresult)sim_fault(cu.page, function);
}

/* checkpoint/cu_agent.c */
CUresult cu_agent_start(void);

/* cu_rm.c */
CUresult cu_rm_open(void);
void cu_rm_close(void);
void cu_rm_leave(void); /* the process gives all back; cu_rm_open() begins anew */
CUresult cu_rm_context(CUcontext ctx);
void cu_rm_context_gone(CUcontext ctx);

/* cu_handle.c */
void *cu_handle_new(enum cu_magic kind);
void cu_handle_free(enum cu_magic kind, void *handle);
bool cu_handle_ok(enum cu_magic kind, const void *handle);
/* The handle at a place in its arena; NULL: none there. *more: there are later ones. */
void *cu_handle_at(enum cu_magic kind, size_t place, bool *more);
/* A handle that stays the owner's: it is refused until it is opened again, and never another's. */
void cu_handle_close(void *handle);
void cu_handle_open(enum cu_magic kind, void *handle);

/* Whether this very context lives. Ids are never used again, handles are. */
static inline bool cu_context_lives(CUcontext ctx, uint32_t id)
{
    return cu_handle_ok(CU_CTX, ctx) && ctx->id == id;
}

#endif
