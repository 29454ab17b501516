/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts on the device side: taking commands out of the shared ring, publishing what ended, and
 * memory.
 */
#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/memfd.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gpu.h"

#define MAX_KERNEL_NS   3600e9 /* an hour; longer is a broken argument */
#define COPY_LATENCY_NS 1500.0

static void wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Publishes a change of word's neighbours; the sequentially consistent pair with the client's
 * waiters++ loses no wake. */
static void announce(uint32_t *gen, uint32_t *waiters)
{
    __atomic_add_fetch(gen, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(waiters, __ATOMIC_SEQ_CST))
        wake(gen);
}

struct gpu_ctx *gpu_ctx_find(struct gpu *gpu, uint32_t id)
{
    struct gpu_ctx *ctx = gpu->table[id % GPU_MAX_CTX];
    return ctx && ctx->id == id && ctx->model->card ? ctx : NULL;
}

static struct sim_shared *map_shared(int *memfd)
{
    int fd = memfd_create("qgpu-sim-context", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return NULL;
    void *map = MAP_FAILED;
    if (ftruncate(fd, sizeof(struct sim_shared)) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        map = mmap(NULL, sizeof(struct sim_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        close(fd);
        return NULL;
    }
    *memfd = fd;
    return map;
}

static bool take_id(struct gpu *gpu, struct gpu_ctx *ctx)
{
    for (unsigned tries = 0; tries < GPU_MAX_CTX; tries++) {
        uint32_t id = ++gpu->next_ctx;
        if (id && !gpu->table[id % GPU_MAX_CTX]) {
            ctx->id = id;
            gpu->table[id % GPU_MAX_CTX] = ctx;
            return true;
        }
    }
    return false;
}

static void link_ctx(struct gpu_ctx *ctx)
{
    ctx->next = ctx->conn->ctxs;
    ctx->conn->ctxs = ctx;
    ctx->conn->nctx++;
    ctx->conn->gpu->nctx++;
    ctx->mem = ctx->conn->gpu->config.context_bytes;
    ctx->card->mem_used += ctx->mem;
}

void gpu_ctx_unbind(struct gpu_ctx *ctx)
{
    for (unsigned e = 0; e < MODEL_ENGINES; e++) {
        if (ctx->groups[e])
            ctx->groups[e]->ctx = NULL;
        ctx->groups[e] = NULL;
    }
}

static void free_parts(struct gpu_ctx *ctx, int memfd)
{
    if (ctx->id)
        ctx->conn->gpu->table[ctx->id % GPU_MAX_CTX] = NULL;
    gpu_ctx_unbind(ctx);
    if (ctx->model)
        model_ctx_destroy(ctx->model);
    if (ctx->shm)
        munmap(ctx->shm, sizeof *ctx->shm);
    if (ctx->bell >= 0)
        close(ctx->bell);
    if (memfd >= 0)
        close(memfd);
    free(ctx->allocs);
    free(ctx);
}

struct gpu_ctx *gpu_ctx_create(struct gpu_conn *conn, struct gpu_card *card, int *memfd)
{
    struct gpu *gpu = conn->gpu;
    struct gpu_ctx *ctx = calloc(1, sizeof *ctx);
    *memfd = -1;
    if (!ctx)
        return NULL;
    ctx->conn = conn;
    ctx->card = card;
    ctx->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ctx->shm = map_shared(memfd);
    if (ctx->bell < 0 || !ctx->shm || !take_id(gpu, ctx))
        goto fail;
    ctx->model = model_ctx_create(&card->model, ctx->id, ctx);
    /* Edge-triggered and never read: a client that drains it only misses its own wake-ups. */
    if (!ctx->model || !gpu_watch_fd(gpu, ctx->bell, EPOLLIN | EPOLLET, &gpu->bell_watch))
        goto fail;
    ctx->model->slice_ns[ENG_COMPUTE] = conn->slice_ns;
    *ctx->shm = (struct sim_shared){.magic = SIM_MAGIC,
                                    .version = SIM_VERSION,
                                    .ctx_id = ctx->id,
                                    .card = card->index,
                                    .depth = gpu->config.depth};
    link_ctx(ctx);
    return ctx;
fail:
    free_parts(ctx, *memfd);
    *memfd = -1;
    return NULL;
}

void gpu_ctx_destroy(struct gpu_ctx *ctx)
{
    struct gpu_conn *conn = ctx->conn;
    bool parked = !ctx->model->card;
    struct gpu_ctx **link = parked ? &conn->parked : &conn->ctxs;
    while (*link != ctx)
        link = &(*link)->next;
    *link = ctx->next;
    conn->nctx--;
    if (!parked) {
        conn->gpu->nctx--;
        conn->past_busy[ctx->card->index] += ctx->model->busy_ns[ENG_COMPUTE];
        gpu_ctx_bequeath(ctx);
        ctx->card->mem_used -= ctx->mem;
    }
    __atomic_store_n(&ctx->shm->dead, 1, __ATOMIC_SEQ_CST);
    announce(&ctx->shm->space_gen, &ctx->shm->space_waiters);
    free_parts(ctx, -1);
}

/* Wakes all threads that wait for a stream, an event or a place in the queue. */
void gpu_ctx_poison(struct gpu_ctx *ctx, int status)
{
    struct sim_shared *shm = ctx->shm;
    if (ctx->sticky)
        return;
    ctx->sticky = status;
    model_ctx_abort(ctx->model);
    ctx->finished = ctx->tail;
    __atomic_store_n(&shm->finished, ctx->finished, __ATOMIC_RELAXED);
    __atomic_store_n(&shm->sticky, (uint32_t)status, __ATOMIC_SEQ_CST);
    announce(&shm->space_gen, &shm->space_waiters);
    for (unsigned i = 0; i < SIM_STREAMS; i++)
        announce(&shm->streams[i].gen, &shm->streams[i].waiters);
    for (unsigned i = 0; i < SIM_EVENTS; i++)
        announce(&shm->events[i].gen, &shm->events[i].waiters);
}

/* ---- commands in ---- */

static uint64_t duration(const struct gpu_config *config, const struct sim_cmd *cmd)
{
    double ns = 0;
    switch (cmd->op) {
    case SIM_OP_KERNEL:
        ns = cmd->b == SIM_COST_WORK   ? (double)cmd->a * config->ns_per_iter
             : cmd->b == SIM_COST_RULE ? (double)cmd->a
                                       : config->unknown_us * 1e3;
        break;
    case SIM_OP_HTOD:
    case SIM_OP_DTOH:
    case SIM_OP_PEER:
        ns = COPY_LATENCY_NS + (double)cmd->a / config->copy_gbs;
        break;
    case SIM_OP_DTOD:
    case SIM_OP_MEMSET:
        ns = COPY_LATENCY_NS + (double)cmd->a / config->memory_gbs;
        break;
    default:
        return 0;
    }
    return ns < 1 ? 1 : ns > MAX_KERNEL_NS ? (uint64_t)MAX_KERNEL_NS : (uint64_t)ns;
}

static bool valid(const struct sim_cmd *cmd)
{
    bool known = model_timed(cmd->op) || (cmd->op >= SIM_OP_EVENT && cmd->op <= SIM_OP_WAIT64);
    return known && cmd->stream < SIM_STREAMS && (cmd->op != SIM_OP_EVENT || cmd->a < SIM_EVENTS);
}

/* Takes one command; now bounds what the client says about its time. */
static bool take(struct gpu_ctx *ctx, uint64_t now, bool *seen)
{
    struct sim_cmd cmd;
    memcpy(&cmd, (const void *)&ctx->shm->ring[ctx->tail % SIM_RING], sizeof cmd);
    /* cmd is a copy from here on, whatever the client does to the slot */
    __asm__ volatile("" ::: "memory");
    if (!valid(&cmd)) {
        ctx->hostile = true;
        return false;
    }
    if (cmd.t_submit > now)
        cmd.t_submit = now;
    if (cmd.t_submit < ctx->last_submit)
        cmd.t_submit = ctx->last_submit;
    uint64_t ns = duration(&ctx->conn->gpu->config, &cmd);
    bool hangs = cmd.op == SIM_OP_KERNEL && ctx->conn->hang_kernels;
    if (cmd.op == SIM_OP_KERNEL && cmd.b != SIM_COST_WORK)
        cmd.a = 0; /* the trace speaks of iterations */
    if (!ctx->sticky && !model_submit(ctx->model, &cmd, ctx->tail + 1, hangs ? MODEL_HUNG : ns))
        return false;
    ctx->finished += ctx->sticky != 0;
    ctx->conn->hang_kernels -= hangs;
    ctx->last_submit = cmd.t_submit;
    ctx->tail++;
    *seen |= model_observable(cmd.op);
    return true;
}

static unsigned drain(struct gpu_ctx *ctx, uint64_t now, bool *seen)
{
    unsigned taken = 0;
    uint64_t head = __atomic_load_n(&ctx->shm->head, __ATOMIC_ACQUIRE);
    if (head - ctx->tail > SIM_RING) {
        ctx->hostile = true;
        return 0;
    }
    while (!ctx->hostile && ctx->tail != head && take(ctx, now, seen))
        taken++;
    if (taken) {
        ctx->conn->gpu->taken_ns = now;
        __atomic_store_n(&ctx->shm->finished, ctx->finished, __ATOMIC_SEQ_CST);
        __atomic_store_n(&ctx->shm->tail, ctx->tail, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&ctx->shm->space_waiters, __ATOMIC_SEQ_CST))
            announce(&ctx->shm->space_gen, &ctx->shm->space_waiters);
    }
    return taken;
}

bool gpu_ctx_drain(struct gpu_ctx *ctx, uint64_t now)
{
    bool seen = false;
    drain(ctx, now, &seen);
    return seen;
}

static bool word_holds(const struct gpu_ctx *ctx, const struct model_op *op)
{
    bool wide = op->op == SIM_OP_WAIT64;
    uint64_t have, mask = wide ? UINT64_MAX : UINT32_MAX, want = op->b & mask;
    if (!gpu_word_read(ctx->conn, op->a, wide ? 8 : 4, &have))
        return false;
    switch (op->c & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return wide ? (int64_t)(have - want) >= 0 : (int32_t)(uint32_t)(have - want) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return have == want;
    case CU_STREAM_WAIT_VALUE_AND:
        return (have & want) != 0;
    default:
        return (have | want) != mask; /* NOR: ~(have | want) != 0 */
    }
}

void gpu_ctx_poll_client(struct gpu_ctx *ctx)
{
    for (unsigned i = 0; i < ctx->model->nactive; i++) {
        uint32_t stream = ctx->model->active[i];
        const struct model_op *head = model_head(ctx->model, stream);
        if (head->op == SIM_OP_HOST)
            model_client_done(
                ctx->model, stream,
                __atomic_load_n(&ctx->shm->streams[stream].host_done, __ATOMIC_ACQUIRE));
        else if (model_awaits_word(head->op) && head->t_submit <= ctx->card->model.t &&
                 word_holds(ctx, head))
            model_client_done(ctx->model, stream, head->seq);
    }
}

/* ---- results out ---- */

static void publish_event(struct gpu_ctx *ctx, const struct model_op *op, uint64_t t)
{
    struct sim_event_word *word = &ctx->shm->events[op->a];
    if (op->seq <= __atomic_load_n(&word->done_seq, __ATOMIC_RELAXED))
        return;
    __atomic_store_n(&word->done_ns, t, __ATOMIC_RELAXED);
    __atomic_store_n(&word->done_seq, op->seq, __ATOMIC_RELEASE);
    announce(&word->gen, &word->waiters);
}

static void write_word(struct gpu_ctx *ctx, const struct model_op *op)
{
    if (ctx->faulted)
        return;
    if (gpu_pin_gone(ctx->conn, op->a, op->t_submit)) { /* the card has no page there any more */
        ctx->faulted = ctx->card->faulted = true;
        /* before its end is known */
        __atomic_store_n(&ctx->shm->sticky, CUDA_ERROR_ILLEGAL_ADDRESS, __ATOMIC_SEQ_CST);
        return;
    }
    /* A process that is dying, or an address that went away: the write is lost. */
    gpu_word_write(ctx->conn, op->a, op->op == SIM_OP_WRITE64 ? 8 : 4, op->b);
}

/* A blocked launch goes on when a quarter of the queue is free: a wake-up per finished kernel would
 * cost more than it shows, and the queue never runs dry. */
static void count_finished(struct gpu_ctx *ctx)
{
    uint32_t depth = ctx->conn->gpu->config.depth, free_quarter = depth / 4 ? depth / 4 : 1;
    __atomic_store_n(&ctx->shm->finished, ++ctx->finished, __ATOMIC_SEQ_CST);
    if (ctx->tail - ctx->finished <= depth - free_quarter &&
        __atomic_load_n(&ctx->shm->space_waiters, __ATOMIC_SEQ_CST)) {
        ctx->card->published = true;
        announce(&ctx->shm->space_gen, &ctx->shm->space_waiters);
    }
}

static void hook_done(void *arg, struct model_ctx *model, const struct model_op *op, uint64_t t)
{
    struct gpu_card *card = arg;
    struct gpu_ctx *ctx = model->owner;
    struct sim_stream_word *stream = &ctx->shm->streams[op->stream];
    count_finished(ctx);
    if (!model_observable(op->op)) {
        __atomic_store_n(&stream->done_seq, op->seq, __ATOMIC_SEQ_CST);
        return;
    }
    card->published = true;
    if (op->op == SIM_OP_EVENT)
        publish_event(ctx, op, t);
    else if (op->op == SIM_OP_WRITE32 || op->op == SIM_OP_WRITE64)
        write_word(ctx, op);
    else if (op->op == SIM_OP_FREE)
        gpu_ctx_free(ctx, op->a);
    __atomic_store_n(&stream->done_seq, op->seq, __ATOMIC_SEQ_CST);
    announce(&stream->gen, &stream->waiters);
}

static void hook_piece(void *arg, struct model_ctx *model, const struct model_op *op, uint64_t t0,
                       uint64_t t1, uint32_t flags)
{
    struct gpu_card *card = arg;
    const struct gpu_ctx *ctx = model->owner;
    struct sim_trace_rec rec = {.t_start = t0,
                                .t_end = t1,
                                .t_submit = op->t_submit,
                                .pid = (uint32_t)ctx->conn->pid,
                                .card = card->index,
                                .ctx = ctx->id,
                                .stream = op->stream,
                                .kind = op->op,
                                .flags = flags,
                                .seq = op->seq,
                                .work = op->work};
    gpu_trace(card->gpu, &rec);
}

static struct model_ctx *hook_find(void *arg, uint32_t id)
{
    struct gpu_card *card = arg;
    struct gpu_ctx *ctx = gpu_ctx_find(card->gpu, id);
    return ctx ? ctx->model : NULL;
}

const struct model_hooks gpu_hooks = {hook_done, hook_piece, hook_find};
