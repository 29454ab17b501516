/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the real driver. Its absolute path comes from the grant; glibc aliases a library by SONAME
 * only for a name without a slash, so an absolute path gives the real file although we carry the
 * same SONAME.
 */
#include <dlfcn.h>
#include <limits.h>
#include <string.h>

#include <cuda.h>

#include "base/message.h"
#include "boot/boot.h"
#include "groups/rm.h"

static char driver_file[256];

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

static void *find_driver(void)
{
    void *handle = NULL;
    qg_load(); /* it says where the driver is */
    if (driver_file[0]) {
        char own[PATH_MAX];
        if (qg_program_driver(driver_file, own, sizeof(own)))
            handle = open_other(own);
        if (!handle)
            handle = open_other(driver_file);
        if (!handle) {
            const char *why = dlerror();
            qg_message(
                "the NVIDIA driver cannot be opened: %s. The administrator sets driver.libcuda "
                "in qgpu.yaml.",
                why ? why : "its path leads back to qgpu's own library");
        }
        return handle;
    }
    for (size_t i = 0; !handle && i < sizeof(usual_places) / sizeof(usual_places[0]); i++)
        handle = open_other(usual_places[i]);
    return handle;
}

static void open_driver(void)
{
    void *handle = find_driver();
    qg_driver_opened(handle);
    if (qg_governed)
        qg_rm_driver_opened(handle);
}

void (*const qg_open_driver)(void) = open_driver;
