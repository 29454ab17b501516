/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the real driver. Its absolute path comes from the grant; glibc aliases a library by SONAME
 * only for a name without a slash, so an absolute path gives the real file although we carry the
 * same SONAME.
 */
#include "driver.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#include "rm.h"
#include "say.h"
#include "shim.h"

static char driver_file[256];
static void *driver_handle;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

/* Where distributions put the driver; only used by a process that has no grant (preloaded by
 * accident). */
static const char *const usual_places[] = {
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/lib64/nvidia/libcuda.so.1",
    "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/usr/local/cuda/compat/libcuda.so.1",
    "/run/opengl-driver/lib/libcuda.so.1",
};

void qg_driver_path(const char *path)
{
    strncpy(driver_file, path ? path : "", sizeof(driver_file) - 1);
}

/* A path that leads back to this very library would make every call recurse for ever. */
static void *open_other(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle && dlsym(handle, "cuInit") == (void *)&cuInit) {
        dlclose(handle);
        return NULL;
    }
    return handle;
}

static void find_driver(void)
{
    qg_load(); /* it tells where the driver is */
    if (driver_file[0]) {
        char own[PATH_MAX];
        if (qg_program_driver(driver_file, own, sizeof(own)))
            driver_handle = open_other(own);
        if (!driver_handle)
            driver_handle = open_other(driver_file);
        if (!driver_handle) {
            const char *why = dlerror();
            qg_say("the NVIDIA driver cannot be opened: %s. The administrator sets driver.libcuda "
                   "in qgpu.yaml.",
                   why ? why : "its path leads back to qgpu's own library");
        }
        return;
    }
    for (size_t i = 0; !driver_handle && i < sizeof(usual_places) / sizeof(usual_places[0]); i++)
        driver_handle = open_other(usual_places[i]);
}

static void open_driver(void)
{
    find_driver();
    if (qg_governed)
        qg_rm_driver_opened(driver_handle);
}

static CUresult no_driver(void)
{
    return CUDA_ERROR_NO_DEVICE;
}

static CUresult not_in_driver(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

static void *lookup(unsigned symbol)
{
    pthread_once(&driver_once, open_driver);
    return driver_handle ? dlsym(driver_handle, qg_symbol_names[symbol]) : NULL;
}

void *qg_resolve(unsigned symbol)
{
    void *found = lookup(symbol);
    if (!found)
        found = driver_handle ? (void *)not_in_driver : (void *)no_driver;
    __atomic_store_n(&qg_real[symbol], found, __ATOMIC_RELEASE);
    return found;
}

bool qg_have(unsigned symbol)
{
    void *now = qg_resolve(symbol);
    return now != (void *)not_in_driver && now != (void *)no_driver;
}
