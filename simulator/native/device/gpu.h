/* SPDX-License-Identifier: Apache-2.0
 *
 * The cards of qgpu-simgpu and what processes have on them: contexts, memory, time, the trace. One
 * thread, no locks. control/ and serve/ stand above and are not known here.
 */
#ifndef QGPU_SIM_GPU_H
#define QGPU_SIM_GPU_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sim_model.h"
#include "sim_proto.h"

#define GPU_MAX_CONNS    4096u
#define GPU_MAX_CTX_PROC 64u
#define GPU_MAX_CTX      2048u
#define GPU_PAGE         4096u
#define GPU_MAX_PINS     64u
#define GPU_PIN_MOST     (1ull << 20)
#define GPU_MAX_MAPPED   8192u      /* of all processes */
#define GPU_MAX_ALLOCS   (1u << 20) /* of one context */
#define GPU_SAMPLES      11u        /* of busy time, 100 ms apart: utilization over one second */
#define GPU_TICK_NS      100000000ull

struct rm; /* control/rm.h */
struct rm_file;
struct gpu_ctx;
struct gpu_card;
struct gpu_hold;  /* gpu_hold.c */
struct gpu_order; /* serve/gpu_orders.c */
struct gpu_conn;  /* one connection = one process that opened the driver or NVML */
struct gpu;

enum gpu_source {
    SRC_LISTEN,
    SRC_TIMER,
    SRC_TICK,
    SRC_SIGNAL,
    SRC_CONN,
    SRC_DEATH,
    SRC_BELL,
    SRC_CONTROL,
    SRC_OPENER,
    SRC_AGENT
};

struct gpu_watch { /* what an epoll event points at */
    enum gpu_source source;
    void *object;
};

struct gpu_samples {
    uint64_t t[GPU_SAMPLES], busy[GPU_SAMPLES];
    unsigned next, count;
};

struct gpu_card {
    struct gpu *gpu;
    struct model_card model;
    uint32_t index, minor;
    uint64_t mem_total, mem_used;
    char uuid[SIM_UUID_LEN];
    char path[192];
    struct gpu_samples samples;
    /* grows while timer wake-ups find nothing: a guard, the prediction is a lower bound */
    uint64_t backoff_ns;
    bool faulted;   /* one of its contexts has */
    bool published; /* something observable ended since the last prediction */
};

struct gpu_alloc {
    uint64_t id, bytes;
};

/* A channel group as the hardware knows it; objects of several clients may stand for it (DUP). */
struct rm_group {
    struct gpu_card *card;
    struct gpu_ctx *ctx; /* whose work it carries; NULL: none's */
    uint32_t id, engine; /* RM_ENGINE_*; 0: graphics */
    uint32_t objects, channels, disabled;
    unsigned engines;        /* of the model, a bit each */
    bool scheduled, lenient; /* lenient: the last order to stop leaves what runs where it is */
    uint64_t slice_us;       /* as asked for */
};

struct gpu_ctx {
    struct gpu_ctx *next; /* of the connection */
    struct gpu_conn *conn;
    struct gpu_card *card;
    struct model_ctx *model;
    struct rm_group *groups[MODEL_ENGINES]; /* that carry its work; NULL: it runs without */
    struct sim_shared *shm;
    int bell;
    uint32_t id;
    uint64_t tail, last_submit;
    uint64_t finished;
    struct gpu_alloc *allocs;
    uint32_t nallocs, room;
    uint64_t next_alloc, mem;
    bool hostile;
    /* it wrote where registered memory had been; poisoned when the model stands still */
    bool faulted;
    int sticky; /* a CUresult: nothing runs here any more */
};

struct gpu_conn {
    struct gpu_conn *next;
    struct gpu *gpu;
    struct gpu_watch watch, death;
    struct gpu_ctx *ctxs;
    struct gpu_ctx *parked; /* while the process is checkpointed: contexts without a card */
    uint32_t nctx;
    struct { /* of libcuda: the thread of the process that carries out orders */
        struct gpu_watch watch;
        int sock;       /* -1: there is none */
        int tid, state; /* state: a CUprocessState */
    } agent;
    /* mem: /proc/PID/mem as it was when the process connected, so exec(2) cannot redirect it */
    int sock, pidfd, mem;
    pid_t pid;
    uid_t uid;
    bool gone;
    struct sim_page *page; /* shared with the process; NULL before its HELLO */
    int page_fd;
    enum sim_listed listed;  /* by NVML */
    uint32_t hang_kernels;   /* number of next kernels that never end */
    uint64_t slice_ns;       /* of contexts to come; 0: the card's */
    uint64_t linger_us;      /* its memory and NVML entry outlive it by this */
    struct rm_file *control; /* its open file of the control device */
    bool wants_control;      /* it waits for one */
    struct gpu_pin *pins;    /* registered memory, and what was */
    uint32_t npins;
    bool lingers;                      /* it ended; `pidfd` is the timer of what is left */
    uint64_t past_busy[SIM_MAX_CARDS]; /* of contexts that it destroyed */
    struct gpu_samples samples[SIM_MAX_CARDS];
};

struct gpu_limit { /* of memory, on one card, for the processes of one cgroup */
    struct gpu_limit *next;
    uint32_t card;
    uint64_t soft, hard;
    char dir[SIM_TEXT];
};

struct gpu_config {
    const char *dir, *node, *model, *driver, *nvlinks; /* driver: its version */
    unsigned cards, major, minor_base, ready_fd, priority, depth, generation, mig;
    uint64_t memory, context_bytes;
    double ns_per_iter, unknown_us, copy_gbs, memory_gbs;
    struct model_params params;
    uint64_t control_ns;              /* what a command takes that the card executes */
    uint64_t stall_ns, stall_each_ns; /* a stall of all cards, and its period; 0: none */
    uint64_t poll_ns;                 /* rings are read without sleep after a command; 0: never */
    uint32_t links[SIM_MAX_CARDS][SIM_MAX_CARDS], switch_links[SIM_MAX_CARDS];
    bool trace, has_ready_fd, realtime;
};

struct gpu {
    struct gpu_config config;
    struct gpu_card cards[SIM_MAX_CARDS];
    struct gpu_conn *conns, *buried;    /* buried: freed after the batch of events */
    struct gpu_ctx *table[GPU_MAX_CTX]; /* by id % GPU_MAX_CTX */
    struct sim_page page;               /* what every new process gets */
    struct gpu_limit *limits;
    struct gpu_hold *holds;
    struct gpu_order *orders; /* the eldest first */
    uint64_t last_order;
    uint64_t last_hold;
    struct rm *rm; /* of the control device */
    struct gpu_watch control_watch, opener_watch;
    struct gpu_watch listen_watch, timer_watch, tick_watch, signal_watch;
    struct gpu_watch bell_watch; /* of all contexts: settle() reads every ring */
    uint32_t next_ctx, nconn, nctx;
    int epoll, listen, timer, tick, signals, dir, trace;
    uint64_t armed_ns, next_stall, taken_ns; /* taken: when the newest command was */
    bool ticking, stop, locked;
};

/* gpu_base.c */
uint64_t gpu_now(void);
bool gpu_watch_fd(struct gpu *gpu, int fd, uint32_t events, struct gpu_watch *watch);
bool gpu_same_user(pid_t pid, uid_t uid);

/* gpu_ctx.c */
struct gpu_ctx *gpu_ctx_create(struct gpu_conn *conn, struct gpu_card *card, int *memfd);
void gpu_ctx_destroy(struct gpu_ctx *ctx); /* also a parked one */
/* NULL: it is not on a card */
struct gpu_ctx *gpu_ctx_find(struct gpu *gpu, uint32_t id);
bool gpu_ctx_drain(struct gpu_ctx *ctx, uint64_t now); /* true: took an observable command */
void gpu_ctx_poll_client(struct gpu_ctx *ctx);
/* all its work is lost, every call answers status */
void gpu_ctx_poison(struct gpu_ctx *ctx, int status);
void gpu_ctx_unbind(struct gpu_ctx *ctx); /* its groups carry it no longer */
extern const struct model_hooks gpu_hooks;

/* gpu_memory.c */
int gpu_ctx_alloc(struct gpu_ctx *ctx, uint64_t bytes, uint64_t *id); /* a CUresult */
int gpu_ctx_free(struct gpu_ctx *ctx, uint64_t id);
bool gpu_has_room(struct gpu_conn *conn, struct gpu_card *card, uint64_t bytes);
uint64_t gpu_conn_memory(const struct gpu_conn *conn, const struct gpu_card *card);

/* gpu_hold.c: memory of a context that another process opened. The number of the hold; 0: it is
 * gone, or another user's. */
uint64_t gpu_hold(struct gpu_conn *conn, uint32_t ctx, uint64_t alloc);
void gpu_let_go(struct gpu_conn *conn, uint64_t hold);
void gpu_let_all_go(struct gpu_conn *conn);
/* its maker frees it: whether it stays on the card; the same for all memory of a context */
bool gpu_held_on(struct gpu_ctx *ctx, uint64_t alloc);
void gpu_ctx_bequeath(struct gpu_ctx *ctx);
bool gpu_ctx_is_held(const struct gpu_ctx *ctx);
/* what a process holds and no maker has any more */
uint64_t gpu_held_by(const struct gpu_conn *conn, const struct gpu_card *card);

/* gpu_park.c: all contexts of a process off their cards, with their memory, and back on those cards
 * or (moves: a bit each, to: 4 bits each) on others. A CUresult; all or nothing. */
int gpu_park(struct gpu_conn *conn);
int gpu_unpark(struct gpu_conn *conn, uint32_t moves, uint64_t to);
struct gpu_card *gpu_moved(struct gpu_card *card, uint32_t moves, uint64_t to);
/* it cannot be meant: not all cards of the process, two to one, or one that is not there */
bool gpu_moves_bad(const struct gpu_conn *conn, uint32_t moves, uint64_t to);

/* gpu_card.c */
bool gpu_card_init(struct gpu *gpu, unsigned index);
void gpu_card_sync(struct gpu_card *card); /* drains all rings, advances to now */
uint64_t gpu_card_next(struct gpu_card *card, uint64_t now);
void gpu_card_sample(struct gpu_card *card, uint64_t now);
void gpu_sample(struct gpu_samples *samples, uint64_t now, uint64_t busy);
unsigned gpu_percent(const struct gpu_samples *samples, uint64_t now, uint64_t busy);
uint64_t gpu_conn_busy(const struct gpu_conn *conn, const struct gpu_card *card); /* of compute */

/* gpu_page.c */
bool gpu_page_open(struct gpu_conn *conn);
void gpu_page_close(struct gpu_conn *conn);

/* gpu_pin.c: memory of a process that it registered; what cannot be mapped is reached another way
 */
void gpu_pin(struct gpu_conn *conn, uint64_t base, uint64_t size);
void gpu_unpin(struct gpu_conn *conn, uint64_t base);
/* was registered then, and is not now */
bool gpu_pin_gone(const struct gpu_conn *conn, uint64_t address, uint64_t since_ns);
void gpu_unpin_all(struct gpu_conn *conn);
bool gpu_word_read(const struct gpu_conn *conn, uint64_t address, size_t size, uint64_t *value);
/* false: it is lost */
bool gpu_word_write(const struct gpu_conn *conn, uint64_t address, size_t size, uint64_t value);

/* gpu_cost.c: rules for the duration of kernels, from a file; false: a message is on stderr */
bool gpu_cost_read(struct sim_page *page, const char *path);
bool gpu_cost_shipped(struct sim_page *page); /* for the kernels that no rule named until here */

/* gpu_limit.c: memory limits of cgroups, as drivers from generation 615 have them */
int gpu_limit_set(struct gpu *gpu, const struct sim_req *req, const char *dir);
int gpu_limit_get(struct gpu *gpu, const struct sim_req *req, const char *dir, struct sim_rep *rep);
/* Room that the limits leave to a process; *total, *used: what it sees of the card. */
uint64_t gpu_limit_room(struct gpu_conn *conn, const struct gpu_card *card, uint64_t *total,
                        uint64_t *used);

/* gpu_trace.c */
bool gpu_trace_open(struct gpu *gpu);
void gpu_trace(struct gpu *gpu, const struct sim_trace_rec *rec);
void gpu_trace_flush(struct gpu *gpu);

#endif
