/* SPDX-License-Identifier: Apache-2.0
 *
 * Connection to the device side, found by QGPU_SIM_DIR, and cuInit: which cards this process may
 * see.
 */
#include "cu.h"
#include "sim_client.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct cu_state cu = {.sock = -1,
                      .rm = {.fd = -1},
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .sock_lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t cu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool is_api(const char *function)
{
    return function[2] >= 'A' && function[2] <= 'Z';
}

CUresult cu_ready_in(const char *function)
{
    if (!cu.initialised || cu.forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    return is_api(function) ? cu_enter(function) : CUDA_SUCCESS;
}

/* As with the real driver: a forked child cannot use what its parent initialised. */
static void after_fork(void)
{
    if (cu.initialised)
        cu.forked = true;
    cu_gate_set(false);
}

static CUresult exchange(const struct sim_req *req, void *answer, size_t size, int *fds,
                         unsigned nfds)
{
    struct sim_rep *rep = answer;
    cu_gate_lock(&cu.sock_lock);
    bool ok = !cu.lost && cu.sock >= 0 && sim_exchange(cu.sock, req, answer, size, fds, nfds);
    if (!ok)
        cu.lost = true;
    pthread_mutex_unlock(&cu.sock_lock);
    return ok ? (CUresult)rep->status : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

CUresult cu_request(uint32_t type, uint64_t a, uint64_t b, void *answer, size_t size, int *fds,
                    unsigned nfds)
{
    struct sim_req req = {SIM_MAGIC, SIM_VERSION, type, sizeof req, a, b, 0, 0};
    return exchange(&req, answer, size, fds, nfds);
}

CUresult cu_bind_groups(uint32_t ctx, uint32_t client, const uint32_t groups[CU_GROUPS])
{
    struct sim_rep rep;
    struct sim_req req = {
        SIM_MAGIC, SIM_VERSION, SIM_REQ_CTX_GROUPS, sizeof req, ctx | (uint64_t)client << 32,
        groups[0], groups[1],   groups[2]};
    return exchange(&req, &rep, sizeof rep, NULL, 0);
}

CUresult cu_reached(uint32_t ctx, uint32_t stream, uint64_t seq, struct sim_rep *rep)
{
    struct sim_req req = {SIM_MAGIC, SIM_VERSION, SIM_REQ_REACHED, sizeof req, ctx, stream, seq, 0};
    return exchange(&req, rep, sizeof *rep, NULL, 0);
}

bool cu_server_alive(void)
{
    struct pollfd fd = {.fd = cu.sock, .events = POLLRDHUP};
    if (poll(&fd, 1, 0) == 1 && fd.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL))
        cu.lost = true;
    return !cu.lost;
}

/* What a query of unfinished work answers. A program that only polls learns here that the device
 * side is gone; now and then is enough, the look costs a system call. */
CUresult cu_not_ready(void)
{
    static _Thread_local unsigned queries;
    if (++queries % 256 == 0)
        cu_server_alive();
    return cu.lost ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_ERROR_NOT_READY;
}

static int by_name(const struct cu_device *all, int n, const char *token, size_t len)
{
    char *end;
    if (len >= 5 && (strncmp(token, "GPU-", 4) == 0 || strncmp(token, "MIG-", 4) == 0)) {
        for (int i = 0; i < n; i++)
            if (strncmp(all[i].info.uuid, token, len) == 0)
                return i;
        return -1;
    }
    long index = strtol(token, &end, 10);
    return end == token || end != token + len || index < 0 || index >= n ? -1 : (int)index;
}

/* CUDA_VISIBLE_DEVICES: order and choice; the list ends at the first entry that names nothing, as
 * in CUDA. */
static void choose(const struct cu_device *all, int n, const char *list)
{
    bool taken[SIM_MAX_CARDS] = {false};
    cu.ndevices = 0;
    while (*list && cu.ndevices < n) {
        list += strspn(list, " \t");
        size_t len = strcspn(list, ",");
        size_t word = len;
        while (word && (list[word - 1] == ' ' || list[word - 1] == '\t'))
            word--;
        int i = by_name(all, n, list, word);
        if (i < 0)
            return;
        if (taken[i]) { /* the same card twice: CUDA shows none at all */
            cu.ndevices = 0;
            return;
        }
        taken[i] = true;
        cu.devices[cu.ndevices++] = all[i];
        list += len + (list[len] == ',');
    }
}

static CUresult list_devices(void)
{
    struct cu_device seen[SIM_MAX_CARDS];
    int n = 0;
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < cu.node.ncards && i < SIM_MAX_CARDS; i++) {
        CU_TRY(cu_request(SIM_REQ_CARD, i, 0, &seen[n].info, sizeof seen[n].info, NULL, 0));
        n += sim_may_see(&seen[n].info);
    }
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (list) {
        choose(seen, n, list);
    } else {
        memcpy(cu.devices, seen, sizeof seen);
        cu.ndevices = n;
    }
    return cu.ndevices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cu_connect(void)
{
    cu.lost = false;
    cu.sock = sim_connect();
    if (cu.sock < 0)
        return CUDA_ERROR_NO_DEVICE;
    CUresult status = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    if (sim_hello(cu.sock, &cu.node, &cu.page))
        status = cu_enter("cuInit");
    if (status == CUDA_SUCCESS)
        status = list_devices();
    if (status == CUDA_SUCCESS)
        status = cu_rm_open();
    if (status == CUDA_SUCCESS)
        status = cu_agent_start();
    if (status != CUDA_SUCCESS) {
        close(cu.sock);
        cu.sock = -1;
    }
    return status;
}

CUresult CUDAAPI cuInit(unsigned int flags)
{
    static bool watching;
    CUresult status = CUDA_SUCCESS;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (cu.forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&cu.lock);
    if (!cu.initialised) {
        status = cu_connect();
        cu.initialised = status == CUDA_SUCCESS;
        if (!watching)
            watching = pthread_atfork(NULL, NULL, after_fork) == 0;
    }
    pthread_mutex_unlock(&cu.lock);
    return status;
}

CUresult CUDAAPI cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = CU_SIM_VERSION;
    return CUDA_SUCCESS;
}
