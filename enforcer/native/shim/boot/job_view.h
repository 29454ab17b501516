/* SPDX-License-Identifier: Apache-2.0
 *
 * Between qgpu's libcuda.so.1 and its libnvidia-ml.so.1, which are installed side by side.
 */
#ifndef QG_JOB_VIEW_H
#define QG_JOB_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "qgpu_abi.h"

struct qgpu_view {
    uint64_t cap, used;            /* bytes of the job on the card */
    const struct qg_job_page *job; /* all processes in it belong to the job */
};

/* name: qg_card_name(). False: this process is not registered for that card. */
bool qgpu_job_view(const char *name, struct qgpu_view *out);

#endif
