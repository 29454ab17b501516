/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the text of LD_PRELOAD: qgpu's two libraries first, the user's own behind them, and none of
 * qgpu's twice.
 */
#include "spank_qgpu.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void qg_nvml_beside(const char *shim, char *out, size_t size)
{
    const char *slash = strrchr(shim, '/');
    int dir = slash ? (int)(slash - shim) : 0;

    if (!slash || snprintf(out, size, "%.*s/" QG_NVML_NAME, dir, shim) >= (int)size ||
        access(out, R_OK) != 0)
        out[0] = '\0';
}

static bool ends_in(const char *entry, size_t len, const char *tail)
{
    size_t tail_len = strlen(tail);

    return len >= tail_len && memcmp(entry + len - tail_len, tail, tail_len) == 0;
}

/* Is the entry a library of qgpu? That is one of the two in this shim's directory. With shim NULL
 * it is one of these names in any directory. */
static bool ours(const char *entry, size_t len, const char *shim)
{
    size_t dir = shim ? (size_t)(strrchr(shim, '/') - shim) : 0;

    if (!shim)
        return ends_in(entry, len, "/libcuda.so.1") || ends_in(entry, len, "/" QG_NVML_NAME);
    if (len == strlen(shim) && memcmp(entry, shim, len) == 0)
        return true;
    return len == dir + sizeof("/" QG_NVML_NAME) - 1 && memcmp(entry, shim, dir) == 0 &&
           ends_in(entry, len, "/" QG_NVML_NAME);
}

static size_t append(char *out, size_t used, size_t size, const char *entry, size_t len)
{
    if (used + len + 2 > size)
        return size; /* it does not fit; no later entry will either */
    if (used)
        out[used++] = ':';
    memcpy(out + used, entry, len);
    out[used + len] = '\0';
    return used + len;
}

bool qg_preload_list(const char *list, const char *shim, const char *nvml, char *out, size_t size)
{
    size_t used = 0;

    out[0] = '\0';
    if (shim)
        used = append(out, used, size, shim, strlen(shim));
    if (shim && nvml[0])
        used = append(out, used, size, nvml, strlen(nvml));
    while (*list) {
        size_t len = strcspn(list, ": ");

        if (len > 0 && !ours(list, len, shim))
            used = append(out, used, size, list, len);
        list += len;
        list += *list != '\0';
    }
    return used < size;
}
