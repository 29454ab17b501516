/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages of the node's sockets: tenant and arbiter (docs/specs/registration.md), qgpud and
 * arbiter (docs/specs/control.md). `make layouts` mirrors them in Python. What a job sends is
 * untrusted.
 */
#ifndef QGPU_MESSAGES_H
#define QGPU_MESSAGES_H

#include "qgpu_abi.h"

#define QG_MAX_GROUPS   32u /* channel groups of one RM client on one card */
#define QG_MAX_CHANNELS 64u /* channels of the same */

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
    QG_CTL_REVOKE = 19, /* the job ended, or left one card */
    QG_CTL_SYNCED = 20, /* end of the full list: unconfirmed grants are revoked */
    QG_CTL_STATS = 21,  /* what QG_CTL_LIST asks for: all tenants */
    QG_CTL_TENANT = 22, /* answer, one per tenant, then QG_CTL_END */
    QG_CTL_END = 23,    /* answer, end of list */
    QG_CTL_ACK = 24,    /* answer to 16..20, 25, 27, 28, 31, 36, 38 */
    QG_CTL_WATCH = 25,  /* from then on this connection only receives 26 and 37 */
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
    QG_CTL_LISTED = 36,
    /* arbiter -> qgpud: allocations of this process wait for `mem_used` bytes; 0: none does */
    QG_CTL_WANT = 37,
    QG_CTL_MEMORY = 38 /* qgpud -> arbiter: what allocations do that the driver refused */
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
    /* idle_release: auto. The longest that online may wait for offline at the start of its work; 0:
     * offline waits for idle_release_ms */
    uint32_t online_delay_us;
    /* %, idle_release: auto. Of online's time, the part that waiting for offline may add; 0: any */
    uint32_t online_share;
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
    uint32_t flags; /* QG_GRANT_* */
    uint64_t mem_cap;
    uint64_t mem_context; /* as in the gate page, until QG_CTL_OVERHEAD */
    /* "", or the UUID by which the job's processes name this card: they began on that one, and the
     * job was moved */
    char home[QG_UUID_LEN];
};
/* isolation was none when the job started: its gate stays open on this card */
#define QG_GRANT_UNGOVERNED 0x1u
/* its memory leaves the card: its gate is closed, QG_GATE_WHY_MEMORY, until a GRANT without it */
#define QG_GRANT_HELD 0x2u

struct qg_ctl_revoke { /* the job ended, or left one card */
    struct qg_msg_head head;
    uint64_t job_id;
    /* "": all its cards. Else this one alone, and its processes have to register again at once */
    char uuid[QG_UUID_LEN];
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
    uint64_t closed_idle_ns; /* part of closed_preempted_ns: no work was on the card */
    uint64_t mem_refused;    /* the most that it would have held with a refused allocation */
    /* closings for online: bucket k counts those below 2^k us, the last one all others */
    uint32_t close_hist[QG_CLOSE_BUCKETS];
};
#define QG_TENANT_PASSED_OVER 0x2u /* shows no progress (stopped, hung, lying) */
#define QG_TENANT_UNGOVERNED  0x4u
#define QG_TENANT_SUSPENDED   0x8u /* for the sake of another card of its job */

struct qg_ctl_process { /* QG_CTL_DIED, QG_CTL_GONE, QG_CTL_LISTED, QG_CTL_PROC, QG_CTL_WANT */
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

enum qg_memory_action {
    QG_MEMORY_WAIT = 1,   /* allocations that the driver refuses wait from now on */
    QG_MEMORY_NOWAIT = 2, /* their refusals stand, also of those that wait now */
    QG_MEMORY_RETRY = 3,  /* those that wait try again */
    QG_MEMORY_FINAL = 4   /* those that wait try once more, and then the refusal stands */
};
struct qg_ctl_memory { /* what allocations do that the driver refused on one card */
    struct qg_msg_head head;
    uint64_t job_id; /* 0: all jobs of the card; WAIT and NOWAIT then hold for later ones, too */
    char uuid[QG_UUID_LEN];
    uint32_t action; /* enum qg_memory_action */
    uint32_t reserved;
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

/* ---- the layout, pinned ---- */

QG_PIN(struct qg_register, 80);
QG_PIN(struct qg_registered, 288);
QG_PIN(struct qg_ctl_card, 104);
QG_PIN(struct qg_ctl_grant, 152);
QG_PIN(struct qg_ctl_revoke, 72);
QG_PIN(struct qg_ctl_ack, 32);
QG_PIN(struct qg_ctl_tenant, 304);
QG_PIN(struct qg_ctl_process, 112);
QG_PIN(struct qg_ctl_overhead, 88);
QG_PIN(struct qg_ctl_memory, 80);
QG_PIN(struct qg_groups, 864);
QG_PIN(struct qg_act, 96);
QG_PIN(struct qg_ctl_hardware, 112);
QG_PIN(struct qg_ctl_hwtenant, 328);
QG_PIN(struct qg_ctl_hwcard, 80);
QG_PIN(struct qg_ctl_list, 24);

#endif
