/* SPDX-License-Identifier: Apache-2.0
 *
 * Prepares one task, in the process that slurmstepd forked and that will exec the user's program.
 * As root it reads the grant and makes the sealed descriptor. As the user, it sets the environment
 * or prints why the job must not start. A fault of qgpu never stops a job without a card.
 */
#include "spank_qgpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/paths.h"

#define ENV_MAX (128 * 1024) /* bytes of one variable: the kernel's own limit (MAX_ARG_STRLEN) */

enum verdict { LEAVE_ALONE, GOVERN, REFUSE };

/* State that the hook as root leaves for the hook as the user, in the same process. */
static struct {
    enum verdict verdict;
    int fd;
    char path[PATH_MAX]; /* of the grant, where the task can read it */
    char nvml[sizeof(((struct qg_grant *)0)->shim_path) + sizeof(QG_NVML_NAME)];
    struct qg_grant grant;
    char sentence[PATH_MAX + 1024];
} task;

/* The node's name, from slurmstepd's own environment. That is root's and names its slurmd (a
 * machine may have several). The job's environment is not used, as the user sets it. */
void qg_node_name(char *out, size_t size)
{
    const char *node = getenv("SLURMD_NODENAME");

    out[0] = '\0';
    if (node && *node)
        snprintf(out, size, "%s", node);
    else if (gethostname(out, size) == 0)
        out[size - 1] = '\0';
    if (!(node && *node))
        out[strcspn(out, ".")] = '\0';
}

/* Does the task hold a card? Slurm then sets one of these variables. A user who sets one in a job
 * without a card only gets his own job refused. */
static bool holds_card(spank_t sp)
{
    static const struct {
        const char *name;
        bool is_count; /* "0" is no card here, and the first card in the others */
    } vars[] = {{"SLURM_JOB_GPUS", false},
                {"SLURM_STEP_GPUS", false},
                {"SLURM_SHARDS_ON_NODE", true},
                {"SLURM_GPUS_ON_NODE", true}};
    char value[4096];

    for (size_t i = 0; i < sizeof(vars) / sizeof(vars[0]); i++) {
        spank_err_t err = spank_getenv(sp, vars[i].name, value, sizeof(value));
        if (err == ESPANK_NOSPACE)
            return true;
        if (err == ESPANK_SUCCESS && value[0] && !(vars[i].is_count && strcmp(value, "0") == 0))
            return true;
    }
    return false;
}

static bool get_env(spank_t sp, const char *name, char *value, size_t size)
{
    return spank_getenv(sp, name, value, (int)size) == ESPANK_SUCCESS;
}

/* Does the job hold a share of a card, although its grant says whole cards? It can only be known
 * where gres_qgpu.so is installed. That always writes QGPU_ON_NODE, which for whole cards is 0 or
 * hundreds, and removes an inherited SLURM_SHARDS_ON_NODE. A multiple of 100 there means whole
 * cards as well (Slurm before 23.11.5). */
static bool holds_shares(spank_t sp)
{
    char ours[16], shards[32];

    return get_env(sp, "QGPU_ON_NODE", ours, sizeof(ours)) && strtoull(ours, NULL, 10) % 100 == 0 &&
           get_env(sp, "SLURM_SHARDS_ON_NODE", shards, sizeof(shards)) &&
           strtoull(shards, NULL, 10) % 100 != 0;
}

static void refuse(const char *sentence)
{
    task.verdict = REFUSE;
    snprintf(task.sentence, sizeof(task.sentence), "%s", sentence);
}

static void refuse_unreadable(uint32_t job_id, const char *why)
{
    char text[PATH_MAX + 768];

    slurm_error("qgpu: spank: job %u: %s", job_id, why);
    snprintf(text, sizeof(text),
             "job %u holds a GPU whose grant cannot be read, and does not run without its limits: "
             "%s. Tell the "
             "administrators; submitting again on another node may work.",
             job_id, why);
    refuse(text);
}

static void refuse_again(uint32_t job_id, const char *why)
{
    char text[PATH_MAX + 768];

    slurm_info("qgpu: spank: job %u: %s", job_id, why);
    snprintf(text, sizeof(text),
             "job %u does not run without its limits: %s. Submit it again as a new job.", job_id,
             why);
    refuse(text);
}

static bool put_mounts(spank_t sp, uint32_t job_id)
{
    static char library_path[ENV_MAX];
    char why[PATH_MAX + 512], text[PATH_MAX + 640];

    if (!get_env(sp, "LD_LIBRARY_PATH", library_path, sizeof(library_path)))
        library_path[0] = '\0';
    if (qg_mounts_make(&task.grant, task.nvml, library_path, why, sizeof(why))) {
        if (why[0])
            slurm_error("qgpu: spank: job %u: %s", job_id, why);
        snprintf(task.path, sizeof(task.path), "%s", QG_TASK_GRANT);
        return true;
    }
    snprintf(text, sizeof(text), "the driver's files could not be covered (injection: mount): %s",
             why);
    refuse_unreadable(job_id, text);
    return false;
}

static void seal_active(spank_t sp, uint32_t job_id, const char *run_dir)
{
    char note[2 * PATH_MAX + 256];

    qg_nvml_beside(task.grant.shim_path, task.nvml, sizeof(task.nvml));
    if (!qg_libraries_trusted(&task.grant, task.nvml, note, sizeof(note))) {
        refuse_unreadable(job_id, note);
        return;
    }
    if (task.grant.injection == QG_INJECT_MOUNT && !put_mounts(sp, job_id))
        return;
    task.fd = qg_grant_seal(&task.grant);
    if (task.fd < 0) {
        char why[256];
        snprintf(why, sizeof(why), "its sealed copy could not be made: %s", strerror(errno));
        refuse_unreadable(job_id, why);
        return;
    }
    task.verdict = GOVERN;
    qg_memory_prepare(&task.grant, job_id);
    /* Only the report uses this file, so the job runs without it too. */
    if (!qg_grant_note_fetched(run_dir, job_id, note, sizeof(note)))
        slurm_error("qgpu: spank: job %u: %s", job_id, note);
}

void qg_task_as_root(spank_t sp, const struct qg_args *args)
{
    char node[128], run_dir[PATH_MAX], why[PATH_MAX + 256] = "";
    uint32_t job_id = 0;
    uid_t uid = (uid_t)-1;

    task.verdict = LEAVE_ALONE;
    task.fd = -1;
    if (spank_get_item(sp, S_JOB_ID, &job_id) != ESPANK_SUCCESS ||
        spank_get_item(sp, S_JOB_UID, &uid) != ESPANK_SUCCESS) {
        slurm_error("qgpu: spank: slurmstepd does not give the job's number and user");
        if (holds_card(sp))
            refuse_unreadable(job_id, "the job's number is unknown");
        return;
    }
    qg_node_name(node, sizeof(node));
    enum qg_read got = QG_READ_NO_DIR;
    if (qg_expand_node(args->run_dir, node, run_dir, sizeof(run_dir)))
        got = qg_grant_read(run_dir, job_id, uid, &task.grant, task.path, sizeof(task.path), why,
                            sizeof(why));
    else
        snprintf(why, sizeof(why), "run_dir=%s cannot be used with node name '%s'", args->run_dir,
                 node);

    if (got == QG_READ_OVER)
        refuse_again(job_id, why);
    else if (got == QG_READ_BROKEN || (got == QG_READ_NO_DIR && holds_card(sp)))
        refuse_unreadable(job_id, why);
    else if (got == QG_READ_OK && task.grant.state == QG_GRANT_REFUSED)
        refuse(task.grant.message[0] ? task.grant.message
                                     : "this job was refused without a reason");
    else if (got == QG_READ_OK && task.grant.state == QG_GRANT_ACTIVE)
        seal_active(sp, job_id, run_dir);
    else if (got == QG_READ_OK && task.grant.state == QG_GRANT_WHOLE && holds_shares(sp))
        refuse("this job holds a share of a card (gres/shard) and a note that says it has a whole "
               "card: submit it again "
               "with --gres=qgpu:N, N percent of a card");
}

static char env_old[ENV_MAX], env_new[ENV_MAX];

static bool set_or_log(spank_t sp, const char *name, const char *value)
{
    spank_err_t err = spank_setenv(sp, name, value, 1);

    if (err != ESPANK_SUCCESS)
        slurm_error("qgpu: spank: %s could not be set: %s", name, spank_strerror(err));
    return err == ESPANK_SUCCESS;
}

/* Sets LD_PRELOAD. With injection by mounts the shim needs no variable; one would only cause errors
 * in containers without its path, so the entries are removed. */
static bool put_preload(spank_t sp)
{
    bool mounted = task.grant.injection == QG_INJECT_MOUNT;
    spank_err_t err = spank_getenv(sp, "LD_PRELOAD", env_old, sizeof(env_old));

    if (err == ESPANK_NOSPACE)
        return false;
    if (err != ESPANK_SUCCESS)
        env_old[0] = '\0';
    if (!qg_preload_list(env_old, mounted ? NULL : task.grant.shim_path, task.nvml, env_new,
                         sizeof(env_new)))
        return false;
    if (env_new[0])
        return set_or_log(sp, "LD_PRELOAD", env_new);
    if (err == ESPANK_SUCCESS)
        spank_unsetenv(sp, "LD_PRELOAD");
    return true;
}

/* Sets CUDA_VISIBLE_DEVICES to the UUID of the job's MIG instance. Slurm does that only for
 * instances that it detected itself. For those of gres.conf it gives an index, which means a card
 * to CUDA. A process can use one instance only. A job with several keeps Slurm's value per
 * task. */
static bool put_instance(spank_t sp)
{
    const struct qg_grant *grant = &task.grant;

    if (grant->ncards != 1 || strncmp(grant->cards[0].uuid, "MIG-", 4) != 0)
        return true;
    return set_or_log(sp, "CUDA_VISIBLE_DEVICES", grant->cards[0].uuid);
}

static bool govern(spank_t sp)
{
    char number[16];

    snprintf(number, sizeof(number), "%d", task.fd);
    /* Checked as the user: ld.so would only print that it cannot preload the shim. It would start
     * the program without it. */
    if (access(task.grant.shim_path, R_OK) != 0) {
        snprintf(task.sentence, sizeof(task.sentence),
                 "the library that keeps the limits of this job cannot be read: %s: %s. "
                 "Tell the administrators; submitting again on another node may work.",
                 task.grant.shim_path, strerror(errno));
        return false;
    }
    return set_or_log(sp, QG_ENV_GRANT_FD, number) && set_or_log(sp, QG_ENV_GRANT, task.path) &&
           put_preload(sp) && put_instance(sp);
}

/* Removes this job's options from the environment. Otherwise a job that is submitted from inside it
 * would get them too. */
static void remove_options(spank_t sp)
{
    /* Slurm passes options to a job's programs in these variables. sbatch, salloc and srun take
     * them as options of their own. */
    static const char *const names[] = {"SLURM_SPANK_" QG_SPANK_MEM,
                                        "SLURM_SPANK_" QG_SPANK_CARDS,
                                        "SLURM_SPANK_" QG_SPANK_PLAN,
                                        "SLURM_SPANK__SLURM_SPANK_OPTION_qgpu_vram",
                                        "SLURM_SPANK__SLURM_SPANK_OPTION_qgpu_qgpu_cards",
                                        "_SLURM_SPANK_OPTION_qgpu_vram",
                                        "_SLURM_SPANK_OPTION_qgpu_qgpu_cards"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        spank_unsetenv(sp, names[i]);
}

/* Removes inherited variables. A job that is submitted from inside a governed job has those of that
 * job. */
static void remove_inherited(spank_t sp)
{
    char value[PATH_MAX];
    bool fd = spank_getenv(sp, QG_ENV_GRANT_FD, value, sizeof(value)) != ESPANK_ENV_NOEXIST;
    bool path = spank_getenv(sp, QG_ENV_GRANT, value, sizeof(value)) != ESPANK_ENV_NOEXIST;

    if (!fd && !path)
        return;
    spank_unsetenv(sp, QG_ENV_GRANT_FD);
    spank_unsetenv(sp, QG_ENV_GRANT);
    if (spank_getenv(sp, "LD_PRELOAD", env_old, sizeof(env_old)) != ESPANK_SUCCESS)
        return;
    if (!qg_preload_list(env_old, NULL, "", env_new, sizeof(env_new)))
        return;
    if (env_new[0])
        set_or_log(sp, "LD_PRELOAD", env_new);
    else
        spank_unsetenv(sp, "LD_PRELOAD");
}

void qg_task_as_user(spank_t sp)
{
    remove_options(sp);
    if (task.verdict == GOVERN && !govern(sp)) {
        task.verdict = REFUSE;
        if (!task.sentence[0])
            refuse("the limits of this job could not be put into its environment (is LD_PRELOAD "
                   "longer than 128 KiB?)");
    }
    if (task.verdict == GOVERN)
        qg_moved_wait(&task.grant, (uint32_t)task.grant.job_id);
    if (task.verdict == LEAVE_ALONE) {
        remove_inherited(sp);
        if (task.grant.state == QG_GRANT_WHOLE)
            put_instance(sp);
    }
    if (task.verdict != REFUSE)
        return;
    dprintf(STDERR_FILENO, "qgpu: %s\n", task.sentence);
    /* Not a return code: Slurm ignores errors of an optional plugin, and the program would start
     * without limits. */
    _exit(1);
}
