/* SPDX-License-Identifier: Apache-2.0
 *
 * The variables that the hook sends to qgpud. All others are left out. The user sets SPANK_*. A
 * later slurmd may export variables that were not reviewed for a daemon of root.
 */
#include "hook.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text field starts with the tag. So the end of a long one may be cut off. Any other value must
 * be whole. */
struct variable {
    const char *name;
    bool may_truncate;
};

static const struct variable VARIABLES[] = {
    {"SLURM_JOB_ID", false},
    {"SLURM_JOB_UID", false},
    {"SLURM_JOB_GID", false},
    {"SLURM_JOB_USER", false},
    {"SLURM_JOB_ACCOUNT", false},
    {"SLURM_JOB_PARTITION", false},
    {"SLURM_JOB_QOS", false},
    {"SLURM_JOB_COMMENT", true},
    {"SLURM_JOB_EXTRA", true},
    {"SLURM_JOB_GPUS", false},
    {"SLURM_JOB_RESTART_COUNT", false},
    {"QGPU_NATIVE_CLASS", false},
    {"QGPU_NATIVE_SHARE", false},
    {"QGPU_NATIVE_MEM", false},
    {"SLURM_JOB_NODELIST", true},
    {"SLURM_CLUSTER_NAME", false},
    {"SLURMD_NODENAME", false},
    {"SLURM_SCRIPT_CONTEXT", false},
    {"CUDA_VISIBLE_DEVICES", false},
    {"SLURM_JOB_EXIT_CODE", false},
};

/* Appends NAME=VALUE and a NUL. Returns the new length; without room or a value it is unchanged. */
static size_t append(char *out, size_t used, size_t size, const struct variable *var,
                     const char *value)
{
    size_t name_len = strlen(var->name);

    if (!value)
        return used;
    size_t len = strlen(value);
    if (len > HOOK_VALUE_MAX) {
        if (!var->may_truncate) {
            fprintf(stderr, "qgpu-hook: %s is longer than %u bytes and was left out\n", var->name,
                    HOOK_VALUE_MAX);
            return used;
        }
        len = HOOK_VALUE_MAX;
    }
    if (used + name_len + 1 + len + 1 > size)
        return used;
    memcpy(out + used, var->name, name_len);
    used += name_len;
    out[used++] = '=';
    memcpy(out + used, value, len);
    used += len;
    out[used++] = '\0';
    return used;
}

size_t hook_pack_env(const struct hook *hook, char *out, size_t size)
{
    const char *kind = hook->kind == HOOK_PROLOG ? "prolog" : "epilog";
    size_t used = (size_t)snprintf(out, size, "%s %s", HOOK_PROTOCOL, kind) + 1;

    for (size_t i = 0; i < sizeof(VARIABLES) / sizeof(VARIABLES[0]); i++)
        used = append(out, used, size, &VARIABLES[i], getenv(VARIABLES[i].name));
    if (hook->allocated[0])
        used =
            append(out, used, size, &(struct variable){"QGPU_ALLOCATED", false}, hook->allocated);
    return used;
}
