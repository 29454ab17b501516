/* SPDX-License-Identifier: Apache-2.0
 *
 * step_memory ROOT < CGROUPS: raises the memory limits of the step in which a process with that
 * cgroup file is, below ROOT in place of /sys/fs/cgroup. Prints why it could not.
 */
#include "spank_qgpu.h"

#include <stdio.h>

void slurm_error(const char *format, ...)
{
    (void)format;
}

int main(int argc, char **argv)
{
    char groups[8192], why[PATH_MAX + 256] = "";
    size_t len = fread(groups, 1, sizeof(groups) - 1, stdin);

    if (argc != 2)
        return 2;
    groups[len] = '\0';
    if (qg_memory_as_job(argv[1], groups, why, sizeof(why)))
        return 0;
    puts(why);
    return 1;
}
