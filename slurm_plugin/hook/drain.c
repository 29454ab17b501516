/* SPDX-License-Identifier: Apache-2.0
 *
 * Draining the node with a reason that an admin understands. slurmctld drains it anyway when a
 * Prolog fails, but with the reason "Prolog error" only; it leaves the reason of a node alone that
 * is drained already, so ours has to be there first.
 */
#include "hook.h"

#include <stdio.h>

#include "../common/paths.h"

#define REASON_MAX 400 /* of the sentence: long enough to act on, short enough for sinfo -R */

void hook_drain(const struct hook *hook, const char *reason)
{
    char node_arg[128], reason_arg[REASON_MAX + 16];
    char *argv[] = {"scontrol", "update", node_arg, "State=DRAIN", reason_arg, NULL};

    if (!hook->scontrol || !qg_node_name_ok(hook->node))
        return;
    snprintf(node_arg, sizeof(node_arg), "NodeName=%s", hook->node);
    snprintf(reason_arg, sizeof(reason_arg), "Reason=%.*s", REASON_MAX, reason);
    for (char *c = reason_arg; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
    if (!hook_command(hook->scontrol, argv, NULL, 0))
        fprintf(stderr, "qgpu-hook: %s did not drain %s: the drain reason will be Slurm's own\n",
                hook->scontrol, hook->node);
}
