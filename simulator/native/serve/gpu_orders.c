/* SPDX-License-Identifier: Apache-2.0
 *
 * What one process asks of another one by the driver's checkpoint calls. A thread of the target
 * (its agent) carries it out; this side knows the states, and passes on orders and answers. One
 * order at a time for each target, the others wait for their turn. Nothing here waits.
 */
#include <cuda.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve.h"

struct gpu_order {
    struct gpu_order *next;
    struct gpu_conn *caller; /* NULL: it is gone, or has its answer */
    struct gpu_conn *target;
    struct sim_order order;
    bool sent;
};

/* ---- the agent ---- */

int gpu_agent_open(struct gpu_conn *conn, uint64_t tid, int *fd)
{
    int pair[2];
    if (conn->agent.sock >= 0 || !tid || tid > INT32_MAX || !conn->page)
        return CUDA_ERROR_INVALID_VALUE;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    conn->agent.watch = (struct gpu_watch){SRC_AGENT, conn};
    if (!gpu_watch_fd(conn->gpu, pair[0], EPOLLIN, &conn->agent.watch)) {
        close(pair[0]);
        close(pair[1]);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    conn->agent.sock = pair[0];
    conn->agent.tid = (int)tid;
    conn->agent.state = CU_PROCESS_STATE_RUNNING;
    *fd = pair[1];
    return CUDA_SUCCESS;
}

static bool send_order(const struct gpu_conn *target, const struct sim_order *order)
{
    return send(target->agent.sock, order, sizeof *order, MSG_NOSIGNAL | MSG_DONTWAIT) ==
           (ssize_t)sizeof *order;
}

static void cancel(const struct gpu_order *order)
{
    struct sim_order message = {.number = order->order.number, .what = SIM_ORDER_CANCEL};
    if (!send_order(order->target, &message))
        return; /* it has not read the order either, and its deadline will be over */
}

/* What a question asks for, which changes nothing. */
static uint64_t answer_to(const struct gpu_conn *target, uint64_t what)
{
    return what == SIM_ORDER_STATE    ? (uint64_t)target->agent.state
           : what == SIM_ORDER_THREAD ? (uint64_t)target->agent.tid
                                      : 0;
}

static void answer_caller(struct gpu_order *order, int status)
{
    struct gpu_conn *caller = order->caller;
    order->caller = NULL; /* first: one that does not read its answer ends here */
    if (caller)
        gpu_answer_plain(caller, status, answer_to(order->target, order->order.what));
}

static void drop(struct gpu *gpu, struct gpu_order *order)
{
    struct gpu_order **link = &gpu->orders;
    while (*link != order)
        link = &(*link)->next;
    *link = order->next;
    free(order);
}

/* ---- states ---- */

static bool in_order(const struct gpu_conn *target, uint32_t what)
{
    static const int from[] = {[SIM_ORDER_LOCK] = CU_PROCESS_STATE_RUNNING,
                               [SIM_ORDER_CHECKPOINT] = CU_PROCESS_STATE_LOCKED,
                               [SIM_ORDER_RESTORE] = CU_PROCESS_STATE_CHECKPOINTED,
                               [SIM_ORDER_UNLOCK] = CU_PROCESS_STATE_LOCKED};
    return what <= SIM_ORDER_THREAD || target->agent.state == from[what];
}

static int state_after(const struct gpu_conn *target, uint32_t what)
{
    if (what <= SIM_ORDER_THREAD)
        return target->agent.state;
    return what == SIM_ORDER_CHECKPOINT ? CU_PROCESS_STATE_CHECKPOINTED
           : what == SIM_ORDER_UNLOCK   ? CU_PROCESS_STATE_RUNNING
                                        : CU_PROCESS_STATE_LOCKED;
}

/* What keeps the order from being carried out; CUDA_SUCCESS: it was passed on. */
static int begin(struct gpu_order *order)
{
    const struct sim_order *what = &order->order;
    if (!in_order(order->target, what->what))
        return CUDA_ERROR_ILLEGAL_STATE;
    if (what->what == SIM_ORDER_RESTORE &&
        gpu_moves_bad(order->target, what->moves, what->where_to))
        return CUDA_ERROR_INVALID_VALUE;
    order->sent = send_order(order->target, what);
    return order->sent ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static struct gpu_order *first_of(const struct gpu *gpu, const struct gpu_conn *target)
{
    struct gpu_order *order = gpu->orders;
    while (order && order->target != target)
        order = order->next;
    return order;
}

static void go_on(struct gpu_conn *target)
{
    struct gpu *gpu = target->gpu;
    for (struct gpu_order *order; (order = first_of(gpu, target)) != NULL && !order->sent;) {
        int status = begin(order);
        if (status == CUDA_SUCCESS)
            return;
        answer_caller(order, status);
        drop(gpu, order);
    }
}

/* ---- requests ---- */

static bool is_target(const struct gpu_conn *conn, uint64_t pid)
{
    return (uint64_t)conn->pid == pid && conn->agent.sock >= 0 && !conn->lingers;
}

static int find_target(struct gpu_conn *caller, uint64_t pid, struct gpu_conn **target)
{
    struct gpu_conn *conn = caller->gpu->conns;
    if (!pid || pid > INT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    while (conn && !is_target(conn, pid))
        conn = conn->next;
    if (!conn)
        return kill((pid_t)pid, 0) != 0 && errno == ESRCH ? CUDA_ERROR_INVALID_VALUE
                                                          : CUDA_ERROR_NOT_INITIALIZED;
    if (caller->uid != conn->uid && caller->uid != 0 && caller->uid != geteuid())
        return CUDA_ERROR_NOT_PERMITTED;
    *target = conn;
    return CUDA_SUCCESS;
}

static int enlist(struct gpu_conn *caller, struct gpu_conn *target, const struct sim_req *req)
{
    struct gpu *gpu = caller->gpu;
    struct gpu_order *made = calloc(1, sizeof *made), **end = &gpu->orders;
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool limit = req->b == SIM_ORDER_LOCK && req->c, moves = req->b == SIM_ORDER_RESTORE;
    made->caller = caller;
    made->target = target;
    made->order = (struct sim_order){.number = ++gpu->last_order,
                                     .what = (uint32_t)req->b,
                                     .moves = moves ? (uint32_t)req->c : 0,
                                     .where_to = moves ? req->d : 0,
                                     .deadline_ns = limit ? gpu_now() + req->c * 1000000u : 0};
    while (*end)
        end = &(*end)->next;
    *end = made;
    go_on(target);
    return CUDA_SUCCESS;
}

/* Questions are answered here, unless the target has a fault to act out for one. */
static bool is_answered_here(const struct gpu_conn *target, uint64_t what)
{
    const char *name = what == SIM_ORDER_STATE ? "cuCheckpointProcessGetState"
                                               : "cuCheckpointProcessGetRestoreThreadId";
    if (what > SIM_ORDER_THREAD)
        return false;
    for (unsigned i = 0; i < SIM_FAULTS; i++)
        if (target->page->faults[i].kind &&
            strncmp(target->page->faults[i].call, name, SIM_CALL_LEN) == 0)
            return false;
    return true;
}

void gpu_order_request(struct gpu_conn *caller, const struct sim_req *req)
{
    struct gpu_conn *target;
    int status = find_target(caller, req->a, &target);
    if (status == CUDA_SUCCESS && is_answered_here(target, req->b))
        gpu_answer_plain(caller, status, answer_to(target, req->b));
    else if (status == CUDA_SUCCESS && (req->b > SIM_ORDER_UNLOCK || req->c > UINT32_MAX))
        gpu_answer_plain(caller, CUDA_ERROR_INVALID_VALUE, 0);
    else if (status != CUDA_SUCCESS || (status = enlist(caller, target, req)) != CUDA_SUCCESS)
        gpu_answer_plain(caller, status, 0);
}

/* Whether the process was told to do this now: without, it may not leave its cards. */
bool gpu_is_ordered(const struct gpu_conn *conn, uint32_t what)
{
    const struct gpu_order *order = first_of(conn->gpu, conn);
    return order && order->sent && order->order.what == what;
}

int gpu_unpark_as_ordered(struct gpu_conn *conn)
{
    const struct gpu_order *order = first_of(conn->gpu, conn);
    return gpu_unpark(conn, order->order.moves, order->order.where_to);
}

/* ---- answers and ends ---- */

/* It says that it did as it was told, and its contexts are not where they should be then. */
static bool lies(const struct gpu_conn *target, uint32_t what)
{
    return (what == SIM_ORDER_CHECKPOINT && target->ctxs) ||
           (what == SIM_ORDER_RESTORE && target->parked);
}

static void done(struct gpu_conn *target, const struct sim_order_done *is)
{
    struct gpu_order *order = first_of(target->gpu, target);
    if (!order || !order->sent || order->order.number != is->number)
        return; /* of one that was given up */
    bool success = is->status == CUDA_SUCCESS;
    if (is->broken || (success && lies(target, order->order.what)))
        target->agent.state = CU_PROCESS_STATE_FAILED;
    else if (success)
        target->agent.state = state_after(target, order->order.what);
    bool failed = success && target->agent.state == CU_PROCESS_STATE_FAILED;
    answer_caller(order, failed ? CUDA_ERROR_UNKNOWN : is->status);
    drop(target->gpu, order);
    go_on(target);
}

void gpu_agent_readable(struct gpu_conn *target)
{
    struct sim_order_done is;
    ssize_t size = recv(target->agent.sock, &is, sizeof is, MSG_DONTWAIT | MSG_TRUNC);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (size == (ssize_t)sizeof is)
        done(target, &is);
    else
        gpu_conn_end(target, size ? "its answer to an order is none" : NULL);
}

/* A process that is locked too late is unlocked again by the cancellation, so it is running. */
static void give_up_lock(struct gpu *gpu, struct gpu_order *order, int status)
{
    struct gpu_conn *target = order->target;
    if (order->sent)
        cancel(order);
    answer_caller(order, status);
    drop(gpu, order);
    go_on(target);
}

void gpu_orders_settle(struct gpu *gpu, uint64_t now)
{
    for (struct gpu_order *order = gpu->orders, *next; order; order = next) {
        next = order->next;
        if (order->order.deadline_ns && order->order.deadline_ns <= now) {
            give_up_lock(gpu, order, CUDA_ERROR_NOT_READY);
            next = gpu->orders; /* others may have gone with it */
        }
    }
}

uint64_t gpu_orders_next(const struct gpu *gpu)
{
    uint64_t next = MODEL_NEVER;
    for (const struct gpu_order *order = gpu->orders; order; order = order->next)
        if (order->order.deadline_ns && order->order.deadline_ns < next)
            next = order->order.deadline_ns;
    return next;
}

/* Its own orders to others: what was begun and can be taken back is, the rest goes on without it.
 */
static void forget_caller(struct gpu_conn *conn)
{
    struct gpu *gpu = conn->gpu;
    for (struct gpu_order *order = gpu->orders, *next; order; order = next) {
        next = order->next;
        if (order->caller != conn)
            continue;
        order->caller = NULL;
        if (!order->sent) {
            drop(gpu, order);
        } else if (order->order.what == SIM_ORDER_LOCK) {
            give_up_lock(gpu, order, 0);
            next = gpu->orders;
        } else if (order->order.what == SIM_ORDER_CHECKPOINT) {
            cancel(order);
        }
    }
}

void gpu_orders_forget(struct gpu_conn *conn)
{
    forget_caller(conn);
    for (struct gpu_order *order; (order = first_of(conn->gpu, conn)) != NULL;) {
        answer_caller(order, CUDA_ERROR_INVALID_VALUE);
        drop(conn->gpu, order);
    }
    if (conn->agent.sock >= 0)
        close(conn->agent.sock);
    conn->agent.sock = -1;
}
