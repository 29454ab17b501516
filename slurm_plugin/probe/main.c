/* SPDX-License-Identifier: Apache-2.0
 *
 * qgpu-mounts DRIVER SHIM: can tasks of this node get the shim by mounts? It makes the same mounts
 * as the SPANK plugin and starts a program under them. They are in a mount namespace of its own,
 * which ends with it. Exit status 0, or 1 with a sentence.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../spank/spank_qgpu.h"

#define PROGRAM "/bin/true"

/* Starts a program. `said` is what ld.so printed, empty if there was no fault. False: the program
 * did not run. */
static bool started(char *said, size_t size)
{
    int ends[2], status = 0;
    size_t used = 0;
    ssize_t got;

    said[0] = '\0';
    if (pipe(ends) != 0)
        return false;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        execle(PROGRAM, PROGRAM, (char *)NULL, (char *[]){NULL});
        _exit(127);
    }
    close(ends[1]);
    while (used < size - 1 && (got = read(ends[0], said + used, size - 1 - used)) > 0)
        used += (size_t)got;
    said[used] = '\0';
    said[strcspn(said, "\n")] = '\0';
    close(ends[0]);
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

/* Is the driver's path the shim's file now? */
static bool covered(const char *driver, const char *shim)
{
    struct stat seen, ours;

    return stat(driver, &seen) == 0 && stat(shim, &ours) == 0 && seen.st_dev == ours.st_dev &&
           seen.st_ino == ours.st_ino;
}

int main(int argc, char **argv)
{
    struct qg_grant grant = {.ncards = 0};
    char nvml[PATH_MAX], why[PATH_MAX + 512], said[512];

    if (argc != 3 || argv[1][0] != '/' || argv[2][0] != '/' ||
        strlen(argv[1]) >= sizeof(grant.driver_path) ||
        strlen(argv[2]) >= sizeof(grant.shim_path)) {
        fprintf(stderr, "usage: qgpu-mounts DRIVER SHIM (absolute paths of two libcuda.so.1)\n");
        return 2;
    }
    snprintf(grant.driver_path, sizeof(grant.driver_path), "%s", argv[1]);
    snprintf(grant.shim_path, sizeof(grant.shim_path), "%s", argv[2]);
    qg_nvml_beside(argv[2], nvml, sizeof(nvml));
    if (!qg_mounts_make(&grant, nvml, "", why, sizeof(why))) {
        puts(why);
        return 1;
    }
    if (!covered(argv[1], argv[2])) {
        printf("%s is still the driver after the shim was mounted over it\n", argv[1]);
        return 1;
    }
    if (!started(said, sizeof(said)) || said[0]) {
        printf("a program does not start well with the shim in /etc/ld.so.preload%s%s\n",
               said[0] ? ": " : "", said);
        return 1;
    }
    return 0;
}
