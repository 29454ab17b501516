/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate trace: card threads put records into a ring without waiting, the main thread writes them
 * out.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "gate/gate.h"

int trace_open(const char *path)
{
    struct stat st;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        return fd;
    close(fd);
    return -EINVAL;
}

void trace_put(struct trace_ring *ring, const struct qg_gate_event *event)
{
    if (!ring)
        return;
    uint64_t head = ring->head, tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
    if (head - tail >= AR_TRACE_EVENTS) {
        __atomic_fetch_add(&ring->dropped, 1, __ATOMIC_RELAXED);
        return;
    }
    ring->events[head % AR_TRACE_EVENTS] = *event;
    __atomic_store_n(&ring->head, head + 1, __ATOMIC_RELEASE);
}

/* Writes whole records only. On a full disk it loses events and logs that, but never leaves a torn
 * record. */
static void drain_ring(struct arbiter *a, struct trace_ring *ring)
{
    uint64_t tail = ring->tail, head = __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE);
    while (tail < head) {
        uint64_t at = tail % AR_TRACE_EVENTS, n = head - tail;
        if (n > AR_TRACE_EVENTS - at)
            n = AR_TRACE_EVENTS - at;
        size_t bytes = n * sizeof(struct qg_gate_event);
        off_t before = lseek(a->trace_fd, 0, SEEK_END);
        ssize_t put = write(a->trace_fd, &ring->events[at], bytes);
        if (put != (ssize_t)bytes) {
            if (put > 0 && ftruncate(a->trace_fd, before) != 0)
                ar_log(a, 0, "the gate trace is torn");
            __atomic_fetch_add(&ring->dropped, n, __ATOMIC_RELAXED);
        }
        tail += n;
    }
    __atomic_store_n(&ring->tail, tail, __ATOMIC_RELEASE);
    uint64_t lost = __atomic_exchange_n(&ring->dropped, 0, __ATOMIC_RELAXED);
    if (lost)
        ar_log(a, 1, "%llu records of the gate trace were lost", (unsigned long long)lost);
}

void trace_drain(struct arbiter *a)
{
    if (a->trace_fd < 0)
        return;
    for (uint32_t i = 0; i < a->ncards; i++) {
        if (a->cards[i]->trace)
            drain_ring(a, a->cards[i]->trace);
    }
}
