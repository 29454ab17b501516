/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread of a process that carries out what others ask of it by the checkpoint calls. It is
 * there from cuInit on, and waits for orders of the device side.
 */
#include "cu_orders.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int tid, sock; /* 0: not yet; sock: -1: it is not wanted */
} start = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};
static int orders; /* the thread's own */

bool cu_agent_given_up(const struct sim_order *order)
{
    struct sim_order next;
    if (order->deadline_ns && cu_now() >= order->deadline_ns)
        return true;
    return recv(orders, &next, sizeof next, MSG_PEEK | MSG_DONTWAIT) == (ssize_t)sizeof next &&
           next.what == SIM_ORDER_CANCEL && next.number == order->number;
}

/* A lock that was given up when it had been taken. */
static void cancelled(const struct sim_order *order, uint64_t locked_by)
{
    if (order->number == locked_by)
        cu_gate_set(false);
}

static CUresult carry_out(const struct sim_order *order, bool *broken)
{
    switch (order->what) {
    case SIM_ORDER_LOCK:
        CU_TRY((CUresult)sim_fault(cu.page, "cuCheckpointProcessLock"));
        return cu_lock_process(order);
    case SIM_ORDER_CHECKPOINT:
        CU_TRY((CUresult)sim_fault(cu.page, "cuCheckpointProcessCheckpoint"));
        return cu_leave_cards(order, broken);
    case SIM_ORDER_RESTORE:
        CU_TRY((CUresult)sim_fault(cu.page, "cuCheckpointProcessRestore"));
        return cu_return_to_cards(order, broken);
    case SIM_ORDER_UNLOCK:
        CU_TRY((CUresult)sim_fault(cu.page, "cuCheckpointProcessUnlock"));
        cu_gate_set(false);
        return CUDA_SUCCESS;
    case SIM_ORDER_STATE: /* these come for the sake of faults alone */
        return (CUresult)sim_fault(cu.page, "cuCheckpointProcessGetState");
    default:
        return (CUresult)sim_fault(cu.page, "cuCheckpointProcessGetRestoreThreadId");
    }
}

static void serve(void)
{
    struct sim_order order;
    uint64_t locked_by = 0;
    for (;;) {
        ssize_t size = recv(orders, &order, sizeof order, 0);
        if (size < 0 && errno == EINTR)
            continue;
        if (size != (ssize_t)sizeof order)
            return;
        bool broken = false;
        if (order.what == SIM_ORDER_CANCEL) {
            cancelled(&order, locked_by);
            continue;
        }
        struct sim_order_done done = {.number = order.number};
        done.status = (int32_t)carry_out(&order, &broken);
        done.broken = broken;
        locked_by = order.what == SIM_ORDER_LOCK && done.status == CUDA_SUCCESS ? order.number : 0;
        if (send(orders, &done, sizeof done, MSG_NOSIGNAL) != (ssize_t)sizeof done)
            return;
    }
}

static void *agent(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&start.lock);
    start.tid = (int)syscall(SYS_gettid);
    pthread_cond_broadcast(&start.change);
    while (!start.sock)
        pthread_cond_wait(&start.change, &start.lock);
    orders = start.sock;
    if (orders < 0) {
        start.tid = 0;
        pthread_cond_broadcast(&start.change);
    }
    pthread_mutex_unlock(&start.lock);
    if (orders < 0)
        return NULL;
    /* Not before: cuInit may be called within dlopen(), and the first use of this takes the
     * loader's lock in old C libraries. */
    cu_gate_exempt = 1;
    serve();
    cu.lost = true; /* the device side is gone: whoever waits learns it */
    cu_gate_set(false);
    return NULL;
}

/* Signals are for the program's own threads. */
static bool make_thread(void)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool made = pthread_create(&thread, &attributes, agent, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return made;
}

CUresult cu_agent_start(void)
{
    struct sim_rep rep;
    int fd = -1;
    start.tid = start.sock = 0;
    if (!make_thread())
        return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_mutex_lock(&start.lock);
    while (!start.tid)
        pthread_cond_wait(&start.change, &start.lock);
    pthread_mutex_unlock(&start.lock);
    CUresult status = cu_request(SIM_REQ_AGENT, (uint64_t)start.tid, 0, &rep, sizeof rep, &fd, 1);
    if (status == CUDA_SUCCESS && fd < 0)
        status = CUDA_ERROR_OPERATING_SYSTEM;
    pthread_mutex_lock(&start.lock);
    start.sock = status == CUDA_SUCCESS ? fd : -1;
    pthread_cond_broadcast(&start.change);
    while (start.sock < 0 && start.tid)
        pthread_cond_wait(&start.change, &start.lock);
    pthread_mutex_unlock(&start.lock);
    return status;
}
