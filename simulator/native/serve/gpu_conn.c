/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients of the device side: accepting them, and taking everything back when their process ends.
 * The end is the pidfd (a forked child may keep the socket open) or the end of the connection (exec
 * closes it), whatever is first.
 */
#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "serve.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static int open_pidfd(int sock, pid_t pid)
{
    int fd = -1;
    socklen_t len = sizeof fd;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &len) == 0)
        return fd;
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* The descriptor stays bound to the memory that the process has now: neither exec(2) of a setuid
 * program nor a recycled pid can direct later writes into another process. -1 when the process
 * changed its credentials since. */
static int open_memory(pid_t pid, uid_t uid)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/mem", (int)pid);
    int fd = open(name, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && !gpu_same_user(pid, uid)) {
        close(fd);
        return -1;
    }
    return fd;
}

static struct gpu_conn *make_conn(struct gpu *gpu, int sock)
{
    struct ucred cred;
    socklen_t len = sizeof cred;
    struct gpu_conn *conn = calloc(1, sizeof *conn);
    if (!conn || getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0 || cred.pid <= 0) {
        free(conn);
        return NULL;
    }
    conn->gpu = gpu;
    conn->sock = sock;
    conn->pid = cred.pid;
    conn->uid = cred.uid;
    conn->page_fd = conn->agent.sock = -1;
    conn->pidfd = open_pidfd(sock, cred.pid);
    conn->mem = open_memory(cred.pid, cred.uid);
    conn->watch = (struct gpu_watch){SRC_CONN, conn};
    conn->death = (struct gpu_watch){SRC_DEATH, conn};
    return conn;
}

static void close_conn(struct gpu_conn *conn)
{
    gpu_page_close(conn);
    gpu_unpin_all(conn);
    close(conn->sock);
    if (conn->pidfd >= 0)
        close(conn->pidfd);
    if (conn->mem >= 0)
        close(conn->mem);
}

void gpu_accept(struct gpu *gpu)
{
    int sock = accept4(gpu->listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (sock < 0)
        return;
    struct gpu_conn *conn = gpu->nconn < GPU_MAX_CONNS ? make_conn(gpu, sock) : NULL;
    if (!conn) {
        close(sock);
        return;
    }
    if (conn->pidfd < 0 || conn->mem < 0 ||
        !gpu_watch_fd(gpu, conn->pidfd, EPOLLIN, &conn->death) ||
        !gpu_watch_fd(gpu, sock, EPOLLIN | EPOLLRDHUP, &conn->watch)) {
        fprintf(stderr, "qgpu-simgpu: process %d was refused: it cannot be watched (%s)\n",
                (int)conn->pid, strerror(errno));
        close_conn(conn);
        free(conn);
        return;
    }
    conn->next = gpu->conns;
    gpu->conns = conn;
    gpu->nconn++;
}

/* The process is dead, but a slow driver ("linger"), or another process that holds its file of the
 * control device, keeps its memory allocated. Its work is lost; NVML lists it. */
static bool linger(struct gpu_conn *conn)
{
    struct pollfd left = {.fd = conn->pidfd, .events = POLLIN};
    if (conn->gpu->stop)
        return false;
    if (conn->lingers) {
        if (conn->linger_us && poll(&left, 1, 0) == 0)
            return true;
        if (conn->control && conn->linger_us)
            /* from now on its file decides */
            epoll_ctl(conn->gpu->epoll, EPOLL_CTL_DEL, conn->pidfd, NULL);
        conn->linger_us = 0;
        return conn->control != NULL;
    }
    if (conn->control)
        gpu_fuse_drain(&conn->gpu->rm->fuse); /* usually it went with the process */
    struct itimerspec due = {.it_value = {(time_t)(conn->linger_us / 1000000),
                                          (long)(conn->linger_us % 1000000) * 1000}};
    int timer = !conn->linger_us && !conn->control
                    ? -1
                    : timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (timer < 0)
        return false;
    for (struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next) {
        gpu_card_sync(ctx->card);
        gpu_ctx_poison(ctx, CUDA_ERROR_DEINITIALIZED);
    }
    epoll_ctl(conn->gpu->epoll, EPOLL_CTL_DEL, conn->sock, NULL);
    gpu_orders_forget(conn);
    gpu_unpin_all(conn);
    close(conn->pidfd); /* the last descriptor of it: epoll forgets it */
    conn->pidfd = timer;
    conn->lingers = true;
    timerfd_settime(timer, 0, &due, NULL);
    return gpu_watch_fd(conn->gpu, timer, EPOLLIN, &conn->death);
}

void gpu_conn_end(struct gpu_conn *conn, const char *why)
{
    struct gpu *gpu = conn->gpu;
    if (conn->gone || (!why && linger(conn)))
        return;
    conn->gone = true;
    gpu_orders_forget(conn);
    rm_forget(conn);
    if (why)
        fprintf(stderr, "qgpu-simgpu: process %d was thrown off the cards: %s\n", (int)conn->pid,
                why);
    for (struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
        /* the running kernel is cut now, not at the model's last step */
        gpu_card_sync(ctx->card);
    gpu_let_all_go(conn);
    while (conn->ctxs)
        gpu_ctx_destroy(conn->ctxs);
    while (conn->parked)
        gpu_ctx_destroy(conn->parked);
    struct gpu_conn **link = &gpu->conns;
    while (*link != conn)
        link = &(*link)->next;
    *link = conn->next;
    gpu->nconn--;
    close_conn(conn);
    conn->next = gpu->buried;
    gpu->buried = conn;
}

void gpu_bury(struct gpu *gpu)
{
    while (gpu->buried) {
        struct gpu_conn *next = gpu->buried->next;
        free(gpu->buried);
        gpu->buried = next;
    }
}

/* Ends one process that was dead, and whose file of the control device another one just closed. */
static bool end_one(struct gpu *gpu)
{
    for (struct gpu_conn *conn = gpu->conns; conn; conn = conn->next)
        if (conn->lingers && !conn->linger_us && !conn->control) {
            gpu_conn_end(conn, NULL);
            return true;
        }
    return false;
}

void gpu_drain_control(struct gpu *gpu)
{
    gpu_fuse_drain(&gpu->rm->fuse);
    while (end_one(gpu))
        ;
}

void gpu_reap_dead(struct gpu *gpu)
{
    gpu_drain_control(gpu);
    for (struct gpu_conn *conn = gpu->conns, *next; conn; conn = next) {
        struct pollfd fd = {.fd = conn->pidfd, .events = POLLIN};
        next = conn->next;
        if (poll(&fd, 1, 0) == 1)
            gpu_conn_end(conn, NULL);
    }
}

static bool has_text(uint32_t type)
{
    return type >= SIM_REQ_CONTROL && type <= SIM_REQ_LIMIT_GET;
}

static bool well_formed(const struct sim_text_req *message, ssize_t len)
{
    const struct sim_req *req = &message->req;
    if (len < (ssize_t)sizeof *req)
        return false;
    size_t size = has_text(req->type) ? sizeof *message : sizeof *req;
    return len == (ssize_t)size && req->magic == SIM_MAGIC && req->size == size &&
           (!has_text(req->type) || memchr(message->text, 0, sizeof message->text));
}

void gpu_conn_readable(struct gpu_conn *conn)
{
    static struct sim_text_req message; /* one thread */
    const struct sim_req *req = &message.req;
    ssize_t len = recv(conn->sock, &message, sizeof message, MSG_DONTWAIT | MSG_TRUNC);
    if (len < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (len <= 0)
        gpu_conn_end(conn, NULL);
    else if (!well_formed(&message, len))
        gpu_conn_end(conn, "it sent something that is not a request");
    else
        gpu_request(conn, req, has_text(req->type) ? message.text : "");
}
