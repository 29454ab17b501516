/* SPDX-License-Identifier: Apache-2.0
 *
 * What every qgpu process shares: the sealed grant, the pages between a tenant and the arbiter, and
 * the messages of the node's sockets (docs/specs/abi.md). `make layouts` mirrors it in Python.
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
#define QG_LANES        16u
#define QG_MAX_GROUPS   32u /* channel groups of one RM client on one card */
#define QG_MAX_CHANNELS 64u /* channels of the same */
#define QG_PAGE         4096u

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
    uint8_t reserved[48];
};
#define QG_GRANT_CARD_MANAGED_RESIDENT 0x1u /* managed memory is charged as NVML sees it */
#define QG_GRANT_CARD_RECLAIMABLE      0x2u /* its memory may be taken back */

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
    uint8_t reserved[236];
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
#define QG_GATE_HOLD          0x10u
#define QG_GATE_WHY_MASK      0xf00u
#define QG_GATE_WHY_PREEMPTED 0x100u /* an online tenant of the card is busy */
#define QG_GATE_WHY_SHARE     0x200u /* another member has the quantum, or the share is used up */
#define QG_GATE_WHY_RECOVERY  0x400u /* the arbiter restarted and waits for tenants to come back */

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
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC, at least every lease_ms / 4 */
    uint64_t changed_ns;   /* CLOCK_MONOTONIC of the last change of flags */
    uint64_t changes;      /* number of changes of CLOSED, both ways */
    uint8_t pad1[32];
};

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
    uint64_t mem_peak;      /* largest mem_used */
    uint64_t mem_denied;    /* allocations refused because of the cap */
    uint64_t gate_waits;    /* launches that found the gate closed */
    uint64_t gate_wait_ns;  /* time spent there */
    uint64_t inflight_us;   /* estimate of submitted, unfinished work (window mode) */
    uint64_t window_bypass; /* launches let through a full window after 2 ms without progress */
    uint64_t copy_bytes;    /* bytes of gated copies */
    uint32_t unfenced;      /* 1: some stream has work after its last fence */
    /* contexts in which the process submitted work on this card, and which still exist */
    uint32_t contexts;
    /* CLOCK_MONOTONIC: when the first thread that waited at the closed gate went on */
    uint64_t quantum_start_ns;
    /* threads that wait for room in the window; after the gate has closed they wait at it */
    uint32_t queued;
    uint32_t made; /* contexts of the process on this card */
    /* CLOCK_MONOTONIC: idle report, when a call returned that had waited for the last work, or 0 */
    uint64_t idle_ns;
    uint64_t idle_launches; /* until then; if there were more since, the report is void */
    uint64_t mem_contexts;  /* the part of mem_used that is reserved for contexts */
    uint8_t pad[376];
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

/* ---- messages ---- */

enum qg_msg_type {
    QG_MSG_REGISTER = 1, /* tenant -> arbiter; may carry the sealed grant memfd */
    /* arbiter -> tenant; carries gate page, job page, doorbell (in this order) */
    QG_MSG_REGISTERED = 2,
    /* tenant -> arbiter, after 2: the process's channel groups; carries the control device */
    QG_MSG_GROUPS = 3,
    /* arbiter -> tenant: do this to your own groups of that card (the fallback: the shim acts) */
    QG_MSG_ACT = 4,
    QG_MSG_ACTED = 5, /* tenant -> arbiter: what came of it */
    /* qgpud -> arbiter: forget which grants are confirmed, a full list follows */
    QG_CTL_HELLO = 16,
    QG_CTL_CARD = 17,   /* settings of one card */
    QG_CTL_GRANT = 18,  /* one (job, card); the same again updates it */
    QG_CTL_REVOKE = 19, /* job ended */
    QG_CTL_SYNCED = 20, /* end of the full list: unconfirmed grants are revoked */
    QG_CTL_STATS = 21,  /* what QG_CTL_LIST asks for: all tenants */
    QG_CTL_TENANT = 22, /* answer, one per tenant, then QG_CTL_END */
    QG_CTL_END = 23,    /* answer, end of list */
    QG_CTL_ACK = 24,    /* answer to 16..20, 25, 27, 28, 36 */
    QG_CTL_WATCH = 25,  /* from then on this connection only receives QG_CTL_DIED */
    /* arbiter -> qgpud: a process died, its bytes stay charged until QG_CTL_GONE */
    QG_CTL_DIED = 26,
    QG_CTL_GONE = 27, /* qgpud -> arbiter: NVML does not list it any more */
    /* qgpud -> arbiter: bytes of contexts and modules of a tenant, from NVML */
    QG_CTL_OVERHEAD = 28,
    QG_CTL_PROCS = 29,    /* what QG_CTL_LIST asks for: all registered processes */
    QG_CTL_PROC = 30,     /* answer, one per registered process, then QG_CTL_END */
    QG_CTL_HARDWARE = 31, /* qgpud -> arbiter: settings of hardware preemption of one card */
    QG_CTL_HWSTATS = 32,  /* what QG_CTL_LIST asks for: hardware preemption */
    QG_CTL_HWTENANT = 33, /* answer, one per tenant, then QG_CTL_END */
    QG_CTL_LIST = 34,     /* ask for 21, 29 or 32; as many answers to a packet as fit */
    QG_CTL_HWCARD = 35,   /* in the list of 32, one per card that ever got 31 */
    /* qgpud -> arbiter: NVML still lists this dead process: its bytes stay charged */
    QG_CTL_LISTED = 36
};

struct qg_msg_head { /* the start of every message */
    uint32_t magic;
    uint32_t version;
    uint32_t type;
    uint32_t size; /* of the whole message */
};

struct qg_register { /* a process asks to be a tenant of one card */
    struct qg_msg_head head;
    uint64_t job_id;
    char uuid[QG_UUID_LEN];
    uint64_t mem_used; /* what the process holds already (registering again) */
};

struct qg_registered { /* the answer; status 0 comes with three descriptors */
    struct qg_msg_head head;
    /* 0, or an errno: EAGAIN = ask again soon (grants not loaded yet), EPERM, ENOSPC, EPROTO */
    int32_t status;
    uint32_t slot; /* index into qg_job_page.procs */
    uint64_t mem_cap;
    char message[256]; /* why, when status is not 0 */
};

struct qg_ctl_card { /* settings of one card */
    struct qg_msg_head head;
    char uuid[QG_UUID_LEN];
    uint32_t idle_release_ms;
    uint32_t window_us;
    uint32_t slice_us;
    uint32_t lease_ms;
    uint32_t policy_online;  /* enum qg_policy */
    uint32_t policy_offline; /* enum qg_policy */
    /* QG_CARD_UNGOVERNED: gates stay open (isolation off, and the benchmarks' control) */
    uint32_t flags;
    /* ms for which offline stays closed after a restart, or until tenants registered */
    uint32_t grace_ms;
};
#define QG_CARD_UNGOVERNED 0x1u
/* an offline job preempted on this card is suspended on all its cards of the node */
#define QG_CARD_GANG_SUSPEND 0x8u

struct qg_ctl_grant { /* one (job, card) */
    struct qg_msg_head head;
    uint64_t job_id;
    uint32_t uid;
    uint32_t job_class;
    char uuid[QG_UUID_LEN];
    uint32_t share;
    uint32_t flags; /* QG_GRANT_UNGOVERNED */
    uint64_t mem_cap;
    uint64_t mem_context; /* as in the gate page, until QG_CTL_OVERHEAD */
};
/* isolation was none when the job started: its gate stays open on this card */
#define QG_GRANT_UNGOVERNED 0x1u

struct qg_ctl_revoke { /* the job ended */
    struct qg_msg_head head;
    uint64_t job_id;
};

struct qg_ctl_list { /* asks for a list; its answers share packets */
    struct qg_msg_head head;
    uint32_t of; /* QG_CTL_STATS, QG_CTL_PROCS or QG_CTL_HWSTATS */
    uint32_t reserved;
};
/* a packet of it is never longer; messages follow each other, each with its own head */
#define QG_LIST_BYTES 32768u

struct qg_ctl_ack { /* the answer to every command that is not a question */
    struct qg_msg_head head;
    int32_t status; /* 0 or an errno */
    uint32_t reserved;
    uint64_t boot_id; /* random per start of the arbiter: qgpud sees restarts */
};

#define QG_CLOSE_BUCKETS 16u
struct qg_ctl_tenant { /* the measured state of one tenant */
    struct qg_msg_head head;
    uint64_t job_id;
    char uuid[QG_UUID_LEN];
    uint32_t uid;
    uint32_t job_class;
    uint32_t share;
    uint32_t gate; /* gate word */
    uint32_t procs;
    uint32_t busy; /* 1: has work now */
    uint64_t mem_cap;
    uint64_t mem_used;
    uint64_t mem_peak;
    uint64_t mem_denied;
    uint64_t launches;
    uint64_t busy_ns; /* on the card, overlapping tenants divided; Σ over tenants ≤ wall */
    /* gate closed for an online tenant while this one wanted to work */
    uint64_t closed_preempted_ns;
    uint64_t closed_share_ns;   /* gate closed by shares while this one wanted to work */
    uint64_t preemptions;       /* times an online tenant closed the gate while this one had work */
    uint64_t gate_close_max_ns; /* doorbell seen -> gate closed, worst */
    uint64_t granted_ns;        /* CLOCK_MONOTONIC since when the tenant exists here */
    uint32_t flags;             /* QG_TENANT_* */
    uint32_t policy;            /* enum qg_policy that rules it */
    /* > 0: got less than its share under contention; fixed-share: budget left */
    int64_t deficit_ns;
    uint64_t mem_extra;           /* as in the gate page */
    uint64_t closed_suspended_ns; /* part of closed_preempted_ns: for another card of the job */
    /* online: at work or within idle_release after it, so that offline is locked out */
    uint64_t held_ns;
    /* closings for online: bucket k counts those below 2^k us, the last one all others */
    uint32_t close_hist[QG_CLOSE_BUCKETS];
};
#define QG_TENANT_ESTIMATED   0x1u /* busy_ns was sampled, not clocked, since the last answer */
#define QG_TENANT_PASSED_OVER 0x2u /* shows no progress (stopped, hung, lying) */
#define QG_TENANT_UNGOVERNED  0x4u
#define QG_TENANT_SUSPENDED   0x8u /* for the sake of another card of its job */

struct qg_ctl_process { /* QG_CTL_DIED, QG_CTL_GONE, QG_CTL_LISTED, QG_CTL_PROC */
    struct qg_msg_head head;
    uint64_t job_id;
    char uuid[QG_UUID_LEN];
    uint32_t pid;
    uint32_t uid;
    uint64_t mem_used; /* bytes that it held, or holds */
    uint64_t mem_pending;
    uint64_t mem_contexts; /* this and contexts: not of the dead */
    uint32_t contexts;
    uint32_t reserved;
};

struct qg_ctl_overhead { /* bytes of a tenant that NVML counts and no process reports */
    struct qg_msg_head head;
    uint64_t job_id;
    char uuid[QG_UUID_LEN];
    uint64_t bytes;
    uint64_t mem_context; /* what its next context is to reserve */
};

/* ---- hardware preemption (docs/specs/hardware.md); only between a shim and an arbiter that both
 * know it ---- */

/* All channel groups that the process has below one RM client on one card. Each message replaces
 * the former one about this client. ngroups 0: none is left. All of it is a hint until the driver
 * itself confirmed it. */
struct qg_groups {
    struct qg_msg_head head;
    uint64_t job_id;
    char uuid[QG_UUID_LEN];
    /* RM handles; the descriptor that comes along made the client */
    uint32_t client, device, subdevice;
    uint32_t ngroups, nchannels;
    uint32_t flags; /* QG_GROUPS_* */
    struct {
        uint32_t handle, engine;
    } groups[QG_MAX_GROUPS];
    struct {
        uint32_t handle, group;
    } channels[QG_MAX_CHANNELS];
};
/* more than fits, or something that could not be followed: do not stop by hardware */
#define QG_GROUPS_LOST 0x1u
/* a context of it is about to be destroyed: continue it, and leave it alone from now on */
#define QG_GROUPS_LEAVE 0x2u
/* channels that did not fit: DISABLE would not stop all of it */
#define QG_GROUPS_MORE_CHANNELS 0x4u

enum qg_action { QG_ACT_CONTINUE = 0, QG_ACT_STOP = 1, QG_ACT_SLICE = 2, QG_ACT_REPORT = 3 };
/* REPORT: send QG_MSG_GROUPS of this card anew, no other answer. serial 0: no answer. */
struct qg_act { /* QG_MSG_ACT and its answer QG_MSG_ACTED */
    struct qg_msg_head head;
    char uuid[QG_UUID_LEN];
    uint32_t action; /* enum qg_action */
    uint32_t method; /* enum qg_hw_method */
    uint64_t value;  /* microseconds of a slice */
    uint64_t serial; /* the answer repeats it */
    uint32_t status; /* of the answer: NV_STATUS of the first command that failed, or 0 */
    uint32_t count;  /* of the answer: groups acted on */
};

enum qg_hw_method {
    QG_HW_AUTO = 0,     /* the first below that the self-test passes with */
    QG_HW_SCHEDULE = 1, /* GPFIFO_SCHEDULE of each group, then PREEMPT */
    QG_HW_DISABLE = 2,  /* FIFO_DISABLE_CHANNELS of the subdevice, own channels only */
    QG_HW_TIMESLICE = 3 /* the shortest slice: weakest, stops nothing by itself */
};
struct qg_ctl_hardware { /* settings of hardware preemption of one card */
    struct qg_msg_head head;
    char uuid[QG_UUID_LEN];
    uint32_t enabled;
    uint32_t method;       /* enum qg_hw_method */
    uint32_t actor;        /* enum qg_hw_actor; AUTO: the arbiter, where it cannot the shim */
    uint32_t weights;      /* 1: shares by time slices of the groups instead of quanta */
    uint32_t driver_major; /* as NVML says; outside the known range the backend stays off */
    uint32_t period_us;    /* weights: slices of all tenants add up to this */
    /* identity of the control device; rdev 0: a simulated one, known by the other two */
    uint64_t ctl_dev, ctl_ino, ctl_rdev;
};
enum qg_hw_actor { QG_HW_ACTOR_AUTO = 0, QG_HW_ACTOR_ARBITER = 1, QG_HW_ACTOR_SHIM = 2 };
enum qg_hw_state {
    QG_HW_NONE = 0,  /* no group is known */
    QG_HW_READY = 1, /* the self-test passed */
    QG_HW_STOPPED = 2,
    QG_HW_FAILED = 3 /* gating alone; `why` says it */
};
/* Whether hardware preemption is on, as ordered. A card whose control calls hang again and again is
 * left to its gates. */
struct qg_ctl_hwcard {
    struct qg_msg_head head;
    char uuid[QG_UUID_LEN];
    uint32_t ordered, on;
    uint32_t hung; /* calls of the driver that have not returned */
    uint32_t reserved;
};
struct qg_ctl_hwtenant { /* what hardware preemption did with one tenant */
    struct qg_msg_head head;
    uint64_t job_id;
    char uuid[QG_UUID_LEN];
    uint32_t state, actor, method, ngroups;
    uint64_t stops, continues, failures;
    uint64_t stopped_ns;                  /* sum of the time that it was stopped */
    uint64_t stop_max_ns;                 /* gate closed -> last command answered, worst */
    uint32_t stop_hist[QG_CLOSE_BUCKETS]; /* the same; bucket k took less than 2^k us */
    uint32_t last_status, reserved;
    char why[128];
};

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
QG_PIN(struct qg_register, 80);
QG_PIN(struct qg_registered, 288);
QG_PIN(struct qg_ctl_card, 96);
QG_PIN(struct qg_ctl_grant, 104);
QG_PIN(struct qg_ctl_revoke, 24);
QG_PIN(struct qg_ctl_ack, 32);
QG_PIN(struct qg_ctl_tenant, 288);
QG_PIN(struct qg_ctl_process, 112);
QG_PIN(struct qg_ctl_overhead, 88);
QG_PIN(struct qg_gate_event, 24);
QG_PIN(struct qg_groups, 864);
QG_PIN(struct qg_act, 96);
QG_PIN(struct qg_ctl_hardware, 112);
QG_PIN(struct qg_ctl_hwtenant, 328);
QG_PIN(struct qg_ctl_hwcard, 80);
QG_PIN(struct qg_ctl_list, 24);
_Static_assert(offsetof(struct qg_gate_page, flags) == 64, "gate word moved");
_Static_assert(offsetof(struct qg_proc, fences) == 512, "fences moved");
_Static_assert(offsetof(struct qg_proc, lanes) == 1024, "lanes moved");
_Static_assert(offsetof(struct qg_gate_page, mem_extra) == 40, "mem_extra moved");
_Static_assert(offsetof(struct qg_gate_page, until_ns) == 48, "until_ns moved");
_Static_assert(offsetof(struct qg_grant, cards) == 1536, "cards moved");

#endif
