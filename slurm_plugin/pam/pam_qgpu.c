/* SPDX-License-Identifier: Apache-2.0
 *
 * pam_qgpu.so, a session module for sshd. pam_slurm_adopt moves an ssh session into a job's
 * cgroups, and no SPANK plugin runs there. This module gives the session the job's limits, as
 * the SPANK plugin gives them to a task. It runs as root, in the process of sshd whose children
 * are the session's programs.
 *
 *   session [success=ok module_unknown=ignore ignore=ignore default=bad] pam_qgpu.so [run_dir=DIR]
 */
#include <limits.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include <security/pam_modules.h>

#include <security/pam_ext.h>

#include "../common/paths.h"
#include "../spank/spank_qgpu.h"
#include "qg_steps.h"

#define DEFAULT_RUN_DIR "/run/qgpu"
#define ENV_MAX         (128 * 1024) /* bytes of one variable: the kernel's own limit */
#define GROUPS_MAX      8192         /* of a cgroup file, as qg_steps.c reads it */

#define EXPORT __attribute__((visibility("default")))

static char preload[ENV_MAX], entry[ENV_MAX + 64];

/* Says why there is no session: to the user, and to the system's log. */
static int refuse(pam_handle_t *pam, uint64_t job, const char *why)
{
    pam_syslog(pam, LOG_ERR, "qgpu: job %lu: no session: %s", (unsigned long)job, why);
    pam_error(pam,
              "qgpu: this session does not run without the limits of job %lu: %s. Use srun "
              "--jobid=%lu --overlap --pty bash, or tell the administrators.",
              (unsigned long)job, why, (unsigned long)job);
    return PAM_SESSION_ERR;
}

/* In the cgroup of a job without a record the limits are not known. A session outside of all jobs
 * is none of qgpu's: an administrator's, or one that pam_slurm_adopt lets pass. So is root's. */
static int without_record(pam_handle_t *pam, uid_t uid)
{
    char text[GROUPS_MAX];
    char *dirs = slurp(getpid(), "cgroup", text, sizeof(text)) > 0 ? steps_job_dirs(text) : NULL;
    bool outside = dirs && !*dirs;

    free(dirs);
    if (outside || uid == 0)
        return PAM_IGNORE;
    pam_syslog(pam, LOG_ERR,
               "qgpu: no session for uid %u: it is in the cgroup of a job of Slurm that has no "
               "record in steps of run_dir",
               (unsigned)uid);
    pam_error(pam, "qgpu: this session is in a job of Slurm that qgpu does not know, so it would "
                   "run without limits. Use srun --jobid=JOB --overlap --pty bash, or tell the "
                   "administrators.");
    return PAM_SESSION_ERR;
}

static bool set(pam_handle_t *pam, const char *name, const char *value)
{
    return snprintf(entry, sizeof(entry), "%s=%s", name, value) < (int)sizeof(entry) &&
           pam_putenv(pam, entry) == PAM_SUCCESS;
}

static bool set_preload(pam_handle_t *pam, const struct qg_grant *grant, const char *nvml)
{
    const char *before = pam_getenv(pam, "LD_PRELOAD");

    return qg_preload_list(before ? before : "", grant->shim_path, nvml, preload,
                           sizeof(preload)) &&
           set(pam, "LD_PRELOAD", preload);
}

/* CUDA does not know an instance by the index that Slurm counts (spank/task.c: put_instance). */
static bool set_instance(pam_handle_t *pam, const struct qg_grant *grant)
{
    return grant->ncards != 1 || strncmp(grant->cards[0].uuid, "MIG-", 4) != 0 ||
           set(pam, "CUDA_VISIBLE_DEVICES", grant->cards[0].uuid);
}

static int govern(pam_handle_t *pam, struct qg_grant *grant, const char *path)
{
    char nvml[sizeof(grant->shim_path) + sizeof(QG_NVML_NAME)], why[2 * PATH_MAX + 512];
    bool mounted = grant->injection == QG_INJECT_MOUNT;

    qg_nvml_beside(grant->shim_path, nvml, sizeof(nvml));
    if (!qg_libraries_trusted(grant, nvml, why, sizeof(why)))
        return refuse(pam, grant->job_id, why);
    if (mounted && !qg_mounts_make(grant, nvml, "", why, sizeof(why)))
        return refuse(pam, grant->job_id, why);
    if (set(pam, QG_ENV_GRANT, mounted ? QG_TASK_GRANT : path) &&
        (mounted || set_preload(pam, grant, nvml)) && set_instance(pam, grant))
        return PAM_SUCCESS;
    return refuse(pam, grant->job_id, "its environment cannot be made");
}

static int with_grant(pam_handle_t *pam, uint64_t job, uid_t uid, const char *run_dir)
{
    struct qg_grant grant;
    char path[PATH_MAX], why[PATH_MAX + 256] = "";
    enum qg_read got =
        qg_grant_read(run_dir, (uint32_t)job, uid, &grant, path, sizeof(path), why, sizeof(why));

    if (got == QG_READ_NONE) /* the job has no card */
        return PAM_IGNORE;
    if (got != QG_READ_OK)
        return refuse(pam, job, why);
    if (grant.state == QG_GRANT_ACTIVE)
        return govern(pam, &grant, path);
    if (grant.state == QG_GRANT_REFUSED)
        return refuse(pam, job, grant.message);
    return set_instance(pam, &grant) ? PAM_SUCCESS : refuse(pam, job, "its environment is full");
}

/* run_dir of the module's arguments; NULL: they are wrong, and the log says so. */
static const char *run_dir_of(pam_handle_t *pam, int argc, const char **argv, char *out,
                              size_t size)
{
    const char *given = DEFAULT_RUN_DIR;
    char node[HOST_NAME_MAX + 1] = "";

    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "run_dir=/", 9) != 0) {
            pam_syslog(pam, LOG_ERR, "qgpu: '%s' is not known; the one argument is run_dir=DIR",
                       argv[i]);
            return NULL;
        }
        given = argv[i] + strlen("run_dir=");
    }
    gethostname(node, sizeof(node) - 1);
    node[strcspn(node, ".")] = '\0';
    return qg_expand_node(given, node, out, size) ? out : NULL;
}

EXPORT int pam_sm_open_session(pam_handle_t *pam, int flags, int argc, const char **argv)
{
    char run_dir[PATH_MAX];
    const char *name = NULL;

    (void)flags;
    if (!run_dir_of(pam, argc, argv, run_dir, sizeof(run_dir)))
        return PAM_SESSION_ERR;
    if (pam_get_user(pam, &name, NULL) != PAM_SUCCESS)
        return PAM_SESSION_ERR;
    const struct passwd *user = getpwnam(name);
    if (!user)
        return PAM_USER_UNKNOWN;
    uint64_t job = steps_job_of(run_dir, 0, getpid());
    if (job > UINT32_MAX)
        return PAM_SESSION_ERR;
    return job ? with_grant(pam, job, user->pw_uid, run_dir) : without_record(pam, user->pw_uid);
}

EXPORT int pam_sm_close_session(pam_handle_t *pam, int flags, int argc, const char **argv)
{
    (void)pam;
    (void)flags;
    (void)argc;
    (void)argv;
    return PAM_SUCCESS;
}
