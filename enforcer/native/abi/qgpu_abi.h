/* SPDX-License-Identifier: Apache-2.0
 *
 * What every qgpu process shares: the sealed grant, and the pages between a tenant and the arbiter
 * (docs/specs/abi.md). The messages of the node's sockets are in qgpu_messages.h. `make layouts`
 * mirrors both in Python.
 *
 * Root writes the grant and the gate page: they may be trusted. The job writes the job page, which
 * is a hint: read once, check the range, never loop on it.
 */
#ifndef QGPU_ABI_H
#define QGPU_ABI_H

#include <stddef.h>
#include <stdint.h>

#define QG_MAGIC         0x55504751u /* "QGPU", little endian */
#define QG_ABI_VERSION   3u          /* of pages and messages; every other version is refused */
#define QG_GRANT_VERSION 1u          /* of struct qg_grant */
#define QG_UUID_LEN      48u         /* "GPU-" or "MIG-" + 36 characters + NUL, rounded up */
#define QG_MAX_CARDS     16u         /* cards of one job on one node */
#define QG_MAX_PROCS     128u        /* processes of one job on one card */
#define QG_FENCES        64u         /* streams of one process that may have a fence at a time */
/* launch counters of one process: 15 threads have their own, all other threads share the last */
#define QG_LANES 16u
#define QG_PAGE  4096u

/* File names inside run_dir. */
#define QG_SOCK_REGISTER "enforcer.sock" /* tenants -> arbiter, mode 0666, SOCK_SEQPACKET */
#define QG_SOCK_CONTROL  "arbiter.sock"  /* qgpud -> arbiter, mode 0600, SOCK_SEQPACKET */
#define QG_SOCK_HOOK     "hook.sock"     /* prolog and epilog -> qgpud, mode 0600, SOCK_SEQPACKET */
/* JOBID.json (truth) and JOBID.grant (struct qg_grant), root-owned */
#define QG_GRANTS_DIR "grants"

/* Only in a task with QG_INJECT_MOUNT in its grant: a read-only place of root in the task's own
 * mount namespace. */
#define QG_TASK_DIR   "/run/qgpu-task"
#define QG_TASK_GRANT QG_TASK_DIR "/grant" /* struct qg_grant; its driver_path is the one below */
#define QG_TASK_REAL  QG_TASK_DIR "/real"  /* the real libcuda.so.1 and libnvidia-ml.so.1 */

/* Environment of a qgpu job's tasks. SPANK sets it; both shims and `qgpu doctor` read it. */
#define QG_ENV_GRANT_FD "QGPU_GRANT_FD" /* number of the inherited, sealed memfd */
/* path of JOBID.grant, for children that closed their descriptors */
#define QG_ENV_GRANT "QGPU_GRANT"

enum qg_class { QG_CLASS_ONLINE = 1, QG_CLASS_OFFLINE = 2 };
enum qg_policy { QG_POLICY_BEST_EFFORT = 1, QG_POLICY_FIXED_SHARE = 2, QG_POLICY_BURST_SHARE = 3 };
#define QG_POLICY_FIRST QG_POLICY_BEST_EFFORT
#define QG_POLICY_LAST  QG_POLICY_BURST_SHARE
enum qg_injection {
    QG_INJECT_PRELOAD = 0, /* LD_PRELOAD in the task's environment */
    /* the shim is mounted over the driver's files, in a mount namespace of the task */
    QG_INJECT_MOUNT = 1
};
enum qg_grant_state {
    QG_GRANT_ACTIVE = 1,  /* governed shares: the shim is injected */
    QG_GRANT_REFUSED = 2, /* the job must not start: task_init prints message and exits */
    QG_GRANT_WHOLE = 3    /* whole cards: monitored, never governed, no shim */
};

/* ---- the grant: content of JOBID.grant and of the sealed memfd ---- */

struct qg_grant_card {      /* one card of a grant */
    char uuid[QG_UUID_LEN]; /* key of the card everywhere */
    uint32_t minor;         /* of the device file, for display and for opening it */
    uint32_t index;         /* Slurm's index on the node (SLURM_JOB_GPUS), for display */
    uint32_t share;         /* percent of the card's compute, 1..100 */
    uint32_t flags;         /* QG_GRANT_CARD_*; a shim may ignore them */
    uint64_t mem_cap;       /* bytes that the job may hold on this card */
    uint64_t mem_total;     /* bytes of the card, for messages */
    /* "", or the UUID of the card that Slurm booked: the job was moved from it to this one */
    char home[QG_UUID_LEN];
};
#define QG_GRANT_CARD_MANAGED_RESIDENT 0x1u /* managed memory is charged as NVML sees it */
#define QG_GRANT_CARD_RECLAIMABLE      0x2u /* the job's memory may be taken back */
#define QG_GRANT_CARD_MOVED            0x4u /* not the card that Slurm booked: moved here */

struct qg_grant {     /* content of JOBID.grant and of the sealed memfd */
    uint32_t magic;   /* QG_MAGIC */
    uint32_t version; /* QG_GRANT_VERSION */
    uint32_t size;    /* sizeof(struct qg_grant) */
    uint32_t state;   /* enum qg_grant_state */
    uint64_t job_id;
    uint32_t uid;
    uint32_t gid;
    uint32_t job_class; /* enum qg_class; 0 for whole and refused */
    uint32_t ncards;
    uint64_t created_ns; /* CLOCK_REALTIME */
    char node[64];
    char run_dir[160];     /* where enforcer.sock is, on this node */
    char driver_path[256]; /* absolute path of the real libcuda.so.1 */
    char shim_path[256];   /* absolute path of the shim, for LD_PRELOAD */
    char message[512];     /* refused: the sentence that the user reads */
    uint32_t injection;    /* enum qg_injection; a plugin that does not know the word preloads */
    uint32_t usable;       /* MiB that shares have of such a card; 0: its memory, an older qgpud */
    uint8_t reserved[232];
    struct qg_grant_card cards[QG_MAX_CARDS];
};

/* ---- gate page: one per tenant (job, card); arbiter writes, job maps it read-only ---- */

/* Gate word. Zero or QG_GATE_TRACK alone: launch at once. */
#define QG_GATE_CLOSED 0x1u /* wait (futex on this word, shared) until the bit is gone */
/* the arbiter sleeps on this tenant: ring the doorbell, then go on */
#define QG_GATE_NOTIFY 0x2u
#define QG_GATE_TRACK  0x4u /* keep fences up to date (nearly always set) */
#define QG_GATE_WINDOW 0x8u /* bound the estimated in-flight work to window_us */
/* beside online: the first launch goes, the next ones wait (2 ms at most, without a ring) until
 * the bit is gone: what offline has on the card ends first. A shim may ignore it */
#define QG_GATE_HOLD 0x10u
/* others wait for this tenant's quantum: ring when a call returns that waited for its last work. A
 * shim may ignore it */
#define QG_GATE_IDLE          0x20u
#define QG_GATE_WHY_MASK      0xf00u
#define QG_GATE_WHY_PREEMPTED 0x100u /* an online tenant of the card is busy */
#define QG_GATE_WHY_SHARE     0x200u /* another member has the quantum, or the share is used up */
#define QG_GATE_WHY_RECOVERY  0x400u /* the arbiter restarted and waits for tenants to come back */
/* the job is held: its memory leaves the card. Allocations and new contexts wait, too */
#define QG_GATE_WHY_MEMORY 0x800u

struct qg_gate_page { /* written by the arbiter, read-only for the job */
    uint32_t magic;
    uint32_t version; /* of both pages: QG_ABI_VERSION */
    uint32_t size;
    uint32_t reserved;
    uint64_t job_id;
    uint64_t mem_cap; /* bytes; the shim takes the smaller of this and the grant's */
    uint32_t window_us;
    uint32_t lease_ms; /* heartbeat older than this: compute fails open */
    /* bytes of the job on this card that no living slot reports: the rest of contexts and modules
     * by NVML, and memory of dead processes that is still on the card */
    uint64_t mem_extra;
    /* CLOCK_MONOTONIC; after it no launch passes until the arbiter has decided again; 0: none */
    uint64_t until_ns;
    uint64_t mem_context; /* bytes to reserve for each new context of the job on this card */
    uint32_t flags;       /* offset 64: the gate word */
    uint32_t reserved2;
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC, at least every lease_ms / 4; or QG_BEAT_LEFT */
    uint64_t changed_ns;   /* CLOCK_MONOTONIC of the last change of flags */
    uint64_t changes;      /* number of changes of CLOSED, both ways */
    uint32_t mem_wait;  /* 1: an allocation that the driver refuses waits; 0: the refusal stands */
    uint32_t mem_retry; /* counts: refused allocations are to try again */
    uint32_t mem_final; /* counts: they try once more, and then the refusal stands */
    uint32_t mem_changes; /* counts changes of these three; a futex (shared) */
    uint8_t pad1[16];
};

/* The job left the card of this page, whose gate stays closed: it never becomes too old. The
 * process has to register again. */
#define QG_BEAT_LEFT 0x8000000000000000u

/* ---- job page: one per tenant; every process of the job on that card writes its own slot ---- */

struct qg_fence {       /* one stream */
    uint32_t submitted; /* last fence value enqueued, by the CPU */
    uint32_t done;      /* last value reached, written by the GPU itself (cuStreamWriteValue32) */
};

/* A launch counter that one thread writes without an atomic operation (all but the last lane). The
 * arbiter makes such launches visible by membarrier(2) before it goes to sleep on the tenant. */
struct qg_lane {
    uint64_t launches;
    uint8_t pad[56];
};

struct qg_proc {            /* one process of the job; only the pid is the arbiter's */
    uint32_t pid;           /* as the arbiter assigned the slot; 0 = free. Set by the arbiter */
    uint32_t waiting;       /* threads that wait at the closed gate */
    uint64_t launches;      /* of threads without a lane; seq_cst, before the gate word is read */
    uint64_t mem_used;      /* bytes held on this card by this process */
    uint64_t mem_pending;   /* bytes being allocated just now */
    uint64_t mem_peak;      /* most that the job held on this card when this process allocated */
    uint64_t mem_denied;    /* allocations refused because of the cap */
    uint64_t gate_waits;    /* launches that found the gate closed */
    uint64_t gate_wait_ns;  /* time spent there */
    uint64_t inflight_us;   /* estimate of submitted, unfinished work (window mode) */
    uint64_t window_bypass; /* launches let through a full window after 2 ms without progress */
    uint64_t copy_bytes;    /* bytes of gated copies */
    uint32_t unfenced;      /* 1: some stream has work after its last fence */
    uint32_t reserved;
    /* CLOCK_MONOTONIC: when the first thread that waited at the closed gate went on */
    uint64_t quantum_start_ns;
    /* threads that wait for room in the window; after the gate has closed they wait at it */
    uint32_t queued;
    uint32_t made; /* contexts of the process on this card */
    /* CLOCK_MONOTONIC: idle report, when a call returned that had waited for the last work, or 0 */
    uint64_t idle_ns;
    uint64_t idle_launches; /* until then; if there were more since, the report is void */
    uint64_t mem_contexts;  /* the part of mem_used that is reserved for contexts */
    uint64_t mem_wanted;    /* bytes that allocations wait for which the driver refused; or 0 */
    uint64_t mem_refused;   /* most that the job would have held with an allocation in mem_denied */
    uint8_t pad[360];
    struct qg_fence fences[QG_FENCES]; /* offset 512 */
    struct qg_lane lanes[QG_LANES];    /* offset 1024 */
    uint8_t tail[QG_PAGE - 1024 - 64 * QG_LANES];
};

struct qg_job_page { /* a header page, and one page per process slot */
    uint32_t magic;
    uint32_t version;
    uint32_t size;
    uint32_t nslots; /* QG_MAX_PROCS */
    uint8_t pad[QG_PAGE - 16];
    /* one page each, so that a process registers only its own with CUDA */
    struct qg_proc procs[QG_MAX_PROCS];
};

/* Highest slot in use + 1, a u32 in the first bytes of the job page's padding: kept by the shims of
 * the job alone (raised before a process first writes its slot), so that admission visits only
 * slots that were ever used. */
#define QG_JOB_SLOTS_USED(page) ((uint32_t *)(void *)&(page)->pad[0])

/* Gate trace (qgpu-arbiter --trace FILE): fixed records, appended, for benchmarks and the demo. */
struct qg_gate_event {
    uint64_t t_ns; /* CLOCK_MONOTONIC, taken right after the gate word was stored */
    uint64_t job_id;
    uint32_t card; /* order in which the card became known */
    uint32_t flags;
};

/* ---- the layout, pinned ---- */

#define QG_PIN(type, size) _Static_assert(sizeof(type) == (size), #type " changed its size")
QG_PIN(struct qg_grant_card, 128);
QG_PIN(struct qg_grant, 1536 + 128 * QG_MAX_CARDS);
QG_PIN(struct qg_gate_page, 128);
QG_PIN(struct qg_proc, QG_PAGE);
QG_PIN(struct qg_job_page, QG_PAGE * (1 + QG_MAX_PROCS));
QG_PIN(struct qg_gate_event, 24);
_Static_assert(offsetof(struct qg_gate_page, flags) == 64, "gate word moved");
_Static_assert(offsetof(struct qg_proc, fences) == 512, "fences moved");
_Static_assert(offsetof(struct qg_proc, lanes) == 1024, "lanes moved");
_Static_assert(offsetof(struct qg_gate_page, mem_extra) == 40, "mem_extra moved");
_Static_assert(offsetof(struct qg_gate_page, until_ns) == 48, "until_ns moved");
_Static_assert(offsetof(struct qg_gate_page, mem_wait) == 96, "mem_wait moved");
_Static_assert(offsetof(struct qg_proc, mem_wanted) == 136, "mem_wanted moved");
_Static_assert(offsetof(struct qg_grant, cards) == 1536, "cards moved");

#endif
