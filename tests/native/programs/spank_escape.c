/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that wants the driver: says whether what it got is qgpu's library ("shim") or another
 * one ("driver").
 *
 * usage: spank_escape open NAME | newns NAME | next NAME
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int say(void *handle)
{
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (!dlsym(handle, "cuInit")) /* not a driver at all: a test that finds this proves nothing */
        return 2;
    puts(dlsym(handle, "qgpu_job_view") ? "shim" : "driver");
    return 0;
}

/* As wrappers do: the definition behind one's own. */
static int next(const char *name)
{
    Dl_info info;

    if (!dlopen(name, RTLD_NOW | RTLD_GLOBAL))
        return say(NULL);
    void *symbol = dlsym(RTLD_NEXT, "cuInit");
    return symbol && dladdr(symbol, &info) ? say(dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD))
                                           : 3;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 4;
    if (strcmp(argv[1], "newns") == 0)
        return say(dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW));
    if (strcmp(argv[1], "next") == 0)
        return next(argv[2]);
    return say(dlopen(argv[2], RTLD_NOW));
}
