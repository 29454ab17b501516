/* SPDX-License-Identifier: Apache-2.0
 *
 * One function for each slot of each table: a library that calls a slot which this driver does not
 * serve is refused, and QGPU_SIM_DEBUG says which one it was. The slots are counted in octal.
 */
#include "cu_runtime.h"

#define ONE(T, n)                                                                                  \
    static CUresult T##_##n(void)                                                                  \
    {                                                                                              \
        return cu_unserved(CU_TABLE_##T, 0##n);                                                    \
    }
#define EIGHT(X, T, n)                                                                             \
    X(T, n##0) X(T, n##1) X(T, n##2) X(T, n##3) X(T, n##4) X(T, n##5) X(T, n##6) X(T, n##7)
#define SLOTS(X, T)                                                                                \
    EIGHT(X, T, 0)                                                                                 \
    EIGHT(X, T, 1)                                                                                 \
    EIGHT(X, T, 2)                                                                                 \
    EIGHT(X, T, 3)                                                                                 \
    EIGHT(X, T, 4)                                                                                 \
    EIGHT(X, T, 5)                                                                                 \
    EIGHT(X, T, 6)                                                                                 \
    EIGHT(X, T, 7)                                                                                 \
    EIGHT(X, T, 10)                                                                                \
    EIGHT(X, T, 11)                                                                                \
    EIGHT(X, T, 12)                                                                                \
    EIGHT(X, T, 13)
#define ENTRY(T, n) [0##n] = (const void *)T##_##n,
#define TABLE(T)    [CU_TABLE_##T] = {SLOTS(ENTRY, T)},
#define TABLES(X)                                                                                  \
    X(RUNTIME) X(HOOKS) X(TOOLS) X(STORAGE) X(CHECKS) X(HANDSHAKE) X(CONTEXTS) X(MODULES) X(BLAS)

#define FUNCTIONS(T) SLOTS(ONE, T)
TABLES(FUNCTIONS)

const void *const cu_slots[CU_TABLES][CU_SLOTS] = {TABLES(TABLE)};
