/* SPDX-License-Identifier: Apache-2.0
 *
 * The Slurm job that a process belongs to by the text of its /proc/PID/cgroup.
 */
#ifndef QG_CGROUP_H
#define QG_CGROUP_H

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The number after `text`, if it is one that ends at one of the characters in `ends`. 0 = none. */
static inline uint64_t qg_number_ending_in(const char *text, const char *ends)
{
    char *end;

    if (!isdigit((unsigned char)*text))
        return 0;
    uint64_t value = strtoull(text, &end, 10);
    return *end == 0 || strchr(ends, *end) ? value : 0;
}

/* Job named by the outermost /job_N of the paths; a job cannot create one above its own. 0 = none.
 * The text is cut up. */
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
