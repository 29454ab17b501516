/* SPDX-License-Identifier: Apache-2.0
 *
 * Draining the node with a reason that an admin understands. slurmctld drains it anyway when a Prolog fails, but
 * with the reason "Prolog error" only; it leaves the reason of a node alone that is drained already, so ours has
 * to be there first. Slurm warns of Slurm commands in a Prolog: this one runs on a broken node only, and never
 * longer than five seconds.
 */
#include "hook.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../common/paths.h"

#define DRAIN_LIMIT_NS 5000000000LL
#define REASON_MAX 400 /* of the sentence: long enough to act on, short enough for sinfo -R */

static void exec_scontrol(const struct hook *hook, const char *node_arg, const char *reason_arg)
{
    static char conf[PATH_MAX + 16];
    char *argv[] = {(char *)hook->scontrol, "update", (char *)node_arg, "State=DRAIN", (char *)reason_arg, NULL};
    char *env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL, NULL};
    const char *slurm_conf = getenv("SLURM_CONF");
    int null = open("/dev/null", O_RDWR);

    if (slurm_conf && snprintf(conf, sizeof(conf), "SLURM_CONF=%s", slurm_conf) < (int)sizeof(conf))
        env[1] = conf;
    if (null >= 0) {
        dup2(null, 0);
        dup2(null, 1);
    }
    setpgid(0, 0);
    execve(hook->scontrol, argv, env);
    fprintf(stderr, "qgpu-hook: %s cannot be run\n", hook->scontrol);
    _exit(127);
}

static int wait_limited(pid_t pid)
{
    int64_t until = hook_now_ns() + DRAIN_LIMIT_NS;
    int status = 0;

    while (hook_now_ns() < until) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return status;
}

void hook_drain(const struct hook *hook, const char *reason)
{
    char node_arg[128], reason_arg[REASON_MAX + 16];

    if (!hook->scontrol || !qg_node_name_ok(hook->node))
        return;
    snprintf(node_arg, sizeof(node_arg), "NodeName=%s", hook->node);
    snprintf(reason_arg, sizeof(reason_arg), "Reason=%.*s", REASON_MAX, reason);
    for (char *c = reason_arg; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
    pid_t pid = fork();
    if (pid == 0)
        exec_scontrol(hook, node_arg, reason_arg);
    if (pid < 0) {
        fprintf(stderr, "qgpu-hook: no process for %s: the drain reason will be Slurm's own\n", hook->scontrol);
        return;
    }
    int status = wait_limited(pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fprintf(stderr, "qgpu-hook: %s did not drain %s: the drain reason will be Slurm's own\n", hook->scontrol,
                hook->node);
}
