/* SPDX-License-Identifier: Apache-2.0
 *
 * Does a job concern qgpu at all? proof.h has the declaration.
 */
#include "proof.h"

#include <stdlib.h>
#include <string.h>

/* Does a field begin with a tag that promises a card? The tag of a job that has whole nodes does
 * not. A tag further behind does not count: it may be a user's text, which would make the Prolog of
 * any node depend on qgpud. */
static bool promises(const char *field)
{
    const char *tag = field ? field + strspn(field, " \t\n\r\v\f") : "";

    return strncmp(tag, "qgpu/1", sizeof("qgpu/1") - 1) == 0 &&
           strncmp(tag, "qgpu/1 node", sizeof("qgpu/1 node") - 1) != 0;
}

bool qg_env_concerns_us(void)
{
    const char *gpus = getenv("SLURM_JOB_GPUS");
    const char *comment = getenv("SLURM_JOB_COMMENT");
    const char *extra = getenv("SLURM_JOB_EXTRA");
    const char *native = getenv("QGPU_NATIVE_SHARE");

    return (gpus && *gpus) || (native && *native) || promises(comment) || promises(extra);
}
