/* SPDX-License-Identifier: Apache-2.0
 *
 * How copies and fills are hooked. A large one is work like a kernel. A small one does not wait at
 * the gate, but the sum of small ones does (small_copies.c). A copy without a stream waits for
 * earlier work, so fences go in before it.
 */
#ifndef QG_COPY_H
#define QG_COPY_H

#include "gate/gate.h"

/* bytes: From here on a copy is work of its own: about 90 us on a slow host link. Evidence: none.
 */
#define QG_LARGE (1u << 20)

/* One call. A file of hooks defines QG_PIECES (an expression) and QG_ROUTE for those that follow.
 */
enum qg_route {
    QG_EITHER,    /* within the card or not: counted as the slower case, by the host's link */
    QG_HOST_LINK, /* from or to the host: without a stream, it is over when the call returns */
    QG_ON_CARD,   /* the call returns before it is over, with a stream or without */
};
struct qg_copied {
    uint64_t bytes;
    uint32_t pieces;
    enum qg_route route;
};

/* hooks/copy/copy.c. NULL: let through, not counted. */
struct qg_stream *qg_copy_begin(CUstream stream, bool ptsz, bool waits, struct qg_copied what);
void qg_copy_end(struct qg_stream *stream, bool waits, CUresult result);

/* small_copies.c: as qg_copy_begin for a call below QG_LARGE. */
struct qg_stream *qg_small_begin(CUstream stream, bool ptsz, bool waits, struct qg_copied what);

#define COPY(name, stream, ptsz, waits, bytes, parameters, arguments)                              \
    CUresult name parameters                                                                       \
    {                                                                                              \
        struct qg_copied qg_what = {bytes, (uint32_t)(QG_PIECES), QG_ROUTE};                       \
        struct qg_stream *qg_stream = qg_copy_begin(stream, ptsz, waits, qg_what);                 \
        CUresult qg_result = QG_REAL(name) arguments;                                              \
        qg_copy_end(qg_stream, waits, qg_result);                                                  \
        return qg_result;                                                                          \
    }

/* A name and its per-thread variant, without a stream and with one. */
#define SYNC2(name, suffixed, bytes, parameters, arguments)                                        \
    COPY(name, NULL, false, true, bytes, parameters, arguments)                                    \
    COPY(suffixed, NULL, true, true, bytes, parameters, arguments)
#define ASYNC2(name, suffixed, bytes, parameters, arguments)                                       \
    COPY(name, s, false, false, bytes, parameters, arguments)                                      \
    COPY(suffixed, s, true, false, bytes, parameters, arguments)

/* Bytes of a two- or three-dimensional copy described by c. */
#define AREA  (c ? (uint64_t)c->WidthInBytes * c->Height : 0)
#define SPACE (c ? (uint64_t)c->WidthInBytes * c->Height * c->Depth : 0)

#endif
