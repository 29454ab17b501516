/* SPDX-License-Identifier: Apache-2.0
 *
 * qgpu-hook prolog|epilog --run-dir DIR --deadline-ms N [--connect-ms N] [--scontrol PATH]
 *
 * slurmd's Prolog and Epilog scripts exec this program. It sends the job's environment to qgpud and
 * exits with qgpud's answer. A static C program takes about a millisecond, where the start of a
 * Python program takes a hundred. Exit status 0: the job may start. 1: the node is broken, and
 * Slurm drains it. 2: wrong usage, so the node is broken as well.
 */
#include "hook.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/paths.h"
#include "../common/proof.h"
#include "qgpu_abi.h"

/* An Epilog tries to connect for 500 ms only. The end of a job should not wait for a daemon that is
 * not there. Chosen, not measured. */
#define EPILOG_CONNECT_NS 500000000LL
/* Two hours: reclaim.deadline of qgpu.yaml may be one. Chosen, not measured. */
#define MAX_DEADLINE_MS 7200000L

static int usage(void)
{
    fprintf(stderr, "qgpu-hook: usage: qgpu-hook prolog|epilog --run-dir DIR --deadline-ms N "
                    "[--connect-ms N] [--scontrol PATH]\n");
    return 2;
}

static bool all_digits(const char *text)
{
    size_t len = text ? strlen(text) : 0;

    return len > 0 && len < 20 && strspn(text, "0123456789") == len;
}

/* Returns 0; or the exit status, after it printed what is wrong. */
static int parse(struct hook *hook, int argc, char **argv)
{
    const char *run_dir = NULL;
    long deadline_ms = 0, connect_ms = MAX_DEADLINE_MS;

    if (argc < 2 || (strcmp(argv[1], "prolog") != 0 && strcmp(argv[1], "epilog") != 0))
        return usage();
    hook->kind = argv[1][0] == 'p' ? HOOK_PROLOG : HOOK_EPILOG;
    for (int i = 2; i < argc; i += 2) {
        if (i + 1 >= argc)
            return usage();
        if (strcmp(argv[i], "--run-dir") == 0)
            run_dir = argv[i + 1];
        else if (strcmp(argv[i], "--scontrol") == 0)
            hook->scontrol = argv[i + 1];
        else if (strcmp(argv[i], "--deadline-ms") == 0 && all_digits(argv[i + 1]))
            deadline_ms = strtol(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--connect-ms") == 0 && all_digits(argv[i + 1]))
            connect_ms = strtol(argv[i + 1], NULL, 10);
        else
            return usage();
    }
    if (!run_dir || *run_dir != '/' || deadline_ms < 1 || deadline_ms > MAX_DEADLINE_MS ||
        connect_ms > MAX_DEADLINE_MS)
        return usage();
    if (hook->scontrol && *hook->scontrol != '/')
        return usage(); /* PATH is unset in a Prolog */
    if (!qg_expand_node(run_dir, hook->node, hook->run_dir, sizeof(hook->run_dir))) {
        fprintf(stderr,
                "qgpu-hook: --run-dir %s: %%n needs SLURMD_NODENAME, which slurmd sets; it is %s\n",
                run_dir, hook->node ? hook->node : "missing");
        return 1;
    }
    hook->deadline_ns = hook_now_ns() + deadline_ms * 1000000LL;
    hook->connect_ns = connect_ms * 1000000LL;
    if (hook->kind == HOOK_EPILOG && hook->connect_ns > EPILOG_CONNECT_NS)
        hook->connect_ns = EPILOG_CONNECT_NS;
    return 0;
}

/* The node cannot run GPU jobs. Writes the reason to a file on the node, to Slurm and to slurmd's
 * log. */
static int fail_node(const struct hook *hook, const char *sentence)
{
    fprintf(stderr, "%s\n", sentence);
    hook_write_last_failure(hook, sentence);
    hook_drain(hook, sentence);
    return 1;
}

/* Slurm does not load qgpu's SPANK plugin on this node, or that of another release: the job's tasks
 * would run without limits. */
static int fail_unproven(const struct hook *hook, const char *why)
{
    char sentence[HOOK_TEXT_MAX + PATH_MAX];
    const char *node = hook->node ? hook->node : "NODE";

    snprintf(sentence, sizeof(sentence),
             "qgpu: Slurm did not run qgpu's SPANK plugin for job %s: see that plugstack.conf has "
             "its line with this "
             "run_dir, that it is built for this Slurm (grep spank in slurmd's log), restart "
             "slurmd, then scontrol "
             "update nodename=%s state=resume (%s)",
             hook->job_id, node, why);
    return fail_node(hook, sentence);
}

static int run_prolog(struct hook *hook)
{
    char text[HOOK_TEXT_MAX] = "", sentence[HOOK_TEXT_MAX + PATH_MAX], why[HOOK_TEXT_MAX] = "";
    bool proven = qg_proof_take(hook->run_dir, why, sizeof(why));

    /* If qgpud never ran on this node, there is no directory for a proof either. The cause is then
     * the missing qgpud, which hook_ask() reports. */
    if (!proven && hook_daemon_was_here(hook))
        return fail_unproven(hook, why);
    hook_query_allocation(hook);
    int status = hook_ask(hook, text, sizeof(text));
    if (status == 0 && !proven)
        return fail_unproven(hook, why);
    if (status == 0) {
        if (*text)
            fprintf(stderr, "qgpu: %s\n", text);
        return 0;
    }
    if (status > 0) {
        snprintf(sentence, sizeof(sentence), "qgpu: %s",
                 *text ? text : "qgpud refused without saying why");
        fail_node(hook, sentence);
        return status;
    }
    snprintf(sentence, sizeof(sentence),
             "qgpu: qgpud on this node does not answer at %s/%s: start it, then scontrol update "
             "nodename=%s "
             "state=resume (%s)",
             hook->run_dir, QG_SOCK_HOOK, hook->node ? hook->node : "NODE", text);
    return fail_node(hook, sentence);
}

/* An Epilog never drains the node. If qgpud does not answer, a file notes that the job ended; qgpud
 * reads it when it starts. */
static int run_epilog(const struct hook *hook)
{
    char text[HOOK_TEXT_MAX] = "", why[HOOK_TEXT_MAX] = "";
    int status = hook_ask(hook, text, sizeof(text));

    if (status >= 0) {
        if (*text)
            fprintf(stderr, "qgpu: epilog: %s\n", text);
        return 0;
    }
    fprintf(stderr, "qgpu: epilog: qgpud did not answer (%s): the end of job %s is noted for it\n",
            text, hook->job_id);
    if (!hook_leave_ended_marker(hook, why, sizeof(why)))
        fprintf(stderr, "qgpu: epilog: the note could not be written: %s\n", why);
    return 0;
}

int main(int argc, char **argv)
{
    struct hook hook = {.node = getenv("SLURMD_NODENAME"), .job_id = getenv("SLURM_JOB_ID")};
    int rc = parse(&hook, argc, argv);

    if (hook.node && !*hook.node)
        hook.node = NULL;
    if (rc == 0 && !all_digits(hook.job_id)) {
        fprintf(stderr, "qgpu-hook: SLURM_JOB_ID is missing or not a number: slurmd sets it for a "
                        "Prolog or Epilog\n");
        rc = 2;
    }
    if (rc != 0)
        return hook.kind == HOOK_EPILOG ? 0 : rc;
    bool ours = qg_env_concerns_us();
    if (ours && hook.kind == HOOK_EPILOG)
        qg_proof_drop(hook.run_dir);
    if (!ours && (hook.kind == HOOK_PROLOG || !hook_has_grant(&hook)))
        return 0; /* a job without a card and a tag must not depend on qgpud */
    return hook.kind == HOOK_PROLOG ? run_prolog(&hook) : run_epilog(&hook);
}
