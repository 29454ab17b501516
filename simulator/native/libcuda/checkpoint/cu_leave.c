/* SPDX-License-Identifier: Apache-2.0
 *
 * A process is locked, leaves its cards, and comes back. All of this runs in its agent
 * (cu_agent.c), with the gate shut for all other threads.
 */
#include "cu_alloc.h"
#include "cu_orders.h"
#include "cu_stream.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- contexts on cards ---- */

struct moving {
    CUcontext ctx;
    uint64_t bytes, seq; /* seq: of the fence behind its work */
};

/* Those that are on a card, in order of their handles, with their bytes of now. */
static struct moving *list(size_t *n, CUresult *status)
{
    struct moving *all = NULL;
    bool more = true;
    *n = 0;
    *status = CUDA_SUCCESS;
    for (size_t i = 0; more && *status == CUDA_SUCCESS; i++) {
        struct sim_rep rep;
        CUcontext ctx = cu_handle_at(CU_CTX, i, &more);
        if (!ctx || ctx->green || !ctx->shm)
            continue;
        CUresult known = cu_request(SIM_REQ_CTX_BYTES, ctx->id, 0, &rep, sizeof rep, NULL, 0);
        if (known == CUDA_ERROR_INVALID_CONTEXT)
            continue;
        struct moving *grown =
            known == CUDA_SUCCESS ? realloc(all, (*n + 1) * sizeof *grown) : NULL;
        if (grown) {
            all = grown;
            all[(*n)++] = (struct moving){.ctx = ctx, .bytes = rep.a};
        } else {
            *status = known == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : known;
        }
    }
    return all;
}

/* A context in error has no work. */
static bool over(CUresult status)
{
    return status != CUDA_ERROR_NOT_READY;
}

static CUresult push(struct moving *moving, uint32_t op, uint64_t bytes,
                     const struct sim_order *order)
{
    struct timespec pause = {.tv_nsec = 1000000};
    struct sim_cmd cmd = {.op = op, .a = bytes};
    while (cu_ring_full(moving->ctx) && !cu.lost) {
        if (order && cu_agent_given_up(order))
            return CUDA_ERROR_NOT_READY;
        cu_ring_bell(moving->ctx);
        nanosleep(&pause, NULL);
    }
    return cu_push(&moving->ctx->all, &cmd, true, &moving->seq);
}

/* All that was submitted is done; order: it may be given up meanwhile. */
static CUresult wait_for(struct moving *all, size_t n, const struct sim_order *order)
{
    for (size_t i = 0; i < n; i++) {
        CUresult status = push(&all[i], SIM_OP_FENCE, 0, order);
        while (over(status) &&
               !over(status = cu_wait_shortly(all[i].ctx, SIM_STREAM_ALL, all[i].seq)) &&
               !(order && cu_agent_given_up(order)))
            status = CUDA_SUCCESS;
        if (!over(status))
            return status;
    }
    return cu.lost ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

/* The copies of all contexts, of several cards at the same time, and the contents meanwhile. */
static CUresult copy(struct moving *all, size_t n, uint32_t op, bool midway)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = midway ? all[i].bytes / 2 : all[i].bytes;
        if (bytes)
            push(&all[i], op, bytes, NULL);
    }
    CUresult moved = op == SIM_OP_DTOH ? cu_contents_leave(midway) : cu_contents_return(midway);
    CUresult status = wait_for(all, n, NULL);
    return status == CUDA_SUCCESS ? moved : status;
}

/* ---- locking ---- */

static bool patient(const struct sim_order *order)
{
    struct timespec pause = {.tv_nsec = 100000};
    nanosleep(&pause, NULL);
    return !cu.lost && !cu_agent_given_up(order);
}

static bool pass_mutex(pthread_mutex_t *lock, const struct sim_order *order)
{
    while (pthread_mutex_trylock(lock) != 0)
        if (!patient(order))
            return false;
    pthread_mutex_unlock(lock);
    return true;
}

static bool pass_rwlock(pthread_rwlock_t *lock, const struct sim_order *order)
{
    while (pthread_rwlock_trywrlock(lock) != 0)
        if (!patient(order))
            return false;
    pthread_rwlock_unlock(lock);
    return true;
}

static bool pass_rings(const struct sim_order *order)
{
    bool more = true, passed = true;
    for (size_t i = 0; more && passed; i++) {
        CUcontext ctx = cu_handle_at(CU_CTX, i, &more);
        if (ctx && !ctx->green && ctx->shm)
            passed = pass_mutex(&ctx->ring_lock, order);
    }
    return passed;
}

CUresult cu_lock_process(const struct sim_order *order)
{
    cu_gate_set(true);
    if (!cu_agent_given_up(order) && pass_rwlock(&cu_gate_contexts, order) &&
        pass_mutex(&cu.sock_lock, order) && pass_rwlock(&cu_alloc_lock, order) && pass_rings(order))
        return CUDA_SUCCESS;
    cu_gate_set(false);
    return CUDA_ERROR_NOT_READY;
}

/* ---- leaving ---- */

static CUresult leave(struct moving *all, size_t n, bool *broken)
{
    struct sim_rep rep;
    bool midway = sim_fault_midway(cu.page, "cuCheckpointProcessCheckpoint");
    CUresult status = copy(all, n, SIM_OP_DTOH, midway);
    *broken = midway || status == CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (status != CUDA_SUCCESS)
        return status;
    status = cu_request(SIM_REQ_PARK, 0, 0, &rep, sizeof rep, NULL, 0);
    if (status != CUDA_SUCCESS) {
        *broken = cu_contents_return(false) != CUDA_SUCCESS;
        return status;
    }
    for (size_t i = 0; i < n; i++)
        cu_rm_context_gone(all[i].ctx);
    cu_rm_leave();
    return CUDA_SUCCESS;
}

CUresult cu_leave_cards(const struct sim_order *order, bool *broken)
{
    CUresult status = cu_contents_may_leave();
    if (status != CUDA_SUCCESS)
        return status;
    size_t n;
    struct moving *all = list(&n, &status);
    if (status == CUDA_SUCCESS)
        status = wait_for(all, n, order);
    free(all);
    if (status != CUDA_SUCCESS)
        return status;
    all = list(&n, &status); /* asynchronous frees are done */
    if (status == CUDA_SUCCESS)
        status = leave(all, n, broken);
    free(all);
    return status;
}

/* ---- coming back ---- */

/* Where each card is found from now on. What was not named and is in the way takes the place that
 * became free, so no card is there twice. */
static void places(const struct sim_order *order, uint32_t to[SIM_MAX_CARDS])
{
    uint32_t from[SIM_MAX_CARDS];
    memset(from, 0xff, sizeof from);
    for (uint32_t i = 0; i < SIM_MAX_CARDS; i++) {
        to[i] = order->moves >> i & 1 ? (uint32_t)(order->where_to >> i * 4 & 15) : i;
        if (order->moves >> i & 1)
            from[to[i]] = i;
    }
    for (uint32_t i = 0; i < SIM_MAX_CARDS; i++) {
        if (order->moves >> i & 1 || from[i] >= SIM_MAX_CARDS)
            continue;
        to[i] = from[i];
        while (from[to[i]] < SIM_MAX_CARDS)
            to[i] = from[to[i]];
    }
}

static CUresult look_up(struct sim_card_info seen[SIM_MAX_CARDS], const struct sim_order *order)
{
    uint32_t to[SIM_MAX_CARDS];
    places(order, to);
    for (int i = 0; i < cu.ndevices; i++) {
        uint32_t place = to[cu.devices[i].info.index];
        CU_TRY(cu_request(SIM_REQ_CARD, place, 0, &seen[i], sizeof seen[i], NULL, 0));
    }
    return CUDA_SUCCESS;
}

/* The process opens the cards on which it has contexts. */
static CUresult may_open(const struct sim_card_info seen[SIM_MAX_CARDS])
{
    bool more = true, used[SIM_MAX_CARDS] = {false};
    for (size_t i = 0; more; i++) {
        CUcontext ctx = cu_handle_at(CU_CTX, i, &more);
        if (ctx && !ctx->green && ctx->shm)
            used[ctx->device - cu.devices] = true;
    }
    for (int i = 0; i < cu.ndevices; i++)
        if (used[i] && !sim_may_see(&seen[i]))
            return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS;
}

static CUresult settle_in(struct moving *all, size_t n)
{
    CUresult status = cu_rm_open();
    for (size_t i = 0; i < n && status == CUDA_SUCCESS; i++)
        status = cu_rm_context(all[i].ctx);
    if (status != CUDA_SUCCESS)
        return status;
    bool midway = sim_fault_midway(cu.page, "cuCheckpointProcessRestore");
    return copy(all, n, SIM_OP_HTOD, midway);
}

CUresult cu_return_to_cards(const struct sim_order *order, bool *broken)
{
    struct sim_card_info seen[SIM_MAX_CARDS];
    struct sim_rep rep;
    CUresult status;
    size_t n;
    CU_TRY(look_up(seen, order));
    CU_TRY(may_open(seen));
    CU_TRY(cu_request(SIM_REQ_UNPARK, 0, 0, &rep, sizeof rep, NULL, 0));
    for (int i = 0; i < cu.ndevices; i++)
        cu.devices[i].info = seen[i];
    struct moving *all = list(&n, &status);
    if (status == CUDA_SUCCESS)
        status = settle_in(all, n);
    free(all);
    *broken = status != CUDA_SUCCESS; /* it has its cards, and not all that was there */
    return status;
}
