/* SPDX-License-Identifier: Apache-2.0
 *
 * qgpu-simgpu: start, the loop, and going to sleep without missing a doorbell.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "serve.h"

/* ---- loop ---- */

static void arm(struct gpu *gpu, uint64_t at)
{
    struct itimerspec spec = {0};
    if (at == gpu->armed_ns)
        return;
    gpu->armed_ns = at;
    if (at != MODEL_NEVER) {
        spec.it_value.tv_sec = (time_t)(at / 1000000000u);
        spec.it_value.tv_nsec = (long)(at % 1000000000u);
    }
    timerfd_settime(gpu->timer, TFD_TIMER_ABSTIME, &spec, NULL);
}

/* Ten times a second while there is a context: takes samples, writes the trace. */
static void set_ticking(struct gpu *gpu, bool ticking)
{
    struct itimerspec spec = {0};
    if (gpu->ticking == ticking)
        return;
    gpu->ticking = ticking;
    spec.it_value.tv_nsec = spec.it_interval.tv_nsec = ticking ? (long)GPU_TICK_NS : 0;
    timerfd_settime(gpu->tick, 0, &spec, NULL);
    if (!ticking)
        gpu_trace_flush(gpu);
}

static void stall(struct gpu *gpu)
{
    uint64_t now = gpu_now();
    if (!gpu->config.stall_ns || !gpu->config.stall_each_ns || now < gpu->next_stall)
        return;
    for (unsigned i = 0; i < gpu->config.cards && gpu->next_stall; i++)
        model_stall(&gpu->cards[i].model, gpu->config.stall_ns);
    gpu->next_stall = now + gpu->config.stall_each_ns;
}

static void tick(struct gpu *gpu)
{
    uint64_t ignored;
    if (read(gpu->tick, &ignored, sizeof ignored) < 0)
        return;
    for (unsigned i = 0; i < gpu->config.cards; i++) {
        gpu_card_sync(&gpu->cards[i]);
        gpu_card_sample(&gpu->cards[i], gpu->cards[i].model.t);
    }
    uint64_t now = gpu_now();
    for (struct gpu_conn *conn = gpu->conns; conn; conn = conn->next)
        for (unsigned i = 0; i < gpu->config.cards && conn->ctxs; i++)
            gpu_sample(&conn->samples[i], now, gpu_conn_busy(conn, &gpu->cards[i]));
    stall(gpu);
    gpu_trace_flush(gpu);
}

static void throw_out_hostile(struct gpu *gpu)
{
    for (struct gpu_conn *conn = gpu->conns, *next; conn; conn = next) {
        bool hostile = false;
        next = conn->next;
        for (struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
            hostile |= ctx->hostile;
        if (hostile)
            gpu_conn_end(conn, "its command ring holds garbage");
    }
}

/* Asks for doorbells, then reads the rings again: a command before the request rang none. */
static bool ask_for_bells(struct gpu *gpu)
{
    bool seen = false;
    for (struct gpu_conn *conn = gpu->conns; conn; conn = conn->next)
        for (struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
            if (!__atomic_exchange_n(&ctx->shm->need_bell, 1, __ATOMIC_SEQ_CST) && !ctx->hostile)
                seen |= gpu_ctx_drain(ctx, gpu_now());
    return seen;
}

static void read_rings(struct gpu *gpu)
{
    for (unsigned i = 0; i < gpu->config.cards; i++)
        if (gpu->cards[i].model.ctxs)
            gpu_card_sync(&gpu->cards[i]);
    throw_out_hostile(gpu);
}

/* True: a command came a short time ago, and the next one is not slept for (--poll-us). Whoever
 * submits it then needs no doorbell, as with a card. */
static bool polling(const struct gpu *gpu)
{
    return gpu->config.poll_ns && gpu_now() < gpu->taken_ns + gpu->config.poll_ns;
}

/* Does all that is due. True: it must not sleep after that. */
static bool settle(struct gpu *gpu)
{
    uint64_t next = MODEL_NEVER;
    bool again = true;
    /* Bounded: a client that never stops submitting must not starve the others. */
    for (int tries = 0; again && tries < 3; tries++) {
        read_rings(gpu);
        if (polling(gpu)) {
            rm_settle(gpu, gpu_now());
            gpu_orders_settle(gpu, gpu_now());
            set_ticking(gpu, gpu->nctx > 0);
            return true;
        }
        again = ask_for_bells(gpu);
    }
    rm_settle(gpu, gpu_now());
    gpu_orders_settle(gpu, gpu_now());
    uint64_t now = gpu_now(), due = rm_next(gpu), late = gpu_orders_next(gpu);
    next = due < next ? due : next;
    next = late < next ? late : next;
    for (unsigned i = 0; i < gpu->config.cards; i++)
        if (gpu->cards[i].model.ctxs) {
            uint64_t at = gpu_card_next(&gpu->cards[i], now);
            next = at < next ? at : next;
        }
    arm(gpu, again ? now : next);
    set_ticking(gpu, gpu->nctx > 0);
    return false;
}

static void handle(struct gpu *gpu, const struct gpu_watch *watch)
{
    uint64_t ignored;
    switch (watch->source) {
    case SRC_LISTEN:
        gpu_accept(gpu);
        break;
    case SRC_TIMER:
        if (read(gpu->timer, &ignored, sizeof ignored) > 0)
            gpu->armed_ns = MODEL_NEVER;
        break;
    case SRC_TICK:
        tick(gpu);
        break;
    case SRC_SIGNAL:
        gpu->stop = true;
        break;
    case SRC_CONN:
        if (!((struct gpu_conn *)watch->object)->gone)
            gpu_conn_readable(watch->object);
        break;
    case SRC_DEATH:
        gpu_conn_end(watch->object, NULL);
        break;
    case SRC_CONTROL:
        gpu_drain_control(gpu);
        break;
    case SRC_OPENER:
        gpu_fuse_handed(&gpu->rm->fuse);
        break;
    case SRC_AGENT:
        if (((struct gpu_conn *)watch->object)->agent.sock >= 0)
            gpu_agent_readable(watch->object);
        break;
    case SRC_BELL: /* settle() reads every ring */
        break;
    }
}

static void loop(struct gpu *gpu)
{
    struct epoll_event events[64];
    while (!gpu->stop) {
        int n = epoll_wait(gpu->epoll, events, 64, settle(gpu) ? 0 : -1);
        for (int i = 0; i < n; i++)
            handle(gpu, events[i].data.ptr);
        gpu_bury(gpu);
    }
}

/* ---- start ---- */

static bool open_sources(struct gpu *gpu)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    gpu->epoll = epoll_create1(EPOLL_CLOEXEC);
    gpu->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    gpu->tick = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    gpu->signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    gpu->armed_ns = MODEL_NEVER;
    gpu->listen_watch.source = SRC_LISTEN;
    gpu->timer_watch.source = SRC_TIMER;
    gpu->tick_watch.source = SRC_TICK;
    gpu->signal_watch.source = SRC_SIGNAL;
    gpu->bell_watch.source = SRC_BELL;
    return gpu->epoll >= 0 && gpu->timer >= 0 && gpu->tick >= 0 && gpu->signals >= 0 &&
           gpu_watch_fd(gpu, gpu->listen, EPOLLIN, &gpu->listen_watch) &&
           gpu_watch_fd(gpu, gpu->timer, EPOLLIN, &gpu->timer_watch) &&
           gpu_watch_fd(gpu, gpu->tick, EPOLLIN, &gpu->tick_watch) &&
           gpu_watch_fd(gpu, gpu->signals, EPOLLIN, &gpu->signal_watch);
}

/* A card does not wait for the CPU's scheduler. Late wake-ups would not change the model, only its
 * clients' latency. */
static void become_hardware(struct gpu *gpu)
{
    struct rlimit files = {65536, 65536};
    struct sched_param param = {.sched_priority = (int)gpu->config.priority};
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_TIMERSLACK, 1);
    mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
    gpu->config.realtime = gpu->config.priority &&
                           sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &param) == 0;
}

/* sd_notify(3) in its documented protocol, without its library. */
static void notify_ready(void)
{
    static const char ready[] = "READY=1\n";
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = path ? strlen(path) : 0;
    if (length < 2 || length >= sizeof address.sun_path || !strchr("/@", path[0]))
        return;
    memcpy(address.sun_path, path, length);
    if (path[0] == '@')
        address.sun_path[0] = 0;
    int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    if (sock >= 0 &&
        sendto(sock, ready, sizeof ready - 1, MSG_NOSIGNAL, (struct sockaddr *)&address, size) < 0)
        perror("qgpu-simgpu: NOTIFY_SOCKET");
    if (sock >= 0)
        close(sock);
}

static void say_ready(const struct gpu *gpu)
{
    notify_ready();
    printf(
        "qgpu-simgpu: %u x %s (simulated), %llu MiB, major %u, minors from %u, policy %s, in %s\n",
        gpu->config.cards, gpu->config.model, (unsigned long long)(gpu->config.memory >> 20),
        gpu->config.major, gpu->config.minor_base, gpu->config.realtime ? "SCHED_FIFO" : "default",
        gpu->config.dir);
    fflush(stdout);
    if (gpu->config.has_ready_fd) {
        if (write((int)gpu->config.ready_fd, "READY\n", 6) != 6)
            fprintf(stderr, "qgpu-simgpu: --ready-fd %u cannot be written: %s\n",
                    gpu->config.ready_fd, strerror(errno));
        close((int)gpu->config.ready_fd);
    }
}

int main(int argc, char **argv)
{
    static struct gpu gpu;
    static struct rm rm;
    gpu.rm = &rm;
    gpu_parse(&gpu, argc, argv);
    umask(022);
    if (!gpu_node_open(&gpu) || !open_sources(&gpu)) {
        gpu_node_close(&gpu);
        return 1;
    }
    become_hardware(&gpu);
    if (!rm_open(&gpu, gpu_answer_file) || !gpu_node_tell_control(&gpu)) {
        gpu_node_close(&gpu);
        return 1;
    }
    say_ready(&gpu);
    loop(&gpu);
    while (gpu.conns)
        gpu_conn_end(gpu.conns, NULL);
    gpu_bury(&gpu);
    gpu_node_close(&gpu);
    return 0;
}
