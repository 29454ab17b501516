/* SPDX-License-Identifier: Apache-2.0
 *
 * What the simulated driver's two halves share: the socket messages, the command ring of one
 * context, the words in which completion is published, and the record of the trace.
 * docs/specs/simulator.md and trace.md explain.
 *
 * The device side is root and distrusts everything that a client wrote: each ring slot is copied
 * out once and range-checked; the memfd is created by the device and sealed against resizing, so no
 * mapping can fault.
 */
#ifndef QGPU_SIM_PROTO_H
#define QGPU_SIM_PROTO_H

#include <stdint.h>

#define SIM_MAGIC     0x4d495351u /* "QSIM", little endian */
#define SIM_VERSION   6u
#define SIM_SOCK      "sim.sock"
#define SIM_TRACE     "trace.bin"
#define SIM_CONTROL   "control" /* st_dev and st_ino of the control device, or "none" */
#define SIM_ENV_DIR   "QGPU_SIM_DIR"
#define SIM_ENV_DEBUG "QGPU_SIM_DEBUG"
/* "device": exported memory looks as that of NVIDIA's driver, libcuda/memory/cu_export.c */
#define SIM_ENV_EXPORTS "QGPU_SIM_EXPORTS"
/* of an installed simulator: a driver needs no environment */
#define SIM_DEFAULT_DIR "/var/lib/qgpu-sim"
#define SIM_MAX_CARDS   16u

/* MIG: an instance's device node is the file of its compute instance. Its GPU instance and its card
 * have nodes beside it, whose minor numbers are higher by these; the card's is that of its first
 * instance. */
#define SIM_MIG_MOST       7u
#define SIM_MIG_GI_MINOR   (1u << 18)
#define SIM_MIG_CARD_MINOR (1u << 19)
#define SIM_UUID_LEN       48u

/* ---- one context's shared memory ---- */

/* slots for commands between client and device; a power of two. The depth is less or equal */
#define SIM_RING        4096u
#define SIM_STREAMS     4096u /* stream slots of one context */
#define SIM_STREAM_PT   1u    /* slots 1..16: per-thread default streams */
#define SIM_STREAM_PT_N 16u
#define SIM_STREAM_USER 17u /* first slot of created streams */
/* pseudo stream: ordered behind everything submitted before (cuCtxSynchronize) */
#define SIM_STREAM_ALL 4095u
#define SIM_EVENTS     16384u /* event slots of one context */

enum sim_op {
    /* b = enum sim_cost; a = iterations of qgpu_work, or nanoseconds; c = ns of a block, 0: as
     * the card says */
    SIM_OP_KERNEL = 1,
    SIM_OP_HTOD = 2, /* a = bytes */
    SIM_OP_DTOH = 3,
    SIM_OP_DTOD = 4,
    SIM_OP_MEMSET = 5,
    SIM_OP_PEER = 6,     /* card to card: the copy engine of the card whose context submitted it */
    SIM_OP_EVENT = 16,   /* a = event slot */
    SIM_OP_WAIT = 17,    /* a = context id, b = stream slot, c = sequence number there */
    SIM_OP_WRITE32 = 18, /* a = address in the client, b = value */
    SIM_OP_WAIT32 = 19, /* a = address in the client, b = value, c = flags of cuStreamWaitValue32 */
    SIM_OP_FENCE = 20,  /* a thread waits for this place */
    SIM_OP_HOST = 21,   /* the client runs a host function, then stores host_done of the stream */
    SIM_OP_FREE = 22,   /* a = allocation id, freed here (cuMemFreeAsync) */
    SIM_OP_WRITE64 = 23,
    SIM_OP_WAIT64 = 24
};

enum sim_cost { SIM_COST_DEFAULT = 0, SIM_COST_WORK = 1, SIM_COST_RULE = 2 };

#define SIM_CMD_NONBLOCKING 0x1u /* stream was created with CU_STREAM_NON_BLOCKING */
#define SIM_CMD_NODE        0x2u /* node of a graph: its launch was paid once, by the graph */

/* sequence number = position in the ring + 1, counted from the start of the context */
struct sim_cmd {
    uint32_t op;
    uint32_t stream;
    uint32_t flags;
    uint32_t reserved;
    uint64_t t_submit; /* CLOCK_MONOTONIC of the call, ns */
    uint64_t a, b, c;
    uint64_t pad[2];
};

struct sim_stream_word {
    uint64_t done_seq;  /* device: last finished command */
    uint64_t host_done; /* client: last host function that returned */
    uint32_t gen;       /* device: futex word, changes when a waiter may wake */
    uint32_t waiters;   /* client: hint */
};

struct sim_event_word {
    uint64_t done_seq; /* device: sequence number of the newest finished record */
    uint64_t done_ns;  /* device: when, in model time */
    uint32_t gen;
    uint32_t waiters;
};

struct sim_shared {
    uint32_t magic, version;
    uint32_t ctx_id, card;
    uint32_t depth;  /* device, at creation: commands in flight at which the next one blocks */
    uint32_t sticky; /* device: the CUresult that every call answers from now on */
    uint64_t pad0[5];
    uint64_t head; /* client: commands written */
    uint64_t pad1[7];
    uint64_t tail;          /* device: commands taken */
    uint32_t space_gen;     /* device: futex word for a full ring */
    uint32_t space_waiters; /* client */
    uint32_t dead;          /* device: context is gone */
    uint32_t need_bell;     /* device: asleep; observable commands ring (client: exchange with 0) */
    uint64_t finished;      /* device: commands that ended */
    uint64_t pad2[4];
    struct sim_cmd ring[SIM_RING];
    struct sim_stream_word streams[SIM_STREAMS];
    struct sim_event_word events[SIM_EVENTS];
};

_Static_assert(sizeof(struct sim_cmd) == 64, "command changed its size");
_Static_assert(sizeof(struct sim_stream_word) == 24, "stream word changed its size");
_Static_assert(sizeof(struct sim_event_word) == 24, "event word changed its size");

/* ---- socket (SOCK_SEQPACKET); one request, one answer ---- */

enum sim_req_type {
    /* -> struct sim_node; carries the memfd of the process's struct sim_page */
    SIM_REQ_HELLO = 1,
    SIM_REQ_CARD = 2,        /* a = card -> struct sim_card_info */
    SIM_REQ_CTX_CREATE = 3,  /* a = card -> a = context id; carries memfd and doorbell */
    SIM_REQ_CTX_DESTROY = 4, /* a = context id */
    SIM_REQ_ALLOC = 5,       /* a = context id, b = bytes -> a = allocation id */
    SIM_REQ_FREE = 6,        /* a = context id, b = allocation id */
    /* a = card -> all its processes: as long as its number of struct sim_proc_info */
    SIM_REQ_PROCS = 7,
    SIM_REQ_UTIL = 8, /* a = card, b = last seen sample (us) -> struct sim_util */
    /* -> rep, carries an open file of the control device; SIM_ENOSYS: there is none */
    SIM_REQ_CONTROL_FILE = 9,
    /* a = context id | client << 32, b, c, d = the groups of compute, host to card, card to host */
    SIM_REQ_CTX_GROUPS = 11,
    /* a = address, b = bytes: registered host memory, which the device may map; always a success */
    SIM_REQ_PIN = 12,
    SIM_REQ_UNPIN = 13, /* a = address */
    /* a = context id of any process, b = stream slot, c = sequence number there -> a = whether it
     * was reached, or the context is gone */
    SIM_REQ_REACHED = 14,
    /* a = context id of any process of the user, b = allocation id -> a = a number, 0: it is gone.
     * The memory stays on the card until the number is given back, or the process ends */
    SIM_REQ_HOLD = 15,
    SIM_REQ_LET_GO = 16, /* a = the number */
    /* a = pid, b = enum sim_order_what, c and d as that says -> a as that says; of any process */
    SIM_REQ_CHECKPOINT = 17,
    /* a = id of the thread that carries out orders -> rep, carries its socket for struct sim_order
     */
    SIM_REQ_AGENT = 18,
    SIM_REQ_CTX_BYTES = 19, /* a = context id -> a = bytes of its allocations */
    /* while an order to checkpoint, or to restore, is carried out: the contexts leave the card; b:
     * they come back to the cards that the order says */
    SIM_REQ_PARK = 20,
    SIM_REQ_UNPARK = 21,
    /* text: a command of serve/gpu_faults.c, from root only -> rep; a = what it reached */
    SIM_REQ_CONTROL = 32,
    /* a = card, b = soft, c = hard limit, text: the cgroup's directory; from root only */
    SIM_REQ_LIMIT_SET = 33,
    SIM_REQ_LIMIT_GET = 34 /* a = card, text -> a = soft, b = hard, c = used */
};

/* What one process asks of another one, by SIM_REQ_CHECKPOINT. Answers are a CUresult. */
enum sim_order_what {
    SIM_ORDER_STATE,  /* -> a = a CUprocessState */
    SIM_ORDER_THREAD, /* -> a = id of the thread that carries out orders */
    SIM_ORDER_LOCK,   /* c = milliseconds, 0: without a limit */
    SIM_ORDER_CHECKPOINT,
    SIM_ORDER_RESTORE, /* c = cards that move, a bit each; d = where to, 4 bits each */
    SIM_ORDER_UNLOCK,
    SIM_ORDER_CANCEL /* the device side's: the order with this number is given up */
};

/* The device side to the thread of a process, and its answer. One at a time, but for CANCEL. */
struct sim_order {
    uint64_t number;
    uint32_t what, moves;           /* moves, where_to: c and d of SIM_ORDER_RESTORE */
    uint64_t where_to, deadline_ns; /* deadline: CLOCK_MONOTONIC; 0: none */
};

struct sim_order_done {
    uint64_t number;
    int32_t status;  /* a CUresult */
    uint32_t broken; /* it ended in the midst: the process cannot go on */
};

#define SIM_TEXT 1024u /* longest text of a request, with its end */

struct sim_req {
    uint32_t magic, version, type, size; /* size: of the whole message, with a text that follows */
    uint64_t a, b, c, d;
};

struct sim_text_req {
    struct sim_req req;
    char text[SIM_TEXT];
};

#define SIM_EPERM  (-1) /* status: not for this user */
#define SIM_ENOSYS (-2) /* status: this generation of the driver does not have it */

struct sim_rep {
    uint32_t magic, version, size;
    int32_t status; /* a CUresult */
    uint64_t a, b, c, d;
};

struct sim_node {
    struct sim_rep rep;
    uint32_t ncards, major, generation;
    /* 0, or the "cards" are MIG instances: this number in a row are of one card */
    uint32_t mig;
    char node[64];
    char driver[64]; /* its version */
    char dir[160];
};

#define SIM_MAX_LINKS 18u /* NVLinks of a card, as NVML_NVLINK_MAX_LINKS */

struct sim_card_info {
    struct sim_rep rep;
    uint32_t index, minor;
    uint64_t mem_total, mem_used;
    char uuid[SIM_UUID_LEN];
    char name[96];
    char path[192];                /* device node; a process that may open(2) it sees the card */
    uint32_t links[SIM_MAX_CARDS]; /* NVLinks to each card */
    uint32_t switch_links, reserved;
};

/* of a card; as many contexts as there can be, so no list is ever cut */
#define SIM_MAX_PROCS 2048u
/* in which of NVML's lists */
enum sim_listed { SIM_LISTED_COMPUTE, SIM_LISTED_GRAPHICS, SIM_LISTED_MPS };
struct sim_proc_info {
    uint32_t pid, contexts;
    uint32_t listed, reserved; /* enum sim_listed */
    uint64_t mem;              /* bytes with context overhead */
    uint64_t busy_ns;          /* of compute on the card since the process came */
};

struct sim_procs {
    /* a = number of entries, size: of what was sent, which ends with the last of them */
    struct sim_rep rep;
    struct sim_proc_info procs[SIM_MAX_PROCS];
};

struct sim_util {
    struct sim_rep rep; /* a = entries in procs, size as in struct sim_procs */
    uint32_t gpu_percent, mem_percent;
    uint64_t stamp_us;            /* CLOCK_REALTIME */
    uint64_t busy_ns;             /* of the card's compute engine, since start */
    uint64_t copy_ns;             /* of its copy engines */
    uint64_t switches, switch_ns; /* changes of context, and the time that they took */
    struct {
        uint32_t pid, percent;
    } procs[SIM_MAX_PROCS];
};

/* ---- one process's page: what the device side wants its libraries to do ---- */

#define SIM_FAULTS   8u
#define SIM_RULES    96u
#define SIM_CALL_LEN 64u

enum sim_fault_kind {
    SIM_FAULT_NONE,
    SIM_FAULT_ERROR,
    SIM_FAULT_DELAY,
    SIM_FAULT_HANG,
    SIM_FAULT_MIDWAY
};

struct sim_fault {
    /* base name of a function of libcuda or NVML, or *: any of libcuda, nvml*: any of NVML */
    char call[SIM_CALL_LEN];
    uint32_t kind, value; /* value: the status, or microseconds */
    /* client: calls that it still hits; negative: until it is taken away */
    int32_t left;
    uint32_t reserved;
};

struct sim_rule { /* duration of kernels whose name matches the pattern */
    char pattern[SIM_CALL_LEN];
    double base_ns, block_ns, thread_ns;
    double wave_ns; /* of the blocks that the card runs at a time */
    /* it can be taken off the card that often, see --preempt cta; 0: as the card says */
    double stop_ns;
};

#define SIM_OPTION_CLIENT_PER_CONTEXT 1u /* of the control device: not one of the process */
#define SIM_OPTION_PEERS              2u /* cards map each other's memory */

struct sim_page {
    uint32_t magic, nrules;
    uint32_t nfaults; /* device: entries of faults that may be in use; 0 most of the time */
    uint32_t options; /* SIM_OPTION_* */
    struct sim_fault faults[SIM_FAULTS];
    struct sim_rule rules[SIM_RULES];
};

/* ---- trace ---- */

#define SIM_TRACE_MAGIC   "QGSIMTRC"
#define SIM_TRACE_VERSION 1u

struct sim_trace_head {
    char magic[8];
    uint32_t version, record_size;
    uint32_t ncards, reserved;
    uint64_t start_ns; /* CLOCK_MONOTONIC of the start */
    char node[32];
};

#define SIM_TRACE_LAST 0x1u /* the command ended with this piece */
#define SIM_TRACE_CUT  0x2u /* its process died or destroyed the context */

struct sim_trace_rec {
    uint64_t t_start, t_end, t_submit; /* CLOCK_MONOTONIC ns */
    uint32_t pid, card, ctx, stream;
    uint32_t kind, flags; /* enum sim_op, SIM_TRACE_* */
    uint64_t seq, work;   /* sequence number in the context; iterations or bytes */
};

_Static_assert(sizeof(struct sim_trace_head) == 64, "trace header changed its size");
_Static_assert(sizeof(struct sim_trace_rec) == 64, "trace record changed its size");

#endif
