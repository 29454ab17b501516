/* SPDX-License-Identifier: Apache-2.0
 *
 * How copies and fills are hooked. Large ones are work like a kernel; small ones are not worth a turn. The ones without
 * a stream also wait for the work before them, so markers go in first.
 */
#ifndef QG_COPY_H
#define QG_COPY_H

#include "gate.h"

#define QG_LARGE (1u << 20)

/* hook_copy.c. NULL: let through, not counted. */
struct qg_stream *qg_copy_begin(CUstream stream, bool ptsz, bool waits, uint64_t bytes);
void qg_copy_end(struct qg_stream *stream, bool waits);

#define COPY(name, stream, ptsz, waits, bytes, parameters, arguments)                \
    CUresult name parameters                                                         \
    {                                                                                \
        struct qg_stream *qg_stream = qg_copy_begin(stream, ptsz, waits, bytes);     \
        CUresult qg_result = QG_REAL(name) arguments;                                \
        qg_copy_end(qg_stream, waits);                                               \
        return qg_result;                                                            \
    }

/* A name and its per-thread variant, without a stream and with one. */
#define SYNC2(name, suffixed, bytes, parameters, arguments)                    \
    COPY(name, NULL, false, true, bytes, parameters, arguments)                \
    COPY(suffixed, NULL, true, true, bytes, parameters, arguments)
#define ASYNC2(name, suffixed, bytes, parameters, arguments)                   \
    COPY(name, s, false, false, bytes, parameters, arguments)                  \
    COPY(suffixed, s, true, false, bytes, parameters, arguments)

/* Bytes of a two- or three-dimensional copy described by c. */
#define AREA (c ? (uint64_t)c->WidthInBytes * c->Height : 0)
#define SPACE (c ? (uint64_t)c->WidthInBytes * c->Height * c->Depth : 0)

#endif
