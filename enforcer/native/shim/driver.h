/* SPDX-License-Identifier: Apache-2.0
 *
 * The real driver: found, opened on first use, and called through one table of pointers.
 */
#ifndef QG_DRIVER_H
#define QG_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "symbols.h"

/* One row of cuGetProcAddress for a name that has a hook in some version. hook is 0 where we pass
 * through. */
struct qg_api_row {
    const char *api;
    int since;
    int ptsz;
    int symbol;
    const void *hook;
    int memory; /* 1: who comes by it past the hook has memory past the ledger */
};

extern const char *const qg_symbol_names[QG_NSYMBOLS];
extern const struct qg_api_row qg_api_rows[];
extern const unsigned qg_api_row_count;
extern void *qg_real[QG_NSYMBOLS];

/* Calls the real driver: QG_REAL(cuInit)(0). Resolves on the first call. */
#define QG_REAL(symbol)                                                                            \
    ((__typeof__(&symbol))__atomic_load_n(&qg_real[QG_SYM_##symbol], __ATOMIC_RELAXED))

/* True if the real driver has this symbol. */
#define QG_HAVE(symbol) qg_have(QG_SYM_##symbol)

void qg_driver_path(const char *path); /* remembers where the driver is; NULL or "" = search */

/* compat.c. True: the program brings a libcuda.so.1 of its own, in `out`, where it would be found
 * before the node's. */
bool qg_program_driver(const char *granted, char *out, size_t size);
bool qg_have(unsigned symbol);
void *qg_resolve(unsigned symbol); /* called by the generated resolvers */

#endif
