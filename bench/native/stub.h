/* SPDX-License-Identifier: Apache-2.0
 *
 * Controls of the stub driver, for benchmarks and for the shim's tests. A program finds them with
 * dlsym() on the stub's own handle (dlopen of its absolute path), past the shim.
 */
#ifndef QG_STUB_H
#define QG_STUB_H

#include <stdint.h>

struct stub_counts {
    uint64_t launches, graph_launches, copies, writes, registers, event_records, allocs, frees,
        inits, queries, legacy_writes;
};

struct stub_state {
    struct stub_counts counts;
    int counting;      /* 0: counts nothing, so that threads do not meet at the counters */
    int hold;          /* 1: markers are kept back until stub_release() */
    int refuse_writes; /* 1: cuStreamWriteValue32 answers NOT_SUPPORTED */
    int version;       /* of cuDriverGetVersion and cuGetProcAddress */
    int refuse_allocs; /* 1: the card itself is full; -N: for the next N allocations */
    float elapsed_ms;  /* of every event pair */
    int newer;         /* 1: from CUDA 14 on every name means another function than before */
    int device_count;
    uint64_t capturing; /* handle of the stream that captures; 0: none */
    /* of cuStreamEndCapture; it ends the capture but for 903 and 908 (wrong stream, wrong
     * thread) */
    int end_result;
};

extern struct stub_state stub; /* exported by the stub */
/* Lets the GPU reach up to n markers that were kept back; returns how many it reached. */
int stub_release(int n);

#endif
