/* SPDX-License-Identifier: Apache-2.0
 *
 * cuInit, which starts everything, and cuGetProcAddress, through which the CUDA runtime asks for
 * all functions. The runtime asks for several versions of one name, with different signatures; the
 * key is (name, version, flags).
 */
#include <string.h>

#include "base/message.h"
#include "process/process.h"
#include "boot/boot.h"

/* A grant was announced and cannot be believed. Without one there are no limits, and so no card. */
static CUresult not_permitted(void)
{
    static bool said;
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        qg_message("this program gets no card, because its limits are not known: %s. Start it with "
                   "srun or sbatch inside its "
                   "job.",
                   qg_info.problem);
    return CUDA_ERROR_NOT_PERMITTED;
}

CUresult cuInit(unsigned int flags)
{
    qg_load();
    if (qg_info.mode == QG_MODE_BROKEN)
        return not_permitted();
    CUresult result = QG_REAL(cuInit)(flags);
    if (result == CUDA_SUCCESS && !qg_depth)
        qg_started();
    return result;
}

/* First row of a name (rows are sorted by name, then by default stream, then by version); -1: no
 * hook has it. */
static int first_row(const char *name)
{
    int low = 0, high = (int)qg_api_row_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (strcmp(qg_api_rows[middle].api, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < (int)qg_api_row_count && !strcmp(qg_api_rows[low].api, name) ? low : -1;
}

/* What this name means at this version: a per-thread variant where one is wanted and exists. */
static const struct qg_api_row *meaning(const char *name, int version, bool ptsz)
{
    const struct qg_api_row *best = NULL;
    int at = first_row(name);
    for (; at >= 0 && at < (int)qg_api_row_count && !strcmp(qg_api_rows[at].api, name); at++) {
        const struct qg_api_row *row = &qg_api_rows[at];
        if (row->since <= version && (!row->ptsz || ptsz))
            best = row;
    }
    return best;
}

/* A version newer than our table may have another signature. If the driver still means the same
 * function by it, our hook fits. If not, work passes ungoverned. But memory is always counted, and
 * never stays counted after the release of its handle. */
static CUresult newer_than_table(const char *name, void **found, cuuint64_t flags,
                                 const struct qg_api_row *row)
{
    void *known = NULL;
    CUresult result;
    if (QG_HAVE(cuGetProcAddress_v2))
        result = QG_REAL(cuGetProcAddress_v2)(name, &known, QG_TABLE_CUDA_VERSION, flags, NULL);
    else
        result = QG_REAL(cuGetProcAddress)(name, &known, QG_TABLE_CUDA_VERSION, flags);
    if (result == CUDA_SUCCESS && known == *found) {
        *found = (void *)(uintptr_t)row->hook;
        return CUDA_SUCCESS;
    }
    if (!row->memory || qg_info.mode == QG_MODE_NONE)
        return CUDA_SUCCESS;
    *found = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

/* The driver answers first: what it does not have, we do not offer. */
static CUresult ours(const char *name, void **found, int version, cuuint64_t flags)
{
    int driver = version;
    if (!name || !*name || !found || !*found)
        return CUDA_SUCCESS;
    bool ptsz = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    int asked = version;
    if (QG_REAL(cuDriverGetVersion)(&driver) == CUDA_SUCCESS && driver < version)
        version = driver; /* an older driver means its newest version */
    const struct qg_api_row *row = meaning(name, version, ptsz);
    if (!row || !row->hook)
        return CUDA_SUCCESS;
    if (asked > QG_TABLE_CUDA_VERSION && version > QG_TABLE_CUDA_VERSION)
        return newer_than_table(name, found, flags, row);
    *found = (void *)(uintptr_t)row->hook;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *name, void **found, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    CUresult result = QG_REAL(cuGetProcAddress_v2)(name, found, version, flags, status);
    if (result != CUDA_SUCCESS)
        return result;
    result = ours(name, found, version, flags);
    if (result != CUDA_SUCCESS && status)
        *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return result;
}

CUresult cuGetProcAddress(const char *name, void **found, int version, cuuint64_t flags)
{
    CUresult result = QG_REAL(cuGetProcAddress)(name, found, version, flags);
    return result != CUDA_SUCCESS ? result : ours(name, found, version, flags);
}
