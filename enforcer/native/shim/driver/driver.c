/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the real driver, looked up at their first call.
 */
#include "driver/driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cuda.h>

static void *driver_handle;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

void qg_driver_opened(void *handle)
{
    driver_handle = handle;
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
    pthread_once(&driver_once, qg_open_driver);
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
