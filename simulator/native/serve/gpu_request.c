/* SPDX-License-Identifier: Apache-2.0
 *
 * The synchronous requests of clients: identity of cards, contexts, memory, and what NVML reports.
 */
#include <cuda.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "serve.h"

/* Answers carry at most two descriptors. A client that does not read is thrown off, never waited
 * for. */
static void answer(struct gpu_conn *conn, void *message, uint32_t size, int status, const int *fds,
                   unsigned nfds)
{
    struct sim_rep *rep = message;
    if (conn->gone)
        return;
    char control[CMSG_SPACE(2 * sizeof(int))] = {0};
    struct iovec iov = {message, size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    rep->magic = SIM_MAGIC;
    rep->version = SIM_VERSION;
    rep->size = size;
    rep->status = status;
    if (nfds) {
        msg.msg_control = control;
        msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(head), fds, nfds * sizeof(int));
    }
    if (sendmsg(conn->sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)size)
        gpu_conn_end(conn, "it does not read its answers");
}

void gpu_answer_plain(struct gpu_conn *conn, int status, uint64_t a)
{
    struct sim_rep rep = {.a = a};
    answer(conn, &rep, sizeof rep, status, NULL, 0);
}

void gpu_answer_file(struct gpu_conn *conn, int fd)
{
    struct sim_rep rep = {0};
    answer(conn, &rep, sizeof rep, fd >= 0 ? CUDA_SUCCESS : SIM_ENOSYS, &fd, fd >= 0);
}

static void bind_groups(struct gpu_conn *conn, const struct sim_req *req)
{
    const uint32_t groups[MODEL_ENGINES] = {(uint32_t)req->b, (uint32_t)req->c, (uint32_t)req->d};
    struct gpu_ctx *ctx = gpu_ctx_find(conn->gpu, (uint32_t)req->a);
    bool ok =
        ctx && ctx->conn == conn && rm_bind(ctx, conn->control, (uint32_t)(req->a >> 32), groups);
    gpu_answer_plain(conn, ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, 0);
}

static void answer_hello(struct gpu_conn *conn)
{
    const struct gpu_config *config = &conn->gpu->config;
    struct sim_node node = {.ncards = config->cards,
                            .major = config->major,
                            .generation = config->generation,
                            .mig = config->mig};
    if (!gpu_page_open(conn)) {
        gpu_conn_end(conn, "there is no memory for its page");
        return;
    }
    snprintf(node.node, sizeof node.node, "%s", config->node);
    snprintf(node.driver, sizeof node.driver, "%s", config->driver);
    snprintf(node.dir, sizeof node.dir, "%s", config->dir);
    answer(conn, &node, sizeof node, CUDA_SUCCESS, &conn->page_fd, 1);
}

static void answer_card(struct gpu_conn *conn, struct gpu_card *card)
{
    struct sim_card_info info = {.index = card->index, .minor = card->minor};
    gpu_limit_room(conn, card, &info.mem_total, &info.mem_used);
    snprintf(info.uuid, sizeof info.uuid, "%s", card->uuid);
    snprintf(info.name, sizeof info.name, "%s", conn->gpu->config.model);
    snprintf(info.path, sizeof info.path, "%s", card->path);
    memcpy(info.links, conn->gpu->config.links[card->index], sizeof info.links);
    info.switch_links = conn->gpu->config.switch_links[card->index];
    answer(conn, &info, sizeof info, CUDA_SUCCESS, NULL, 0);
}

static void create_ctx(struct gpu_conn *conn, struct gpu_card *card)
{
    struct gpu *gpu = conn->gpu;
    int memfd;
    gpu_card_sync(card);
    bool room = gpu_has_room(conn, card, gpu->config.context_bytes);
    if (!room) { /* what a killed process held is free at once, as under a real kernel driver */
        gpu_reap_dead(gpu);
        if (conn->gone)
            return;
        room = gpu_has_room(conn, card, gpu->config.context_bytes);
    }
    if (!room || conn->nctx >= GPU_MAX_CTX_PROC || gpu->nctx >= GPU_MAX_CTX) {
        gpu_answer_plain(conn, CUDA_ERROR_OUT_OF_MEMORY, 0);
        return;
    }
    struct gpu_ctx *ctx = gpu_ctx_create(conn, card, &memfd);
    if (!ctx) {
        gpu_answer_plain(conn, CUDA_ERROR_OPERATING_SYSTEM, 0);
        return;
    }
    struct sim_rep rep = {.a = ctx->id};
    int fds[2] = {memfd, ctx->bell};
    answer(conn, &rep, sizeof rep, CUDA_SUCCESS, fds, 2);
    close(memfd);
}

static void list_procs(struct gpu_conn *asking, struct gpu_card *card)
{
    /* one thread serves all; what an answer does not use is not sent */
    static struct sim_procs procs;
    uint32_t n = 0;
    _Static_assert(GPU_MAX_CTX <= SIM_MAX_PROCS, "a list would be cut");
    gpu_reap_dead(card->gpu);
    if (asking->gone)
        return;
    gpu_card_sync(card);
    for (struct gpu_conn *conn = card->gpu->conns; conn; conn = conn->next) {
        struct sim_proc_info info = {.pid = (uint32_t)conn->pid,
                                     .listed = conn->listed,
                                     .busy_ns = gpu_conn_busy(conn, card),
                                     .mem = gpu_conn_memory(conn, card)};
        for (struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
            info.contexts += ctx->card == card;
        if (info.contexts)
            procs.procs[n++] = info;
    }
    procs.rep = (struct sim_rep){.a = n};
    answer(asking, &procs, (uint32_t)offsetof(struct sim_procs, procs[n]), CUDA_SUCCESS, NULL, 0);
}

static void answer_util(struct gpu_conn *asking, struct gpu_card *card)
{
    static struct sim_util util;
    struct timespec wall;
    uint32_t n = 0;
    gpu_card_sync(card);
    uint64_t now = card->model.t;
    clock_gettime(CLOCK_REALTIME, &wall);
    util.rep = (struct sim_rep){0};
    util.stamp_us = (uint64_t)wall.tv_sec * 1000000u + (uint64_t)wall.tv_nsec / 1000u;
    util.busy_ns = card->model.busy_ns[ENG_COMPUTE];
    util.copy_ns = card->model.busy_ns[ENG_HTOD] + card->model.busy_ns[ENG_DTOH];
    util.switches = card->model.switches;
    util.switch_ns = card->model.switch_ns;
    util.gpu_percent = gpu_percent(&card->samples, now, util.busy_ns);
    util.mem_percent = (uint32_t)(card->mem_used * 100 / card->mem_total);
    for (struct gpu_conn *conn = card->gpu->conns; conn; conn = conn->next)
        for (struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
            if (ctx->card == card) {
                util.procs[n].pid = (uint32_t)conn->pid;
                util.procs[n++].percent =
                    gpu_percent(&conn->samples[card->index], now, gpu_conn_busy(conn, card));
                break;
            }
    util.rep.a = n;
    answer(asking, &util, (uint32_t)offsetof(struct sim_util, procs[n]), CUDA_SUCCESS, NULL, 0);
}

static void destroy_ctx(struct gpu_conn *conn, struct gpu_ctx *ctx)
{
    gpu_card_sync(ctx->card);
    gpu_ctx_destroy(ctx);
    gpu_answer_plain(conn, CUDA_SUCCESS, 0);
}

static void alloc_request(struct gpu_conn *conn, struct gpu_ctx *ctx, uint64_t bytes)
{
    uint64_t id = 0;
    gpu_card_sync(ctx->card); /* asynchronous frees that are due count */
    int status = ctx->sticky ? ctx->sticky : gpu_ctx_alloc(ctx, bytes, &id);
    if (!ctx->sticky && status == CUDA_ERROR_OUT_OF_MEMORY) {
        gpu_reap_dead(conn->gpu);
        if (conn->gone)
            return;
        status = gpu_ctx_alloc(ctx, bytes, &id);
    }
    gpu_answer_plain(conn, status, id);
}

static void ctx_request(struct gpu_conn *conn, const struct sim_req *req)
{
    struct gpu_ctx *ctx = req->a <= UINT32_MAX ? gpu_ctx_find(conn->gpu, (uint32_t)req->a) : NULL;
    if (!ctx || ctx->conn != conn) {
        gpu_answer_plain(conn, CUDA_ERROR_INVALID_CONTEXT, 0);
    } else if (req->type == SIM_REQ_CTX_DESTROY) {
        destroy_ctx(conn, ctx);
    } else if (req->type == SIM_REQ_ALLOC) {
        alloc_request(conn, ctx, req->b);
    } else if (req->type == SIM_REQ_CTX_BYTES) {
        gpu_card_sync(ctx->card); /* asynchronous frees that are due count */
        gpu_answer_plain(conn, CUDA_SUCCESS, ctx->mem - conn->gpu->config.context_bytes);
    } else {
        gpu_answer_plain(conn, gpu_ctx_free(ctx, req->b), 0);
    }
}

static void pin_request(struct gpu_conn *conn, const struct sim_req *req)
{
    if (req->type == SIM_REQ_PIN)
        gpu_pin(conn, req->a, req->b);
    else
        gpu_unpin(conn, req->a);
    gpu_answer_plain(conn, CUDA_SUCCESS, 0);
}

static void hold_request(struct gpu_conn *conn, const struct sim_req *req)
{
    uint64_t id = 0;
    if (req->type == SIM_REQ_LET_GO)
        gpu_let_go(conn, req->a);
    else if (req->a <= UINT32_MAX)
        id = gpu_hold(conn, (uint32_t)req->a, req->b);
    gpu_answer_plain(conn, CUDA_SUCCESS, id);
}

static void agent_request(struct gpu_conn *conn, const struct sim_req *req)
{
    struct sim_rep rep = {0};
    int fd = -1, status = gpu_agent_open(conn, req->a, &fd);
    answer(conn, &rep, sizeof rep, status, &fd, fd >= 0);
    if (fd >= 0)
        close(fd);
}

static int unpark(struct gpu_conn *conn)
{
    int status = gpu_unpark_as_ordered(conn);
    if (status == CUDA_ERROR_OUT_OF_MEMORY) {
        gpu_reap_dead(conn->gpu);
        status = conn->gone ? status : gpu_unpark_as_ordered(conn);
    }
    return status;
}

/* The process leaves its cards, or comes back, as it was ordered to. Its file of the control device
 * is another one then, whoever may still have the old one. */
static void park_request(struct gpu_conn *conn, const struct sim_req *req)
{
    bool leaves = req->type == SIM_REQ_PARK;
    int status = CUDA_ERROR_ILLEGAL_STATE;
    if (gpu_is_ordered(conn, leaves ? SIM_ORDER_CHECKPOINT : SIM_ORDER_RESTORE))
        status = leaves ? gpu_park(conn) : unpark(conn);
    if (conn->gone)
        return;
    if (leaves && status == CUDA_SUCCESS)
        rm_forget(conn);
    gpu_answer_plain(conn, status, 0);
}

/* For events that processes share. A context that is not there runs nothing. */
static void reached_request(struct gpu_conn *conn, const struct sim_req *req)
{
    struct gpu_ctx *ctx = req->a <= UINT32_MAX ? gpu_ctx_find(conn->gpu, (uint32_t)req->a) : NULL;
    bool reached = !ctx || req->b >= SIM_STREAMS;
    if (!reached) {
        gpu_card_sync(ctx->card);
        reached = ctx->model->streams[req->b].done_seq >= req->c;
    }
    gpu_answer_plain(conn, CUDA_SUCCESS, reached);
}

/* Requests with a text. The control interface is for tests, memory limits are the driver's; both
 * are root's. */
static void text_request(struct gpu_conn *conn, const struct sim_req *req, const char *text)
{
    struct gpu *gpu = conn->gpu;
    struct sim_rep rep = {0};
    int status = SIM_EPERM;
    bool root = conn->uid == 0 || conn->uid == geteuid();
    if (req->type == SIM_REQ_CONTROL)
        status = root ? gpu_fault_command(gpu, text, &rep.a, false) : SIM_EPERM;
    else if (gpu->config.generation < 615)
        status = SIM_ENOSYS;
    else if (req->type == SIM_REQ_LIMIT_GET)
        status = gpu_limit_get(gpu, req, text, &rep);
    else if (root)
        status = gpu_limit_set(gpu, req, text);
    if (!conn->gone)
        answer(conn, &rep, sizeof rep, status, NULL, 0);
}

void gpu_request(struct gpu_conn *conn, const struct sim_req *req, const char *text)
{
    struct gpu *gpu = conn->gpu;
    if (req->version != SIM_VERSION && req->type != SIM_REQ_HELLO) {
        gpu_conn_end(conn, "it speaks another version of the protocol");
        return;
    }
    if (req->type == SIM_REQ_HELLO) {
        answer_hello(conn);
        return;
    }
    if (req->type >= SIM_REQ_CONTROL && req->type <= SIM_REQ_LIMIT_GET) {
        text_request(conn, req, text);
        return;
    }
    if (req->type == SIM_REQ_CTX_DESTROY || req->type == SIM_REQ_ALLOC ||
        req->type == SIM_REQ_FREE || req->type == SIM_REQ_CTX_BYTES) {
        ctx_request(conn, req);
        return;
    }
    if (req->type == SIM_REQ_CHECKPOINT) {
        gpu_order_request(conn, req);
        return;
    }
    if (req->type == SIM_REQ_AGENT) {
        agent_request(conn, req);
        return;
    }
    if (req->type == SIM_REQ_PARK || req->type == SIM_REQ_UNPARK) {
        park_request(conn, req);
        return;
    }
    if (req->type == SIM_REQ_CONTROL_FILE) {
        rm_request_file(conn);
        return;
    }
    if (req->type == SIM_REQ_CTX_GROUPS) {
        bind_groups(conn, req);
        return;
    }
    if (req->type == SIM_REQ_PIN || req->type == SIM_REQ_UNPIN) {
        pin_request(conn, req);
        return;
    }
    if (req->type == SIM_REQ_REACHED) {
        reached_request(conn, req);
        return;
    }
    if (req->type == SIM_REQ_HOLD || req->type == SIM_REQ_LET_GO) {
        hold_request(conn, req);
        return;
    }
    if (req->a >= gpu->config.cards) {
        gpu_answer_plain(conn, CUDA_ERROR_INVALID_DEVICE, 0);
        return;
    }
    struct gpu_card *card = &gpu->cards[req->a];
    switch (req->type) {
    case SIM_REQ_CARD:
        answer_card(conn, card);
        break;
    case SIM_REQ_CTX_CREATE:
        create_ctx(conn, card);
        break;
    case SIM_REQ_PROCS:
        list_procs(conn, card);
        break;
    case SIM_REQ_UTIL:
        answer_util(conn, card);
        break;
    default:
        gpu_conn_end(conn, "it sent an unknown request");
    }
}
