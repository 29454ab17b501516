/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the Slurm job of a process in the text of its /proc/PID/cgroup.
 */
#ifndef QG_CGROUP_H
#define QG_CGROUP_H

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The number at the start of `text`. It must end with the text or at a character of `ends`. 0 =
 * there is no such number. */
static inline uint64_t qg_number_ending_in(const char *text, const char *ends)
{
    char *end;

    if (!isdigit((unsigned char)*text))
        return 0;
    uint64_t value = strtoull(text, &end, 10);
    return *end == 0 || strchr(ends, *end) ? value : 0;
}

/* The job of the outermost /job_N in the paths. A job can create cgroups below its own, but not
 * above it. 0 = none. Changes the text. */
static inline uint64_t qg_job_of_cgroups(char *text)
{
    char *rest;

    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (!strstr(line, "slurm"))
            continue;
        for (char *at = strstr(line, "/job_"); at; at = strstr(at + 1, "/job_")) {
            uint64_t job = qg_number_ending_in(at + 5, "/");
            if (job)
                return job;
        }
    }
    return 0;
}

#endif
