/* SPDX-License-Identifier: Apache-2.0
 *
 * qgpu-simgpu: command line, the loop, and going to sleep without missing a doorbell.
 */
#include <errno.h>
#include <getopt.h>
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

#include "gpu.h"

static const char usage[] =
    "usage: qgpu-simgpu --dir DIR --node NAME [options]\n"
    "Models the NVIDIA cards of one node for the simulated libcuda.so.1 and libnvidia-ml.so.1 "
    "(QGPU_SIM_DIR=DIR).\n"
    "  --cards N          number of cards, 1 to 16 (1)\n"
    "  --model NAME       name of the cards (NVIDIA H200)\n"
    "  --memory MIB       memory of each card (81920)\n"
    "  --context-mib MIB  what each context takes of it (300)\n"
    "  --major M          major of the device nodes, 240 to 254 (245; another one if a driver has "
    "it)\n"
    "  --minor-base K     minor of the first card (0)\n"
    "  --slice-us F       time slice between contexts (1000)\n"
    "  --run-to-end       a kernel is never stopped in the middle; the next context waits for its "
    "end\n"
    "  --switch-us F      cost of a change of context (50)\n"
    "  --launch-us F      from a launch to its start, and between two starts of a context (3)\n"
    "  --queue-depth N    commands of a context in flight at which a launch blocks, 1 to 4096 "
    "(1024)\n"
    "  --ns-per-iter F    duration of one iteration of qgpu_work (1.0)\n"
    "  --unknown-us F     duration of any other kernel (10)\n"
    "  --kernel-cost FILE lines of a name pattern and a duration, as 'gemm_* 40us+0.2us/block', "
    "perhaps 'stop=5us', what a\n"
    "                     block takes (--preempt cta); the first match counts\n"
    "  --copy-gbs F       host to card and back, GB/s (50)\n"
    "  --memory-gbs F     within the card, GB/s (2000)\n"
    "  --driver-generation N  580, or 615: with memory limits of cgroups (580)\n"
    "  --driver-version V  what NVML and the control device say (580.00.qgpusim or "
    "615.00.qgpusim)\n"
    "  --preempt MODE     cilp: a kernel is stopped anywhere; cta: between its blocks; wfi: at its "
    "end (cilp)\n"
    "  --preempt-us F     with cilp, from the order to stop to the end of a kernel's progress "
    "(100)\n"
    "  --block-us F       with cta, how long a block takes; 0: as long as its kernel (0)\n"
    "  --control-us F     what a command of the control device takes that the card executes (0)\n"
    "  --client-per-context  libcuda makes a client and device objects for each context, not for "
    "the process\n"
    "  --mig N            the cards are MIG instances, each N of them of one card\n"
    "  --control-log FILE one line per call of the control device\n"
    "  --fault COMMAND    as through sim.sock, for processes to come: 'delay call=cuMemAlloc "
    "us=50000'; may be repeated\n"
    "  --stall-ms F, --stall-each-ms F  all cards stand still for so long, about so often, from "
    "100 ms (never)\n"
    "  --no-trace         do not write DIR/trace.bin\n"
    "  --priority N       of SCHED_FIFO, 0: do not ask for it (60)\n"
    "  --ready-fd N       write READY there and close it when clients may connect\n";

uint64_t gpu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool gpu_watch_fd(struct gpu *gpu, int fd, uint32_t events, struct gpu_watch *watch)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    return epoll_ctl(gpu->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* ---- command line ---- */

static void refuse(const char *option, const char *text, double low, double high)
{
    fprintf(stderr, "qgpu-simgpu: --%s %s: a number from %g to %g is needed\n", option, text, low,
            high);
    exit(2);
}

static double number(const char *option, const char *text, double low, double high)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno || end == text || *end || !(value >= low && value <= high))
        refuse(option, text, low, high);
    return value;
}

static unsigned whole(const char *option, const char *text, unsigned low, unsigned high)
{
    double value = number(option, text, low, high);
    if (value != (unsigned)value)
        refuse(option, text, low, high);
    return (unsigned)value;
}

enum option_id {
    O_DIR = 1,
    O_NODE,
    O_CARDS,
    O_MODEL,
    O_MEMORY,
    O_CONTEXT,
    O_MAJOR,
    O_MINOR,
    O_SLICE,
    O_SWITCH,
    O_ITER,
    O_UNKNOWN,
    O_COPY,
    O_MEMGBS,
    O_TRACE,
    O_NO_TRACE,
    O_PRIORITY,
    O_READY,
    O_HELP,
    O_END,
    O_LAUNCH,
    O_DEPTH,
    O_COST,
    O_GENERATION,
    O_FAULT,
    O_STALL,
    O_STALL_EACH,
    O_DRIVER,
    O_PREEMPT,
    O_PREEMPT_US,
    O_BLOCK,
    O_CONTROL,
    O_CONTROL_LOG,
    O_CLIENTS,
    O_MIG,
    O_VERSION
};

static const struct option options[] = {{"dir", 1, NULL, O_DIR},
                                        {"node", 1, NULL, O_NODE},
                                        {"cards", 1, NULL, O_CARDS},
                                        {"model", 1, NULL, O_MODEL},
                                        {"memory", 1, NULL, O_MEMORY},
                                        {"context-mib", 1, NULL, O_CONTEXT},
                                        {"major", 1, NULL, O_MAJOR},
                                        {"minor-base", 1, NULL, O_MINOR},
                                        {"slice-us", 1, NULL, O_SLICE},
                                        {"switch-us", 1, NULL, O_SWITCH},
                                        {"ns-per-iter", 1, NULL, O_ITER},
                                        {"unknown-us", 1, NULL, O_UNKNOWN},
                                        {"copy-gbs", 1, NULL, O_COPY},
                                        {"memory-gbs", 1, NULL, O_MEMGBS},
                                        {"trace", 0, NULL, O_TRACE},
                                        {"no-trace", 0, NULL, O_NO_TRACE},
                                        {"run-to-end", 0, NULL, O_END},
                                        {"launch-us", 1, NULL, O_LAUNCH},
                                        {"queue-depth", 1, NULL, O_DEPTH},
                                        {"kernel-cost", 1, NULL, O_COST},
                                        {"driver-generation", 1, NULL, O_GENERATION},
                                        {"fault", 1, NULL, O_FAULT},
                                        {"stall-ms", 1, NULL, O_STALL},
                                        {"stall-each-ms", 1, NULL, O_STALL_EACH},
                                        {"driver-version", 1, NULL, O_DRIVER},
                                        {"preempt", 1, NULL, O_PREEMPT},
                                        {"preempt-us", 1, NULL, O_PREEMPT_US},
                                        {"block-us", 1, NULL, O_BLOCK},
                                        {"control-us", 1, NULL, O_CONTROL},
                                        {"control-log", 1, NULL, O_CONTROL_LOG},
                                        {"client-per-context", 0, NULL, O_CLIENTS},
                                        {"mig", 1, NULL, O_MIG},
                                        {"priority", 1, NULL, O_PRIORITY},
                                        {"ready-fd", 1, NULL, O_READY},
                                        {"help", 0, NULL, O_HELP},
                                        {"version", 0, NULL, O_VERSION},
                                        {NULL, 0, NULL, 0}};

static void command(struct gpu *gpu, const char *text)
{
    uint64_t reached;
    if (gpu_control(gpu, text, &reached, true) != 0)
        exit(2);
}

static unsigned generation(const char *name, const char *arg)
{
    unsigned value = whole(name, arg, 580, 615);
    if (value != 580 && value != 615)
        refuse(name, arg, 580, 615);
    return value;
}

static enum model_preempt preemption(const char *arg)
{
    static const char *const modes[] = {
        [PREEMPT_AT_END] = "wfi", [PREEMPT_BLOCK] = "cta", [PREEMPT_ANYWHERE] = "cilp"};
    for (unsigned i = PREEMPT_AT_END; i <= PREEMPT_ANYWHERE; i++)
        if (strcmp(arg, modes[i]) == 0)
            return i;
    fprintf(stderr, "qgpu-simgpu: --preempt %s: cilp, cta or wfi is needed\n", arg);
    exit(2);
}

static void set_option(struct gpu *gpu, int option, const char *name, const char *arg)
{
    struct gpu_config *config = &gpu->config;
    switch (option) {
    case O_END:
        config->params.run_to_end = true;
        break;
    case O_LAUNCH:
        config->params.launch_ns = (uint64_t)(number(name, arg, 0, 1e4) * 1e3);
        break;
    case O_DEPTH:
        config->depth = whole(name, arg, 1, SIM_RING);
        break;
    case O_COST:
        if (!gpu_cost_read(&gpu->page, arg))
            exit(2);
        break;
    case O_GENERATION:
        config->generation = generation(name, arg);
        break;
    case O_DRIVER:
        config->driver = arg;
        break;
    case O_PREEMPT:
        config->params.preempt = preemption(arg);
        break;
    case O_PREEMPT_US:
        config->params.preempt_ns = (uint64_t)(number(name, arg, 0, 1e6) * 1e3);
        break;
    case O_BLOCK:
        config->params.block_ns = (uint64_t)(number(name, arg, 0, 1e9) * 1e3);
        break;
    case O_CONTROL:
        config->control_ns = (uint64_t)(number(name, arg, 0, 1e6) * 1e3);
        break;
    case O_MIG:
        config->mig = whole(name, arg, 1, SIM_MIG_MOST);
        break;
    case O_CLIENTS:
        gpu->page.options |= SIM_OPTION_CLIENT_PER_CONTEXT;
        break;
    case O_CONTROL_LOG:
        if (!rm_log_open(&gpu->rm, arg))
            exit(2);
        break;
    case O_STALL:
        config->stall_ns = (uint64_t)(number(name, arg, 0, 1e5) * 1e6);
        break;
    case O_STALL_EACH:
        config->stall_each_ns = (uint64_t)(number(name, arg, 100, 1e7) * 1e6);
        break;
    case O_FAULT:
        command(gpu, arg);
        break;
    case O_DIR:
        config->dir = arg;
        break;
    case O_NODE:
        config->node = arg;
        break;
    case O_CARDS:
        config->cards = whole(name, arg, 1, SIM_MAX_CARDS);
        break;
    case O_MODEL:
        config->model = arg;
        break;
    case O_MEMORY:
        config->memory = (uint64_t)whole(name, arg, 1, 1u << 24) << 20;
        break;
    case O_CONTEXT:
        config->context_bytes = (uint64_t)whole(name, arg, 0, 1u << 20) << 20;
        break;
    case O_MAJOR:
        config->major = whole(name, arg, 240, 254);
        break;
    case O_MINOR:
        config->minor_base = whole(name, arg, 0, 1u << 19);
        break;
    case O_SLICE:
        config->params.slice_ns = (uint64_t)(number(name, arg, 1, 1e7) * 1e3);
        break;
    case O_SWITCH:
        config->params.switch_ns = (uint64_t)(number(name, arg, 0, 1e5) * 1e3);
        break;
    case O_ITER:
        config->ns_per_iter = number(name, arg, 1e-3, 1e6);
        break;
    case O_UNKNOWN:
        config->unknown_us = number(name, arg, 1e-3, 1e7);
        break;
    case O_COPY:
        config->copy_gbs = number(name, arg, 1e-3, 1e5);
        break;
    case O_MEMGBS:
        config->memory_gbs = number(name, arg, 1e-3, 1e5);
        break;
    case O_TRACE:
        config->trace = true;
        break;
    case O_NO_TRACE:
        config->trace = false;
        break;
    case O_PRIORITY:
        config->priority = whole(name, arg, 0, 99);
        break;
    case O_READY:
        config->ready_fd = whole(name, arg, 0, 1u << 20);
        config->has_ready_fd = true;
        break;
    case O_HELP:
        fputs(usage, stdout);
        exit(0);
    case O_VERSION:
        puts("qgpu-simgpu " QG_VERSION);
        exit(0);
    default:
        fputs(usage, stderr);
        exit(2);
    }
}

static void parse(struct gpu *gpu, int argc, char **argv)
{
    struct gpu_config *config = &gpu->config;
    int option, index = 0;
    gpu->rm.log = -1;
    *config = (struct gpu_config){
        .model = "NVIDIA H200",
        .cards = 1,
        .major = 245,
        .memory = 81920ull << 20,
        .context_bytes = 300ull << 20,
        .ns_per_iter = 1.0,
        .unknown_us = 10,
        .copy_gbs = 50,
        .memory_gbs = 2000,
        .trace = true,
        .priority = 60,
        .depth = 1024,
        .generation = 580,
        .params = {
            .slice_ns = 1000000, .switch_ns = 50000, .launch_ns = 3000, .preempt_ns = 100000}};
    while ((option = getopt_long(argc, argv, "", options, &index)) != -1)
        set_option(gpu, option, options[index].name, optarg);
    if (!config->driver)
        config->driver = config->generation < 615 ? "580.00.qgpusim" : "615.00.qgpusim";
    if (!config->dir || config->dir[0] != '/' || !config->node || !*config->node ||
        optind != argc) {
        fputs("qgpu-simgpu: --dir (an absolute path) and --node are needed, and nothing but "
              "options\n",
              stderr);
        fputs(usage, stderr);
        exit(2);
    }
    if (strlen(config->node) > 31 || strlen(config->model) > 95 || strlen(config->dir) > 150 ||
        strlen(config->driver) > 63) {
        fputs("qgpu-simgpu: too long: at most 31 characters for --node, 95 for --model, 150 for "
              "--dir, 63 for --driver-version\n",
              stderr);
        exit(2);
    }
    if (config->mig && config->cards % config->mig) {
        fputs("qgpu-simgpu: --cards must be a multiple of --mig\n", stderr);
        exit(2);
    }
    if (config->context_bytes >= config->memory) {
        fputs("qgpu-simgpu: --context-mib must be smaller than --memory\n", stderr);
        exit(2);
    }
}

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

/* Ten times a second while anybody has a context: samples, and the trace reaches the file. */
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

/* Asks for doorbells, then looks once more: a command that came before the request rang nothing. */
static bool ask_for_bells(struct gpu *gpu)
{
    bool seen = false;
    for (struct gpu_conn *conn = gpu->conns; conn; conn = conn->next)
        for (struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
            if (!__atomic_exchange_n(&ctx->shm->need_bell, 1, __ATOMIC_SEQ_CST) && !ctx->hostile)
                seen |= gpu_ctx_drain(ctx, gpu_now());
    return seen;
}

static void settle(struct gpu *gpu)
{
    uint64_t next = MODEL_NEVER;
    bool again = true;
    /* Bounded: a client that never stops submitting must not keep the others from being heard. */
    for (int tries = 0; again && tries < 3; tries++) {
        for (unsigned i = 0; i < gpu->config.cards; i++)
            if (gpu->cards[i].model.ctxs)
                gpu_card_sync(&gpu->cards[i]);
        throw_out_hostile(gpu);
        again = ask_for_bells(gpu);
    }
    rm_settle(gpu, gpu_now());
    uint64_t now = gpu_now(), due = rm_next(gpu);
    next = due < next ? due : next;
    for (unsigned i = 0; i < gpu->config.cards; i++)
        if (gpu->cards[i].model.ctxs) {
            uint64_t at = gpu_card_next(&gpu->cards[i], now);
            next = at < next ? at : next;
        }
    arm(gpu, again ? now : next);
    set_ticking(gpu, gpu->nctx > 0);
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
        rm_drain(gpu);
        break;
    case SRC_OPENER:
        gpu_fuse_handed(&gpu->rm.fuse);
        break;
    case SRC_BELL: /* settle() looks at every ring */
        break;
    }
}

static void loop(struct gpu *gpu)
{
    struct epoll_event events[64];
    while (!gpu->stop) {
        settle(gpu);
        int n = epoll_wait(gpu->epoll, events, 64, -1);
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
    parse(&gpu, argc, argv);
    umask(022);
    if (!gpu_node_open(&gpu) || !open_sources(&gpu)) {
        gpu_node_close(&gpu);
        return 1;
    }
    become_hardware(&gpu);
    if (!rm_open(&gpu) || !gpu_node_tell_control(&gpu)) {
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
