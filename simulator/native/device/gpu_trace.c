/* SPDX-License-Identifier: Apache-2.0
 *
 * The trace: a record for each piece that a card executed, through a buffer, to SIM_TRACE.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"

#define TRACE_BUFFER 2048u

static struct sim_trace_rec buffer[TRACE_BUFFER];
static unsigned buffered;

static bool complain(void)
{
    fprintf(stderr, "qgpu-simgpu: cannot write %s: %s\n", SIM_TRACE, strerror(errno));
    return false;
}

bool gpu_trace_open(struct gpu *gpu)
{
    struct sim_trace_head head = {.version = SIM_TRACE_VERSION,
                                  .record_size = sizeof(struct sim_trace_rec),
                                  .ncards = gpu->config.cards,
                                  .start_ns = gpu_now()};
    memcpy(head.magic, SIM_TRACE_MAGIC, sizeof head.magic); /* eight characters without an end */
    snprintf(head.node, sizeof head.node, "%s", gpu->config.node);
    unlinkat(gpu->dir, SIM_TRACE, 0);
    gpu->trace = openat(gpu->dir, SIM_TRACE,
                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_CLOEXEC, 0600);
    if (gpu->trace < 0 || write(gpu->trace, &head, sizeof head) != (ssize_t)sizeof head)
        return complain();
    return true;
}

void gpu_trace_flush(struct gpu *gpu)
{
    size_t size = buffered * sizeof buffer[0];
    buffered = 0;
    if (gpu->trace < 0 || !size || write(gpu->trace, buffer, size) == (ssize_t)size)
        return;
    complain(); /* a trace with a hole would lie: end it here */
    close(gpu->trace);
    gpu->trace = -1;
}

void gpu_trace(struct gpu *gpu, const struct sim_trace_rec *rec)
{
    if (gpu->trace < 0)
        return;
    buffer[buffered++] = *rec;
    if (buffered == TRACE_BUFFER)
        gpu_trace_flush(gpu);
}
