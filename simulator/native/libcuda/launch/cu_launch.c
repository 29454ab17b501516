/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches. The kernel qgpu_work(u64 iterations, ...) takes iterations x ns-per-iter on the card,
 * any other kernel what the first rule says that fits its name, else --unknown-us; nothing is
 * computed. Host functions run in a thread per stream.
 */
#include "cu_capture.h"
#include "cu_context.h"
#include "cu_launch.h"
#include "cu_stream.h"

#include <stdlib.h>
#include <string.h>

static uint64_t first_argument(void **params, void **extra)
{
    uint64_t value = 0;
    if (params && params[0])
        memcpy(&value, params[0], sizeof value);
    for (; !params && extra && *extra != CU_LAUNCH_PARAM_END; extra += 2)
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            memcpy(&value, extra[1], sizeof value);
    return value;
}

static CUresult check(CUfunction f, uint64_t blocks, uint64_t threads, unsigned shared)
{
    const int *limits = f->attributes;
    if (f->module->misfit)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (!blocks || !threads || threads > CU_BLOCK_THREADS ||
        shared > (unsigned)limits[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES])
        return CUDA_ERROR_INVALID_VALUE;
    if (f->kernel && f->kernel->max_threads && threads > f->kernel->max_threads)
        return CUDA_ERROR_INVALID_VALUE;
    return cu_blocks_per_sm(f, threads, shared) ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
}

/* Blocks that run at a time are a wave: the last one takes as long as a full one. */
static double cost(CUfunction f, uint64_t blocks, uint64_t threads, unsigned shared)
{
    uint64_t wave = (uint64_t)CU_SM_COUNT * cu_blocks_per_sm(f, threads, shared);
    const struct sim_rule *rule = f->rule;
    return rule->base_ns + (double)((blocks + wave - 1) / wave) * rule->wave_ns +
           (double)blocks * (rule->block_ns + (double)threads * rule->thread_ns);
}

CUresult cu_kernel_cmd(CUfunction f, uint64_t blocks, uint64_t threads, unsigned shared,
                       void **params, void **extra, struct sim_cmd *cmd)
{
    if (!cu_handle_ok(CU_FUNCTION, f))
        return CUDA_ERROR_INVALID_HANDLE;
    if (params && extra)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(check(f, blocks, threads, shared));
    if (f->is_work) {
        if (!params && !extra)
            return CUDA_ERROR_INVALID_VALUE;
        cmd->a = first_argument(params, extra);
        cmd->b = SIM_COST_WORK;
    } else if (f->rule) {
        double ns = cost(f, blocks, threads, shared);
        cmd->a = ns < 1e15 ? (uint64_t)ns : 1000000000000000ull;
        cmd->b = SIM_COST_RULE;
        cmd->c = (uint64_t)f->rule->stop_ns;
    }
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction f, uint64_t blocks, uint64_t threads, unsigned shared,
                       CUstream handle, void **params, void **extra, bool pt)
{
    CUstream stream;
    struct sim_cmd cmd = {.op = SIM_OP_KERNEL};
    CU_TRY(cu_stream_get(handle, pt, &stream));
    CU_TRY(cu_kernel_cmd(f, blocks, threads, shared, params, extra, &cmd));
    CU_TRY(cu_globals_use(f->module, stream->ctx));
    return cu_push(stream, &cmd, false, NULL);
}

static CUresult launch_kernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared, CUstream stream,
                              void **params, void **extra, bool pt)
{
    CUstream checked;
    CU_TRY(cu_stream_get(stream, pt, &checked));
    if (checked->capture) {
        CUDA_KERNEL_NODE_PARAMS_v2 params_of = {f,  gx,     gy,     gz,    bx,   by,
                                                bz, shared, params, extra, NULL, NULL};
        return cu_capture_kernel(checked, &params_of);
    }
    return launch(f, (uint64_t)gx * gy * gz, (uint64_t)bx * by * bz, shared, stream, params, extra,
                  pt);
}

CU_BOTH(cuLaunchKernel, cuLaunchKernel_ptsz, launch_kernel,
        (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
         unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **params,
         void **extra),
        f, gx, gy, gz, bx, by, bz, shared, stream, params, extra)

CU_BOTH(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz, launch_kernel,
        (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
         unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **params),
        f, gx, gy, gz, bx, by, bz, shared, stream, params, NULL)

static CUresult launch_ex(const CUlaunchConfig *config, CUfunction f, void **params, void **extra,
                          bool pt)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    return launch_kernel(f, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                         config->blockDimY, config->blockDimZ, config->sharedMemBytes,
                         config->hStream, params, extra, pt);
}

CU_BOTH(cuLaunchKernelEx, cuLaunchKernelEx_ptsz, launch_ex,
        (const CUlaunchConfig *config, CUfunction f, void **params, void **extra), config, f,
        params, extra)

/* ---- host functions ---- */

struct host_call {
    struct host_call *next;
    CUhostFn fn;
    CUstreamCallback callback;
    CUstream handle;
    void *data;
    uint64_t fence, seq;
};

struct cu_host_queue { /* one per stream slot; lives as long as the process */
    CUcontext ctx;
    uint32_t slot;
    pthread_mutex_t order; /* calls of one stream keep the order of their commands */
    pthread_mutex_t lock;  /* of the list. Never waits for the gate: earlier calls have to run */
    pthread_cond_t more;
    struct host_call *first, **last;
};

static struct host_call *next_call(struct cu_host_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    while (!queue->first)
        pthread_cond_wait(&queue->more, &queue->lock);
    struct host_call *call = queue->first;
    queue->first = call->next;
    if (!queue->first)
        queue->last = &queue->first;
    pthread_mutex_unlock(&queue->lock);
    return call;
}

static void *run_calls(void *arg)
{
    struct cu_host_queue *queue = arg;
    for (;;) {
        struct host_call *call = next_call(queue);
        CUresult status = cu_wait_work(queue->ctx, queue->slot, call->fence);
        if (call->callback)
            call->callback(call->handle, status, call->data);
        else if (status == CUDA_SUCCESS)
            call->fn(call->data);
        uint64_t one_call = call->seq;
        __atomic_store_n(&queue->ctx->shm->streams[queue->slot].host_done, one_call,
                         __ATOMIC_SEQ_CST);
        cu_ring_bell(queue->ctx);
        free(call);
    }
    return NULL;
}

static struct cu_host_queue *queue_of(CUstream stream)
{
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread;
    pthread_mutex_lock(&making);
    if (!stream->host) {
        struct cu_host_queue *queue = calloc(1, sizeof *queue);
        if (queue) {
            *queue = (struct cu_host_queue){.ctx = stream->ctx, .slot = stream->slot};
            queue->last = &queue->first;
            pthread_mutex_init(&queue->order, NULL);
            pthread_mutex_init(&queue->lock, NULL);
            pthread_cond_init(&queue->more, NULL);
            if (pthread_create(&thread, NULL, run_calls, queue) == 0) {
                pthread_detach(thread);
                stream->host = queue;
            } else {
                free(queue);
            }
        }
    }
    pthread_mutex_unlock(&making);
    return stream->host;
}

static CUresult enqueue(CUstream stream, struct host_call *call)
{
    struct cu_host_queue *queue = queue_of(stream);
    struct sim_cmd cmd = {.op = SIM_OP_HOST};
    CUresult status = CUDA_ERROR_OUT_OF_MEMORY;
    if (queue) {
        pthread_mutex_lock(&queue->order);
        status = cu_fence(stream, &call->fence);
        if (status == CUDA_SUCCESS)
            status = cu_push(stream, &cmd, true, &call->seq);
        if (status == CUDA_SUCCESS) {
            pthread_mutex_lock(&queue->lock);
            *queue->last = call;
            queue->last = &call->next;
            pthread_cond_signal(&queue->more);
            pthread_mutex_unlock(&queue->lock);
        }
        pthread_mutex_unlock(&queue->order);
    }
    return status;
}

static CUresult host_call(CUstream handle, CUhostFn fn, CUstreamCallback callback, void *data,
                          bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!fn && !callback)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return fn ? cu_capture_host(stream, fn, data) : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct host_call *call = calloc(1, sizeof *call);
    if (!call)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *call = (struct host_call){.fn = fn, .callback = callback, .handle = handle, .data = data};
    CUresult status = enqueue(stream, call);
    if (status != CUDA_SUCCESS)
        free(call);
    return status;
}

CUresult cu_host_call(CUstream stream, CUhostFn fn, void *data)
{
    return host_call(stream, fn, NULL, data, false);
}

static CUresult launch_host(CUstream stream, CUhostFn fn, void *data, bool pt)
{
    return host_call(stream, fn, NULL, data, pt);
}
CU_BOTH(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, launch_host,
        (CUstream stream, CUhostFn fn, void *data), stream, fn, data)

static CUresult add_callback(CUstream stream, CUstreamCallback callback, void *data, unsigned flags,
                             bool pt)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : host_call(stream, NULL, callback, data, pt);
}
CU_BOTH(cuStreamAddCallback, cuStreamAddCallback_ptsz, add_callback,
        (CUstream stream, CUstreamCallback callback, void *data, unsigned int flags), stream,
        callback, data, flags)
