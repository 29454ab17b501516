/* SPDX-License-Identifier: Apache-2.0
 *
 * --procs N: the load of a job that has several processes on its card. They fork before the driver
 * is opened, because CUDA does not survive a fork.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workload.h"

static pid_t children[256];
static volatile sig_atomic_t stop_signal;

static void on_signal(int signal)
{
    stop_signal = signal;
}

static void pass_on(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (children[i] > 0)
            kill(children[i], SIGTERM);
    stop_signal = 0;
}

static int worst_status(unsigned count)
{
    int worst = 0, status;
    for (unsigned left = count; left;) {
        pid_t pid = waitpid(-1, &status, 0);
        if (stop_signal)
            pass_on(count);
        if (pid < 0 && errno != EINTR)
            break;
        if (pid <= 0)
            continue;
        for (unsigned i = 0; i < count; i++)
            if (children[i] == pid)
                children[i] = 0;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        worst = code > worst ? code : worst;
        left--;
    }
    return worst;
}

void fork_processes(struct options *options)
{
    if (options->procs == 1)
        return;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    pid_t parent = getpid();
    for (unsigned i = 0; i < options->procs; i++) {
        children[i] = fork();
        if (children[i] < 0) {
            perror("qgpu-workload: fork");
            pass_on(i);
            exit(EXIT_DRIVER);
        }
        if (children[i] == 0) {
            options->seed += i;
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            if (getppid() != parent)
                exit(EXIT_DRIVER);
            return;
        }
    }
    exit(worst_status(options->procs));
}
