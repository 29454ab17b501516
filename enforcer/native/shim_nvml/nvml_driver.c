/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the real NVML: beside the driver that the grant names, else where distributions put it. As
 * for the driver, an absolute path gives the real file although this library carries the same
 * SONAME.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "nvml_shim.h"
#include "nvml_grant.h"

extern const char *const qg_symbol_names[QG_NSYMBOLS];

static void *library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *const usual_places[] = {
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib64/nvidia",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
};

/* A path that leads back to this very library would make every call recurse for ever. */
static void *open_in(const char *directory, int length)
{
    char path[320];
    snprintf(path, sizeof(path), "%.*s/libnvidia-ml.so.1", length, directory);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle && dlsym(handle, "nvmlDeviceGetMemoryInfo") == (void *)&nvmlDeviceGetMemoryInfo) {
        dlclose(handle);
        return NULL;
    }
    return handle;
}

static void open_library(void)
{
    const struct qg_grant *grant = qg_nvml_grant();
    const char *slash = grant ? strrchr(grant->driver_path, '/') : NULL;
    if (slash)
        library = open_in(grant->driver_path, (int)(slash - grant->driver_path));
    for (size_t i = 0; !library && i < sizeof(usual_places) / sizeof(usual_places[0]); i++)
        library = open_in(usual_places[i], (int)strlen(usual_places[i]));
}

static nvmlReturn_t no_library(void)
{
    return NVML_ERROR_LIBRARY_NOT_FOUND;
}

static nvmlReturn_t not_in_library(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

void *qg_resolve(unsigned symbol)
{
    pthread_once(&once, open_library);
    void *found = library ? dlsym(library, qg_symbol_names[symbol]) : NULL;
    if (!found)
        found = library ? (void *)not_in_library : (void *)no_library;
    __atomic_store_n(&qg_real[symbol], found, __ATOMIC_RELEASE);
    return found;
}

bool qg_nvml_has(unsigned symbol)
{
    void *now = qg_resolve(symbol);
    return now != (void *)not_in_library && now != (void *)no_library;
}
