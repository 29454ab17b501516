/* SPDX-License-Identifier: Apache-2.0
 *
 * Many tenants with one thread of work, for the cost of the daemons: processes that share one address space register for
 * the grants, 16 each (the most that the arbiter lets a process have), and one loop moves the words of all pages as shims
 * do, without a driver or a card. 128 real programs would need a machine of their own; what the daemons read is the same.
 *
 * Usage: light-tenants RUN_DIR idle|busy JOB... ; writes "ready" when all are registered, ends with SIGTERM or when its
 * standard input ends. Busy: all tenants always have work; with an open gate a tenant launches and completes at each
 * tick, at a closed one it drains within a tick and waits.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "qg_msg.h"
#include "qg_time.h"

#define TICK_NS 250000
#define LAUNCHES_PER_TICK 5
#define MAX_TENANTS 2048
#define TENANTS_PER_PROCESS 16
#define STACK (256 * 1024)

struct tenant {
    const struct qg_gate_page *gate;
    struct qg_proc *proc;
    int doorbell;
    uint64_t rung_at; /* the state of the gate that was rung for */
    bool at_gate;
};

static struct tenant tenants[MAX_TENANTS];
static pid_t children[MAX_TENANTS];
static int nchildren;
static volatile sig_atomic_t stopping;

static void leave(const char *what, const char *why)
{
    fprintf(stderr, "light-tenants: %s: %s\n", what, why);
    exit(1);
}

static int sealed_grant(const char *run_dir, const char *job, struct qg_grant *grant)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s/%s.grant", run_dir, QG_GRANTS_DIR, job);
    int file = open(path, O_RDONLY | O_CLOEXEC), fd = memfd_create("qgpu-grant", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    if (file < 0 || fd < 0 || read(file, grant, sizeof *grant) != (ssize_t)sizeof *grant ||
        write(fd, grant, sizeof *grant) != (ssize_t)sizeof *grant ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        leave(path, strerror(errno));
    close(file);
    return fd;
}

static int dial(const char *run_dir)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", run_dir, QG_SOCK_REGISTER);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        leave(address.sun_path, strerror(errno));
    return fd;
}

/* One answer with its three descriptors; false: ask again. */
static bool answered(int sock, struct qg_registered *answer, int fds[3])
{
    union {
        char space[CMSG_SPACE(sizeof(int) * 3)];
        struct cmsghdr align;
    } control;
    struct iovec data = {answer, sizeof *answer};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.space,
                             .msg_controllen = sizeof control.space};
    ssize_t got = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
    if (got != (ssize_t)sizeof *answer)
        leave("registration", "the arbiter closed the connection");
    if (answer->status == EAGAIN)
        return false;
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    if (answer->status || !part || part->cmsg_len != CMSG_LEN(3 * sizeof(int)))
        leave("registration was refused", answer->message);
    memcpy(fds, CMSG_DATA(part), 3 * sizeof(int));
    return true;
}

static void enrol(struct tenant *tenant, const char *run_dir, const char *job)
{
    struct qg_grant grant;
    struct qg_registered answer;
    struct qg_register ask = {0};
    int fds[3], sealed = sealed_grant(run_dir, job, &grant), sock = dial(run_dir); /* stays open while we live */
    qg_msg_head_init(&ask.head, QG_MSG_REGISTER, sizeof ask);
    ask.job_id = grant.job_id;
    memcpy(ask.uuid, grant.cards[0].uuid, sizeof ask.uuid);
    do {
        if (qg_msg_send(sock, &ask, sizeof ask, &sealed, 1) != 0)
            leave("registration", "the message could not be sent");
    } while (!answered(sock, &answer, fds) && poll(NULL, 0, 100) == 0);
    close(sealed);
    void *gate = mmap(NULL, sizeof(struct qg_gate_page), PROT_READ, MAP_SHARED, fds[0], 0);
    struct qg_job_page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    if (gate == MAP_FAILED || page == MAP_FAILED)
        leave("mapping the pages", strerror(errno));
    *tenant = (struct tenant){.gate = gate, .proc = &page->procs[answer.slot], .doorbell = fds[2]};
    close(fds[0]);
    close(fds[1]);
}

static void ring_once(struct tenant *tenant)
{
    static const uint64_t one = 1;
    uint64_t changed = __atomic_load_n(&tenant->gate->changed_ns, __ATOMIC_ACQUIRE);
    if (changed == tenant->rung_at)
        return;
    tenant->rung_at = changed;
    if (write(tenant->doorbell, &one, sizeof one) < 0 && errno != EAGAIN)
        leave("doorbell", strerror(errno));
}

static void launch(struct tenant *tenant)
{
    struct qg_marker *marker = &tenant->proc->markers[0];
    uint32_t submitted = __atomic_load_n(&marker->submitted, __ATOMIC_RELAXED);
    __atomic_fetch_add(&tenant->proc->launches, LAUNCHES_PER_TICK, __ATOMIC_SEQ_CST);
    __atomic_store_n(&marker->submitted, submitted + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&marker->done, submitted, __ATOMIC_RELEASE); /* the one before is finished, this one runs */
}

static void step(struct tenant *tenant)
{
    uint32_t flags = __atomic_load_n(&tenant->gate->flags, __ATOMIC_SEQ_CST);
    bool closed = flags & QG_GATE_CLOSED;
    if (closed != tenant->at_gate) {
        tenant->at_gate = closed;
        __atomic_store_n(&tenant->proc->waiting, closed, __ATOMIC_SEQ_CST);
        if (closed) {
            struct qg_marker *marker = &tenant->proc->markers[0];
            __atomic_store_n(&marker->done, marker->submitted, __ATOMIC_RELEASE);
            __atomic_fetch_add(&tenant->proc->launches, 1, __ATOMIC_SEQ_CST);
            ring_once(tenant);
        } else {
            __atomic_store_n(&tenant->proc->turn_ns, qg_now_ns(), __ATOMIC_RELAXED);
        }
    }
    if (closed)
        return;
    launch(tenant);
    if (flags & QG_GATE_NOTIFY)
        ring_once(tenant);
}

static void work(int count)
{
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    const struct itimerspec tick = {{0, TICK_NS}, {0, TICK_NS}};
    uint64_t passed;
    struct pollfd wait[2] = {{.fd = timer, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
    if (timer < 0 || timerfd_settime(timer, 0, &tick, NULL) != 0)
        leave("timer", strerror(errno));
    while (!stopping && poll(wait, 2, -1) > 0 && !wait[1].revents) {
        if (read(timer, &passed, sizeof passed) < 0)
            continue;
        for (int i = 0; i < count; i++)
            step(&tenants[i]);
    }
}

struct group {
    const char *run_dir;
    char **jobs;
    int first, count;
    int done; /* atomic */
};

/* A process of its own with our memory and descriptors: what it maps, the parent's loop sees. It lives as long as the parent. */
static int group_main(void *arg)
{
    struct group *group = arg;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < group->count; i++)
        enrol(&tenants[group->first + i], group->run_dir, group->jobs[group->first + i]);
    __atomic_store_n(&group->done, 1, __ATOMIC_RELEASE);
    while (getppid() != 1)
        pause();
    return 0;
}

/* One after another: while a child works, the parent only looks at a word, so that they share errno without harm. */
static void enrol_all(const char *run_dir, char **jobs, int count)
{
    for (int first = 0; first < count; first += TENANTS_PER_PROCESS) {
        int size = count - first < TENANTS_PER_PROCESS ? count - first : TENANTS_PER_PROCESS;
        struct group *group = calloc(1, sizeof *group);
        char *stack = malloc(STACK);
        if (!group || !stack)
            leave("memory", strerror(errno));
        *group = (struct group){.run_dir = run_dir, .jobs = jobs, .first = first, .count = size};
        pid_t pid = clone(group_main, stack + STACK, CLONE_VM | CLONE_FILES | SIGCHLD, group);
        if (pid < 0)
            leave("clone", strerror(errno));
        children[nchildren++] = pid;
        while (!__atomic_load_n(&group->done, __ATOMIC_ACQUIRE)) {
            poll(NULL, 0, 1);
            if (waitpid(pid, NULL, WNOHANG) == pid)
                exit(1);
        }
    }
}

static void on_signal(int signal)
{
    (void)signal;
    stopping = 1;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_signal};
    struct pollfd end = {.fd = 0, .events = POLLIN};
    if (argc < 4 || argc - 3 > MAX_TENANTS)
        leave("usage", "light-tenants RUN_DIR idle|busy JOB...");
    sigaction(SIGTERM, &action, NULL);
    enrol_all(argv[1], argv + 3, argc - 3);
    puts("ready");
    fflush(stdout);
    if (strcmp(argv[2], "busy") == 0)
        work(argc - 3);
    else if (!stopping)
        poll(&end, 1, -1);
    for (int i = 0; i < nchildren; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    return 0;
}
