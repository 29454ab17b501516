/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's library that the program brings itself: NVIDIA's forward-compatible libcuda
 * (cuda-compat) in a directory of LD_LIBRARY_PATH or of the program's RPATH. Without us the loader
 * would have taken it before the node's, so it runs below us. Limits stay what they are: it is the
 * process's own choice which driver library it calls.
 */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "driver/driver.h"
#include "qgpu_abi.h"

/* What is found there is the node's; dlinfo(3) names these after the program's own, and glibc
 * leaves their flags out. */
static bool is_nodes(const char *directory)
{
    static const char *const names[] = {"/lib", "/usr/lib", "/lib64", "/usr/lib64"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t len = strlen(names[i]);
        if (strncmp(directory, names[i], len) == 0 &&
            (!directory[len] || strstr(directory + len, "-linux-gnu")))
            return true;
    }
    return false;
}

static bool same(const struct stat *a, const char *path)
{
    struct stat b;
    return stat(path, &b) == 0 && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

/* Covered by us (injection: mount), the real one is kept under its own name below the task's place.
 * False: not kept. */
static bool kept(const char *path, char *out, size_t size)
{
    char real[PATH_MAX];
    struct stat st;
    return realpath(path, real) && (size_t)snprintf(out, size, QG_TASK_REAL "%s", real) < size &&
           stat(out, &st) == 0;
}

enum { PASS, NODES, OWN };

/* What the loader would find in that directory: nothing, the node's driver, or another one, then in
 * `out`. */
static int driver_in(const char *directory, const char *ours, const char *granted, char *out,
                     size_t size)
{
    char path[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(path, sizeof(path), "%s/libcuda.so.1", directory) >= sizeof(path) ||
        stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return PASS;
    if (same(&st, ours))
        return kept(path, out, size) ? OWN : NODES;
    if (same(&st, granted))
        return NODES;
    return (size_t)snprintf(out, size, "%s", path) < size ? OWN : PASS;
}

/* Directories in which the loader would search for a library of the program, in its order. NULL:
 * the loader does not say. */
static Dl_serinfo *directories(void)
{
    Dl_serinfo size, *all = NULL;
    void *program = dlopen(NULL, RTLD_LAZY);
    if (program && dlinfo(program, RTLD_DI_SERINFOSIZE, &size) == 0 &&
        (all = calloc(1, size.dls_size)) != NULL) {
        all->dls_size = size.dls_size;
        all->dls_cnt = size.dls_cnt;
        if (dlinfo(program, RTLD_DI_SERINFO, all) != 0)
            all->dls_cnt = 0;
    }
    if (program)
        dlclose(program);
    return all;
}

bool qg_program_driver(const char *granted, char *out, size_t size)
{
    Dl_info self;
    int found = PASS;
    Dl_serinfo *all = dladdr((void *)&qg_program_driver, &self) ? directories() : NULL;
    for (unsigned i = 0; all && found == PASS && i < all->dls_cnt; i++)
        if (!is_nodes(all->dls_serpath[i].dls_name))
            found = driver_in(all->dls_serpath[i].dls_name, self.dli_fname, granted, out, size);
    free(all);
    return found == OWN;
}
