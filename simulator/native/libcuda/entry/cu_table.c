/* SPDX-License-Identifier: Apache-2.0
 *
 * cuGetProcAddress: the key is (name, version, flags). A row is base name, exported symbol, the
 * CUDA version that introduced it, whether it is the per-thread default stream variant, and whether
 * it is a stub. Of the rows that are old enough the newest wins; with the flag for per-thread
 * default streams a variant wins over the plain function. A stub of a version after the simulated
 * driver's is not found: a driver that old has no such function, and what works stands for it.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "sim_client.h"

/* Not cuda.h: the rows are of every function of the driver (cu_rows.h, made by rows.awk), also of
 * those whose declaration depends on macros. */
#define ROW(name, symbol, version, per_thread, stub) extern char symbol[];
#include "cu_rows.h"
#undef ROW

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500 }; /* CUresult */
/* CUdriverProcAddressQueryResult */
enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };
/* CU_GET_PROC_ADDRESS_... */
#define PER_THREAD_DEFAULT_STREAM 2u

struct row {
    const char *name;
    void *function;
    int version;
    bool per_thread, stub;
};

extern int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
extern int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                               int *result);

static const struct row rows[] = {
#define ROW(name, symbol, version, per_thread, stub) {name, symbol, version, per_thread, stub},
#include "cu_rows.h"
#undef ROW
    {"cuGetProcAddress", (void *)cuGetProcAddress, 11030, false, false},
    {"cuGetProcAddress", (void *)cuGetProcAddress_v2, 12000, false, false},
};

static bool better(const struct row *row, const struct row *best, bool per_thread)
{
    if (!best)
        return true;
    if (per_thread && row->per_thread != best->per_thread)
        return row->per_thread;
    return row->version > best->version;
}

static int look(const char *name, void **function, int version, uint64_t flags, int *result)
{
    const struct row *best = NULL;
    bool known = false, per_thread = flags & PER_THREAD_DEFAULT_STREAM;
    if (!name || !function || flags & ~3ull)
        return INVALID_VALUE;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, name) != 0 || (rows[i].per_thread && !per_thread) ||
            (rows[i].stub && rows[i].version > SIM_CUDA_VERSION))
            continue;
        known = true;
        if (rows[i].version <= version && better(&rows[i], best, per_thread))
            best = &rows[i];
    }
    *function = best ? best->function : NULL;
    if (result)
        *result = best ? FOUND : known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
    return best ? SUCCESS : NOT_FOUND;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return look(name, function, version, flags, NULL);
}

/* With a place for the result a name that is not there is no error; the runtime probes with an
 * empty name. */
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *result)
{
    int status = look(name, function, version, flags, result);
    return status == NOT_FOUND && result ? SUCCESS : status;
}
