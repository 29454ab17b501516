/* SPDX-License-Identifier: Apache-2.0
 *
 * Graph memory of a device: what memory nodes need is taken when the executable graph is first
 * uploaded or launched. It only grows until it is trimmed: an executable graph that was destroyed
 * leaves its part there for others. Each allocation has memory of its own; a real driver lets those
 * of one graph that do not live at the same time share it.
 */
#include "cu_alloc.h"
#include "cu_context.h"
#include "cu_graphmem.h"

#include <stdlib.h>

#define UNIT (2ull << 20)

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
static struct exec *execs;

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

CUresult cu_graphmem_need(CUgraphExec exec, CUdevice device, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    struct exec *need = need_of(exec, device);
    if (need)
        need->needs += (bytes + UNIT - 1) / UNIT * UNIT;
    pthread_mutex_unlock(&lock);
    return need ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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

void cu_graphmem_unneeded(CUgraphExec handle)
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

/* Executable graphs take memory again at their next launch. */
static void detach_all(CUdevice dev)
{
    for (struct exec *exec = execs; exec; exec = exec->next)
        if (exec->device == dev)
            exec->attached = false;
    devices[dev].used = 0;
}

void cu_graphmem_reserve_forget(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    for (CUdevice dev = 0; dev < (CUdevice)SIM_MAX_CARDS; dev++) {
        bool lost = false;
        for (struct part **link = &devices[dev].parts; *link;)
            if ((*link)->ctx == ctx) {
                drop(&devices[dev], link);
                lost = true;
            } else {
                link = &(*link)->next;
            }
        if (lost)
            detach_all(dev);
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
