/* SPDX-License-Identifier: Apache-2.0
 *
 * qgpu-arbiter decides which tenants may launch now, on every card of this node. Here are its
 * options, its start, its loop and its end.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/base.h"
#include "card/card.h"
#include "fds/fds.h"
#include "gate/gate.h"
#include "hw/hw.h"
#include "model/model.h"
#include "serve/serve.h"
#include "tenant/tenant.h"
#include "qg_time.h"

static struct key key_register = {KEY_REGISTER}, key_control = {KEY_CONTROL},
                  key_signal = {KEY_SIGNAL};

struct options {
    const char *trace;
    int ready_fd;
};

static void usage(FILE *out)
{
    fputs(
        "usage: qgpu-arbiter --run-dir DIR [--trace FILE] [--log-level error|warning|info|debug]\n"
        "                    [--no-rt] [--rt-priority 1..99] [--ready-fd N] [--answer-ms N]\n"
        "                    [--hang-s N] [--job-memory file|array]\n"
        "       qgpu-arbiter --version\n",
        out);
}

static int level_of(const char *word)
{
    static const char *const words[] = {"error", "warning", "info", "debug"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(word, words[i]) == 0)
            return i;
    }
    return -1;
}

static bool number(const char *text, int low, int high, int *out)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (!*text || *end || v < low || v > high)
        return false;
    *out = (int)v;
    return true;
}

static bool parse(struct arbiter *a, struct options *o, int argc, char **argv)
{
    static const struct option longs[] = {
        {"run-dir", 1, NULL, 'd'},    {"trace", 1, NULL, 't'},     {"log-level", 1, NULL, 'l'},
        {"no-rt", 0, NULL, 'n'},      {"ready-fd", 1, NULL, 'r'},  {"rt-priority", 1, NULL, 'p'},
        {"help", 0, NULL, 'h'},       {"answer-ms", 1, NULL, 'a'}, {"hang-s", 1, NULL, 's'},
        {"job-memory", 1, NULL, 'm'}, {"version", 0, NULL, 'v'},   {NULL, 0, NULL, 0}};
    int c;
    /* One minute each: a restart of qgpud takes seconds, and few kernels run for so long. Chosen,
     * not measured; both are options. */
    a->answer_ms = 60000;
    a->hang_s = 60;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        bool ok = true;
        switch (c) {
        case 'd':
            a->run_dir = optarg;
            break;
        case 't':
            o->trace = optarg;
            break;
        case 'l':
            ok = (a->level = level_of(optarg)) >= 0;
            break;
        case 'n':
            a->rt_priority = 0;
            break;
        case 'r':
            ok = number(optarg, 3, 1 << 20, &o->ready_fd);
            break;
        case 'p':
            ok = number(optarg, 1, 99, &a->rt_priority);
            break;
        case 'm':
            a->job_array = strcmp(optarg, "array") == 0;
            ok = a->job_array || strcmp(optarg, "file") == 0;
            break;
        case 's':
            ok = number(optarg, 2, 86400, &a->hang_s);
            break;
        case 'a':
            ok = number(optarg, 1, 3600000, &a->answer_ms);
            break;
        case 'h':
            usage(stdout);
            exit(0);
        case 'v':
            puts("qgpu-arbiter " QG_VERSION);
            exit(0);
        default:
            return false;
        }
        if (!ok) {
            fprintf(stderr, "qgpu-arbiter: '%s' is not a valid value here\n", optarg);
            return false;
        }
    }
    return a->run_dir && optind == argc;
}

/* Opens and locks run_dir. A user who could write into it could pretend to be the arbiter. */
static bool open_run_dir(struct arbiter *a)
{
    struct stat st;
    if (mkdir(a->run_dir, 0755) != 0 && errno != EEXIST) {
        ar_log(a, 0, "cannot create %s: %s", a->run_dir, strerror(errno));
        return false;
    }
    int dir = open(a->run_dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 || fstat(dir, &st) != 0 || (st.st_uid != 0 && st.st_uid != a->owner) ||
        (st.st_mode & 022)) {
        ar_log(a, 0, "%s must be a directory that belongs to root and that no other user can write",
               a->run_dir);
        if (dir >= 0)
            close(dir);
        return false;
    }
    a->lock_fd = openat(dir, "arbiter.lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    close(dir);
    if (a->lock_fd >= 0 && flock(a->lock_fd, LOCK_EX | LOCK_NB) == 0)
        return true;
    ar_log(a, 0, "another qgpu-arbiter serves %s", a->run_dir);
    return false;
}

static bool open_sockets(struct arbiter *a)
{
    a->register_fd = listen_open(a, QG_SOCK_REGISTER, 0666);
    a->control_fd = listen_open(a, QG_SOCK_CONTROL, 0600);
    int err = a->register_fd < 0 ? a->register_fd : a->control_fd;
    if (err < 0)
        ar_log(a, 0, "cannot listen in %s: %s", a->run_dir, strerror(-err));
    return err >= 0 && !ar_watch(a, a->register_fd, &key_register) &&
           !ar_watch(a, a->control_fd, &key_control);
}

static bool open_signals(struct arbiter *a)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return false;
    a->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return a->signal_fd >= 0 && ar_watch(a, a->signal_fd, &key_signal) == 0;
}

static bool open_trace(struct arbiter *a, const char *path)
{
    a->trace_fd = path ? trace_open(path) : -1;
    if (!path || a->trace_fd >= 0)
        return true;
    ar_log(a, 0, "cannot write the gate trace %s: %s", path, strerror(-a->trace_fd));
    return false;
}

/* Asks for descriptors and locked memory, and logs what is missing. Memory that is paged out would
 * delay gates. */
static void take_resources(struct arbiter *a)
{
    /* descriptors: conn.c, process.c and hardware preemption limit theirs to fewer in sum */
    struct rlimit files = {65536, 65536}, have = {0, 0};
    if (getrlimit(RLIMIT_NOFILE, &have) == 0 && setrlimit(RLIMIT_NOFILE, &files) != 0) {
        /* The hard limit cannot be raised here: use all of it, and warn where it is below 16384, a
         * quarter of the wish. */
        have.rlim_cur = have.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &have) != 0 || have.rlim_max < 16384)
            ar_log(a, 1, "only %llu files may be open; many processes will not register",
                   (unsigned long long)have.rlim_cur);
    }
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0)
        ar_log(a, 1, "cannot lock memory: %s", strerror(errno));
}

/* sd_notify(3) in its documented protocol, without its library. */
static void notify_ready(int ready_fd)
{
    static const char ready[] = "READY=1\n";
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    size_t len = path ? strlen(path) : 0;
    if (len > 1 && len < sizeof(addr.sun_path) && (path[0] == '/' || path[0] == '@')) {
        memcpy(addr.sun_path, path, len);
        if (path[0] == '@')
            addr.sun_path[0] = 0;
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
        if (fd >= 0)
            sendto(fd, ready, sizeof(ready) - 1, MSG_NOSIGNAL, (struct sockaddr *)&addr, size);
        if (fd >= 0)
            close(fd);
    }
    if (ready_fd < 0)
        return;
    if (write(ready_fd, "ready\n", 6) < 0)
        perror("qgpu-arbiter: --ready-fd");
    close(ready_fd);
}

/* False: a signal asks the arbiter to end. */
static bool dispatch(struct arbiter *a, const struct epoll_event *ev)
{
    struct key *key = ev->data.ptr;
    switch (key->kind) {
    case KEY_REGISTER:
        conn_accept(a, a->register_fd, CONN_TENANT);
        break;
    case KEY_CONTROL:
        conn_accept(a, a->control_fd, CONN_CONTROL);
        break;
    case KEY_CONN:
        conn_ready(a, (struct conn *)key, ev->events);
        break;
    case KEY_PROC:
        proc_died(a, (struct proc *)key);
        break;
    case KEY_HARDWARE:
        hw_attend(a, key);
        break;
    case KEY_BROKER:
        broker_ready(a, key);
        break;
    case KEY_WANTS:
        break; /* wants_review() before the next wait */
    case KEY_SIGNAL:
        return false;
    }
    return true;
}

static void loop(struct arbiter *a)
{
    struct epoll_event events[64];
    bool more = true;
    while (more) {
        uint64_t now = qg_now_ns();
        int wait = conn_sweep(a, now), review = close_helper_review(now);
        if (review >= 0 && (wait < 0 || review < wait))
            wait = review;
        int brokers = broker_review(a, now);
        if (brokers >= 0 && (wait < 0 || brokers < wait))
            wait = brokers;
        int reaped = reaped_sweep(a, now);
        if (reaped >= 0 && (wait < 0 || reaped < wait))
            wait = reaped;
        int wants = wants_review(a, now);
        if (wants >= 0 && (wait < 0 || wants < wait))
            wait = wants;
        proc_sweep(a);
        trace_drain(a);
        /* The gate trace is written each 50 ms at least, before its rings are full. Chosen, not
         * measured. */
        if (a->trace_fd >= 0 && (wait < 0 || wait > 50))
            wait = 50;
        int n = epoll_wait(a->epfd, events, 64, wait);
        for (int i = 0; i < n && more; i++)
            more = dispatch(a, &events[i]);
    }
}

/* Gate words stay as they are until the next arbiter starts: open ones open, closed ones closed. */
static void finish(struct arbiter *a)
{
    for (uint32_t i = 0; i < a->ncards; i++)
        card_stop(a->cards[i]);
    hw_finish(a);
    trace_drain(a);
    /* Unlocks first: the next arbiter need not wait for the rest, which a user may delay. */
    close(a->lock_fd);
    broker_finish();
    ar_log(a, 2, "ended; gates stay as they are until the next start");
}

int main(int argc, char **argv)
{
    static struct arbiter a = {.level = 2, .rt_priority = 50, .trace_fd = -1, .lock_fd = -1};
    struct options o = {.ready_fd = -1};
    if (!parse(&a, &o, argc, argv)) {
        usage(stderr);
        return 2;
    }
    a.owner = geteuid();
    a.epfd = epoll_create1(EPOLL_CLOEXEC);
    if (getrandom(&a.boot_id, sizeof(a.boot_id), 0) != sizeof(a.boot_id) || a.epfd < 0)
        return 1;
    take_resources(&a);
    if (!barrier_probe())
        ar_log(&a, 1,
               "membarrier(2) is not usable here; idle tenants are sampled once more instead");
    /* before all other descriptors, which their processes would inherit */
    if (!broker_start() || !close_helper_start())
        return 1;
    if (wants_start(&a) != 0)
        return 1;
    if (!open_run_dir(&a) || !open_trace(&a, o.trace) || !open_signals(&a) || !open_sockets(&a))
        return 1;
    ar_log(&a, 2, "ready in %s", a.run_dir);
    notify_ready(o.ready_fd);
    loop(&a);
    finish(&a);
    return 0;
}
