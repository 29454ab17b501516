/* SPDX-License-Identifier: Apache-2.0
 *
 * The real driver, called through one table of pointers; opened on first use by boot/open.c.
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
    int memory; /* 1: a call that reaches it past the hook allocates memory that is not counted */
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

/* Opens the driver and says so with qg_driver_opened(). The one thing that a lower folder needs of
 * a higher one: a constant of boot/open.c, because the first call may come before any constructor
 * of ours could set a pointer. tools/floors.py lists it. */
extern void (*const qg_open_driver)(void);
void qg_driver_opened(void *handle); /* NULL: there is none */

bool qg_have(unsigned symbol);
void *qg_resolve(unsigned symbol); /* called by the generated resolvers */

#endif
