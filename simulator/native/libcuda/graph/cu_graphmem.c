/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory nodes of graphs. An address is given when the node is made, memory when the executable
 * graph is first uploaded or launched. It comes from the device's graph memory, which only grows
 * until it is trimmed: an executable graph that was destroyed leaves its part there for others.
 * Each allocation has memory of its own; a real driver lets those of one graph that do not live at
 * the same time share it.
 */
#include "cu_alloc.h"
#include "cu_context.h"
#include "cu_graphmem.h"

#include <stdlib.h>
#include <string.h>

#define UNIT (2ull << 20)

struct CUgraphNode_st { /* a memory node, as the program sees it */
    CUgraph graph;
    CUgraphNodeType type;
    CUdevice device;
    CUcontext ctx;
    CUdeviceptr ptr;
    uint64_t size;
    bool host;  /* captured from a pool of the host: takes nothing of the device */
    bool freed; /* an allocation with a free node in its graph: no longer in use after a launch */
    struct CUgraphNode_st *next;
};

struct exec { /* on one device of those on which it has nodes */
    CUgraphExec exec;
    CUdevice device;
    uint64_t needs;
    bool attached; /* has its memory */
    struct exec *next;
};

struct part { /* memory of a device that was taken at once */
    uint64_t id, size;
    CUcontext ctx;
    uint32_t ctx_id;
    struct part *next;
};

static struct device {
    uint64_t reserved, reserved_high, used, used_high;
    struct part *parts;
} devices[SIM_MAX_CARDS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUgraphNode_st *nodes; /* of graphs that live */
static struct exec *execs;

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + UNIT - 1) / UNIT * UNIT;
}

/* ---- nodes ---- */

static CUresult add(CUgraphNode *out, const struct CUgraphNode_st *wanted)
{
    struct CUgraphNode_st *node = malloc(sizeof *node);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *node = *wanted;
    pthread_mutex_lock(&lock);
    node->next = nodes;
    nodes = node;
    pthread_mutex_unlock(&lock);
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
    CU_TRY(cu_alloc_borrow(&node.ptr, bytes, node.ctx));
    CUresult status = add(out, &node);
    if (status == CUDA_SUCCESS)
        *ptr = node.ptr;
    else
        cu_alloc_release(cu_alloc_take(node.ptr, DEVICE, DEVICE));
    return status;
}

static CUresult add_free(CUgraphNode *out, CUgraph graph, CUdeviceptr ptr)
{
    struct CUgraphNode_st node = {.graph = graph, .type = CU_GRAPH_NODE_TYPE_MEM_FREE, .ptr = ptr};
    bool known = false;
    pthread_mutex_lock(&lock);
    for (struct CUgraphNode_st *at = nodes; at && !known; at = at->next)
        if (at->graph == graph && at->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && at->ptr == ptr &&
            !at->freed)
            known = at->freed = true;
    pthread_mutex_unlock(&lock);
    return known ? add(out, &node) : CUDA_ERROR_INVALID_VALUE;
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
        free(node); /* the address stays: an executable graph may still use it */
    }
    pthread_mutex_unlock(&lock);
}

/* ---- memory ---- */

/* Under the lock: what an executable graph needs of one device; made if it needs nothing yet. */
static struct exec *need_of(CUgraphExec handle, CUdevice device)
{
    struct exec *exec = execs;
    while (exec && (exec->exec != handle || exec->device != device))
        exec = exec->next;
    if (!exec && (exec = calloc(1, sizeof *exec)) != NULL) {
        *exec = (struct exec){.exec = handle, .device = device, .next = execs};
        execs = exec;
    }
    return exec;
}

CUresult cu_graphmem_instantiated(CUgraph graph, CUgraphExec exec)
{
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (const struct CUgraphNode_st *at = nodes; at && status == CUDA_SUCCESS; at = at->next) {
        if (at->graph != graph || at->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || at->host)
            continue;
        struct exec *need = need_of(exec, at->device);
        if (need)
            need->needs += rounded(at->size);
        else
            status = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static CUresult grow(CUdevice dev, uint64_t bytes)
{
    struct sim_rep rep;
    struct device *device = &devices[dev];
    struct part *part = calloc(1, sizeof *part);
    CUcontext ctx;
    CUresult status = part ? cu_keeper(&cu.devices[dev], &ctx) : CUDA_ERROR_OUT_OF_MEMORY;
    if (status == CUDA_SUCCESS)
        status = cu_request(SIM_REQ_ALLOC, ctx->id, bytes, &rep, sizeof rep, NULL, 0);
    if (status != CUDA_SUCCESS) {
        free(part);
        return status;
    }
    *part = (struct part){
        .id = rep.a, .size = bytes, .ctx = ctx, .ctx_id = ctx->id, .next = device->parts};
    device->parts = part;
    device->reserved += bytes;
    if (device->reserved > device->reserved_high)
        device->reserved_high = device->reserved;
    return CUDA_SUCCESS;
}

static CUresult attach(struct exec *exec)
{
    struct device *device = &devices[exec->device];
    uint64_t spare = device->reserved - device->used;
    if (exec->needs > spare)
        CU_TRY(grow(exec->device, exec->needs - spare));
    exec->attached = true;
    device->used += exec->needs;
    if (device->used > device->used_high)
        device->used_high = device->used;
    return CUDA_SUCCESS;
}

CUresult cu_graphmem_before_launch(CUgraphExec handle)
{
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (struct exec *exec = execs; exec && status == CUDA_SUCCESS; exec = exec->next)
        if (exec->exec == handle && !exec->attached)
            status = attach(exec);
    pthread_mutex_unlock(&lock);
    return status;
}

void cu_graphmem_exec_gone(CUgraphExec handle)
{
    pthread_mutex_lock(&lock);
    for (struct exec **link = &execs, *exec; (exec = *link) != NULL;) {
        if (exec->exec != handle) {
            link = &exec->next;
            continue;
        }
        if (exec->attached)
            devices[exec->device].used -= exec->needs;
        *link = exec->next;
        free(exec);
    }
    pthread_mutex_unlock(&lock);
}

static void drop(struct device *device, struct part **link)
{
    struct sim_rep rep;
    struct part *part = *link;
    *link = part->next;
    device->reserved -= part->size;
    if (cu_handle_ok(CU_CTX, part->ctx) && part->ctx->id == part->ctx_id)
        cu_request(SIM_REQ_FREE, part->ctx_id, part->id, &rep, sizeof rep, NULL, 0);
    free(part);
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice dev)
{
    struct cu_device *known;
    CU_TRY(cu_device_of(dev, &known));
    struct device *device = &devices[dev];
    pthread_mutex_lock(&lock);
    for (struct part **link = &device->parts; *link;)
        if ((*link)->size <= device->reserved - device->used)
            drop(device, link);
        else
            link = &(*link)->next;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

void cu_graphmem_forget(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    for (struct device *device = devices; device < devices + SIM_MAX_CARDS; device++) {
        for (struct part **link = &device->parts; *link;)
            if ((*link)->ctx == ctx)
                drop(device, link);
            else
                link = &(*link)->next;
        if (device->used > device->reserved)
            device->used = device->reserved;
    }
    pthread_mutex_unlock(&lock);
}

CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attribute,
                                              void *value)
{
    struct cu_device *known;
    CU_TRY(cu_device_of(dev, &known));
    const struct device *device = &devices[dev];
    if (!value || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const uint64_t values[] = {device->used, device->used_high, device->reserved,
                               device->reserved_high};
    *(cuuint64_t *)value = values[attribute];
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceSetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attribute,
                                              void *value)
{
    struct cu_device *known;
    CU_TRY(cu_device_of(dev, &known));
    struct device *device = &devices[dev];
    if (!value || *(cuuint64_t *)value || !(attribute & 1))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        device->used_high = device->used;
    else
        device->reserved_high = device->reserved;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
