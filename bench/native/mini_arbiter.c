/* SPDX-License-Identifier: Apache-2.0
 *
 * The least arbiter that lets the shim run as it does in a job: gate open, tracking on, and a
 * window as the real one gives every tenant that it governs (policy.c). For the micro-benchmark,
 * which must not depend on the node's real one.
 */
#include "mini_arbiter.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "qg_msg.h"
#include "qg_seal.h"
#include "qg_time.h"

#define LEASE_MS 10000

int mini_grant(const char *run_dir, const char *driver, uint64_t mem_cap)
{
    struct qg_grant grant = {.magic = QG_MAGIC, .version = QG_GRANT_VERSION, .size = sizeof(grant)};
    grant.state = QG_GRANT_ACTIVE;
    grant.job_id = 1;
    grant.job_class = QG_CLASS_OFFLINE;
    grant.ncards = 1;
    snprintf(grant.run_dir, sizeof(grant.run_dir), "%s", run_dir);
    snprintf(grant.driver_path, sizeof(grant.driver_path), "%s", driver);
    snprintf(grant.cards[0].uuid, QG_UUID_LEN, "GPU-00000000-0000-0000-0000-000000000001");
    grant.cards[0].share = 30;
    grant.cards[0].mem_cap = mem_cap;
    grant.cards[0].mem_total = (uint64_t)80 << 30;
    int fd = memfd_create("qgpu-grant", MFD_ALLOW_SEALING);
    if (fd < 0 || write(fd, &grant, sizeof(grant)) != (ssize_t)sizeof(grant) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        return -1;
    return fd;
}

static int listen_in(const char *run_dir)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", run_dir, QG_SOCK_REGISTER);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(fd, 4) != 0)
        return -1;
    return fd;
}

static void serve(int listener, uint64_t mem_cap, uint32_t window_us)
{
    struct qg_gate_page *gate;
    struct qg_job_page *job;
    int fds[3], grant;
    struct qg_register ask;
    struct qg_registered answer = {.mem_cap = mem_cap};
    if (qg_shared_create("gate", sizeof(*gate), 1, &fds[0], (void **)&gate) != 0 ||
        qg_shared_create("job", sizeof(*job), 0, &fds[1], (void **)&job) != 0)
        _exit(1);
    fds[2] = eventfd(0, EFD_NONBLOCK);
    *gate = (struct qg_gate_page){
        .magic = QG_MAGIC, .version = QG_ABI_VERSION, .size = sizeof(*gate), .job_id = 1};
    gate->mem_cap = mem_cap;
    gate->window_us = window_us ? window_us : 500;
    gate->lease_ms = LEASE_MS;
    gate->flags = QG_GATE_TRACK | (window_us ? QG_GATE_WINDOW : 0);
    job->magic = QG_MAGIC;
    job->version = QG_ABI_VERSION;
    job->size = sizeof(*job);
    job->nslots = QG_MAX_PROCS;
    int client = accept(listener, NULL, NULL);
    struct pollfd wait = {.fd = client, .events = POLLIN};
    for (;;) {
        int ready = poll(&wait, 1, LEASE_MS / 4);
        __atomic_store_n(&gate->heartbeat_ns, qg_now_ns(), __ATOMIC_RELAXED);
        if (ready == 0)
            continue;
        if (ready < 0 || qg_msg_recv(client, &ask, sizeof(ask), &grant) != (ssize_t)sizeof(ask))
            break;
        if (grant >= 0)
            close(grant);
        qg_msg_head_init(&answer.head, QG_MSG_REGISTERED, sizeof(answer));
        qg_msg_send(client, &answer, sizeof(answer), fds, 3);
    }
    _exit(0);
}

int mini_arbiter(const char *run_dir, uint64_t mem_cap, uint32_t window_us)
{
    int listener = listen_in(run_dir);
    if (listener < 0)
        return -1;
    int pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(listener, mem_cap, window_us);
    }
    close(listener);
    return pid;
}
