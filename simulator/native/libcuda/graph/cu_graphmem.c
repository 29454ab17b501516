/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory nodes of graphs: their addresses, given when a node is made, and who may free them when.
 * What the card gives for them is in cu_graphreserve.c.
 */
#include "cu_alloc.h"
#include "cu_context.h"
#include "cu_graphmem.h"

#include <stdlib.h>

/* An allocation of a graph. Its address is the same in each launch. Until its free it lives on
 * after all that could launch it. */
struct owned {
    CUdeviceptr ptr; /* 0: its context is gone */
    CUcontext ctx;
    CUgraph graph;
    bool freed_here, freed_elsewhere; /* by a node of its graph, of another one */
    enum { NEVER, LIVE, FREE } state;
    unsigned refs; /* nodes and executable graphs */
    struct owned *next;
};

struct use { /* what a launch does to an allocation */
    CUgraphExec exec;
    struct owned *owned;
    bool frees;
    struct use *next;
};

struct CUgraphNode_st { /* a memory node, as the program sees it */
    struct owned *owned;
    CUgraph graph;
    CUgraphNodeType type;
    CUdevice device;
    CUcontext ctx;
    CUdeviceptr ptr;
    uint64_t size;
    bool host; /* captured from a pool of the host: takes nothing of the device */
    struct CUgraphNode_st *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUgraphNode_st *nodes; /* of graphs that live */
static struct owned *all_owned;
static struct use *uses;
static _Atomic bool anything; /* some graph has had memory */

/* ---- allocations; under the lock, but for the driver's functions ---- */

static struct owned *owned_at(CUdeviceptr ptr)
{
    struct owned *at = all_owned;
    while (at && at->ptr != ptr)
        at = at->next;
    return at;
}

static void end_if_unused(struct owned *owned)
{
    struct owned **link = &all_owned;
    if (owned->refs || (owned->state == LIVE && owned->ptr))
        return;
    while (*link != owned)
        link = &(*link)->next;
    *link = owned->next;
    struct cu_alloc *alloc = owned->ptr ? cu_alloc_take(owned->ptr, DEVICE, DEVICE) : NULL;
    if (alloc)
        cu_alloc_release(alloc);
    free(owned);
}

static void let_go(struct owned *owned)
{
    owned->refs--;
    end_if_unused(owned);
}

/* A free outside of any graph. That before the first launch is taken too: frameworks drop what they
 * captured at any time. */
bool cu_graphmem_free(CUdeviceptr ptr, CUresult *status)
{
    if (!anything)
        return false;
    pthread_mutex_lock(&lock);
    struct owned *owned = owned_at(ptr);
    if (owned) {
        *status =
            owned->freed_here || owned->state == FREE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        if (*status == CUDA_SUCCESS) {
            owned->state = FREE;
            end_if_unused(owned);
        }
    }
    pthread_mutex_unlock(&lock);
    return owned != NULL;
}

CUresult cu_graphmem_launch(CUgraphExec exec, bool frees_first)
{
    if (!anything)
        return CUDA_SUCCESS;
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (const struct use *at = uses; at && !frees_first; at = at->next)
        if (at->exec == exec && !at->frees && at->owned->state == LIVE)
            status = CUDA_ERROR_INVALID_VALUE;
    for (const struct use *at = uses; at && status == CUDA_SUCCESS; at = at->next)
        if (at->exec == exec)
            at->owned->state = at->frees || at->owned->freed_here ? FREE : LIVE;
    pthread_mutex_unlock(&lock);
    return status;
}

bool cu_graphmem_used(CUgraphExec exec)
{
    bool used = false;
    pthread_mutex_lock(&lock);
    for (const struct use *at = uses; at && !used; at = at->next)
        used = at->exec == exec;
    pthread_mutex_unlock(&lock);
    return used;
}

static CUresult add_use(CUgraphExec exec, struct owned *owned, bool frees)
{
    struct use *use = malloc(sizeof *use);
    if (!use)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *use = (struct use){exec, owned, frees, uses};
    uses = use;
    owned->refs++;
    return CUDA_SUCCESS;
}

/* ---- nodes ---- */

/* Under the lock. */
static CUresult add(CUgraphNode *out, const struct CUgraphNode_st *wanted)
{
    struct CUgraphNode_st *node = malloc(sizeof *node);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *node = *wanted;
    node->owned->refs++;
    node->next = nodes;
    nodes = node;
    if (out)
        *out = node;
    return CUDA_SUCCESS;
}

static CUresult add_alloc(CUgraphNode *out, CUgraph graph, CUdevice dev, uint64_t bytes,
                          CUdeviceptr *ptr, bool host)
{
    struct cu_device *device;
    struct CUgraphNode_st node = {.graph = graph,
                                  .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                                  .device = dev,
                                  .size = bytes,
                                  .host = host};
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_device_of(dev, &device));
    CU_TRY(cu_keeper(device, &node.ctx));
    CU_TRY(cu_alloc_borrow(&node.ptr, bytes, node.ctx, dev, 0, false));
    node.owned = calloc(1, sizeof *node.owned);
    CUresult status = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    if (node.owned) {
        *node.owned = (struct owned){.ptr = node.ptr, .ctx = node.ctx, .graph = graph};
        status = add(out, &node);
    }
    if (status == CUDA_SUCCESS) {
        node.owned->next = all_owned;
        all_owned = node.owned;
        anything = true;
        *ptr = node.ptr;
    }
    pthread_mutex_unlock(&lock);
    if (status != CUDA_SUCCESS) {
        free(node.owned);
        cu_alloc_release(cu_alloc_take(node.ptr, DEVICE, DEVICE));
    }
    return status;
}

/* Under the lock. Its own graph frees an allocation once, others only if that does not. */
static bool may_free(CUgraph graph, const struct owned *owned)
{
    if (!owned || owned->freed_here || (owned->graph == graph && owned->freed_elsewhere))
        return false;
    for (const struct CUgraphNode_st *at = nodes; at; at = at->next)
        if (at->graph == graph && at->owned == owned && at->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            return false;
    return true;
}

static CUresult add_free(CUgraphNode *out, CUgraph graph, CUdeviceptr ptr)
{
    struct CUgraphNode_st node = {.graph = graph, .type = CU_GRAPH_NODE_TYPE_MEM_FREE, .ptr = ptr};
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    node.owned = ptr ? owned_at(ptr) : NULL;
    if (may_free(graph, node.owned))
        status = add(out, &node);
    if (status == CUDA_SUCCESS && node.owned->graph == graph)
        node.owned->freed_here = true;
    else if (status == CUDA_SUCCESS)
        node.owned->freed_elsewhere = true;
    pthread_mutex_unlock(&lock);
    return status;
}

CUresult cu_graphmem_capture_alloc(CUdeviceptr *out, size_t bytes, CUmemoryPool pool,
                                   CUstream stream)
{
    return out ? add_alloc(NULL, stream->capture, (CUdevice)(stream->ctx->device - cu.devices),
                           bytes, out, cu_pool_device(pool) < 0)
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cu_graphmem_capture_free(CUdeviceptr ptr, CUstream stream)
{
    return add_free(NULL, stream->capture, ptr);
}

CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                        size_t nafter, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    (void)after, (void)nafter;
    CUdevice device;
    CU_TRY(cu_ready());
    if (!out || !params || !cu_handle_ok(CU_GRAPH, graph) ||
        !cu_on_device(&params->poolProps.location, &device))
        return CUDA_ERROR_INVALID_VALUE;
    return add_alloc(out, graph, device, params->bytesize, &params->dptr, false);
}

CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                       size_t nafter, CUdeviceptr ptr)
{
    (void)after, (void)nafter;
    CU_TRY(cu_ready());
    return out && cu_handle_ok(CU_GRAPH, graph) ? add_free(out, graph, ptr)
                                                : CUDA_ERROR_INVALID_VALUE;
}

/* Under the lock. */
static struct CUgraphNode_st *node_of(CUgraphNode node, CUgraphNodeType type)
{
    for (struct CUgraphNode_st *at = nodes; at; at = at->next)
        if (at == node && at->type == type)
            return at;
    return NULL;
}

CUresult CUDAAPI cuGraphMemAllocNodeGetParams(CUgraphNode handle,
                                              CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    CU_TRY(cu_ready());
    pthread_mutex_lock(&lock);
    const struct CUgraphNode_st *node = node_of(handle, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (node && params) {
        *params = (CUDA_MEM_ALLOC_NODE_PARAMS){.bytesize = node->size, .dptr = node->ptr};
        params->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        params->poolProps.location =
            (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = node->device};
        if (node->host)
            params->poolProps.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST};
    }
    pthread_mutex_unlock(&lock);
    return node && params ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr *ptr)
{
    CU_TRY(cu_ready());
    pthread_mutex_lock(&lock);
    const struct CUgraphNode_st *node = node_of(handle, CU_GRAPH_NODE_TYPE_MEM_FREE);
    if (node && ptr)
        *ptr = node->ptr;
    pthread_mutex_unlock(&lock);
    return node && ptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

size_t cu_graphmem_nodes(CUgraph graph, CUgraphNode *out, size_t room)
{
    size_t n = 0;
    pthread_mutex_lock(&lock);
    for (struct CUgraphNode_st *at = nodes; at; at = at->next)
        if (at->graph == graph && n++ < room)
            out[n - 1] = at;
    pthread_mutex_unlock(&lock);
    return n;
}

bool cu_graphmem_node_type(CUgraphNode node, CUgraphNodeType *type)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (struct CUgraphNode_st *at = nodes; at && !found; at = at->next)
        if (at == node) {
            *type = at->type;
            found = true;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

void cu_graphmem_graph_gone(CUgraph graph)
{
    pthread_mutex_lock(&lock);
    for (struct CUgraphNode_st **link = &nodes, *node; (node = *link) != NULL;) {
        if (node->graph != graph) {
            link = &node->next;
            continue;
        }
        *link = node->next;
        if (node->owned->graph == graph)
            node->owned->graph = NULL; /* a later graph may be at its place */
        let_go(node->owned);           /* the address stays: an executable graph may still use it */
        free(node);
    }
    pthread_mutex_unlock(&lock);
}

CUresult cu_graphmem_instantiated(CUgraph graph, CUgraphExec exec)
{
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (const struct CUgraphNode_st *at = nodes; at && status == CUDA_SUCCESS; at = at->next) {
        if (at->graph != graph)
            continue;
        bool frees = at->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
        if (!frees || at->owned->graph != graph)
            status = add_use(exec, at->owned, frees);
        if (frees || at->host || status != CUDA_SUCCESS)
            continue;
        status = cu_graphmem_need(exec, at->device, at->size);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void cu_graphmem_exec_gone(CUgraphExec handle)
{
    pthread_mutex_lock(&lock);
    for (struct use **link = &uses, *use; (use = *link) != NULL;) {
        if (use->exec != handle) {
            link = &use->next;
            continue;
        }
        *link = use->next;
        let_go(use->owned);
        free(use);
    }
    pthread_mutex_unlock(&lock);
    cu_graphmem_unneeded(handle);
}

void cu_graphmem_forget(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    for (struct owned *at = all_owned, *next; at; at = next) {
        next = at->next;
        if (at->ctx != ctx)
            continue;
        at->ptr = 0; /* the address went with the context */
        end_if_unused(at);
    }
    pthread_mutex_unlock(&lock);
    cu_graphmem_reserve_forget(ctx);
}
