/* SPDX-License-Identifier: Apache-2.0
 *
 * Drains the node with a reason that an admin understands. When a Prolog fails, slurmctld drains
 * the node with the reason "Prolog error". It keeps the reason of a node that is drained already.
 * So this has to come first.
 */
#include "hook.h"

#include <stdio.h>

#include "../common/paths.h"
#include "qg_printable.h"

/* Characters of the reason: enough for a sentence of advice, and still readable in `sinfo -R`.
 * Chosen, not measured. */
#define REASON_MAX 400

void hook_drain(const struct hook *hook, const char *reason)
{
    char node_arg[128], reason_arg[REASON_MAX + 16];
    char *argv[] = {"scontrol", "update", node_arg, "State=DRAIN", reason_arg, NULL};

    if (!hook->scontrol || !qg_node_name_ok(hook->node))
        return;
    snprintf(node_arg, sizeof(node_arg), "NodeName=%s", hook->node);
    snprintf(reason_arg, sizeof(reason_arg), "Reason=%.*s", REASON_MAX, reason);
    qg_printable(reason_arg);
    if (!hook_command(hook->scontrol, argv, NULL, 0))
        fprintf(stderr, "qgpu-hook: %s did not drain %s: the drain reason will be Slurm's own\n",
                hook->scontrol, hook->node);
}
