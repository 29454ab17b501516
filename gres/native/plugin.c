/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The functions that Slurm calls. The gres has no device files: slurmctld counts it, and the plugin
 * passes the counts to Prolog, Epilog, job, step and task. It keeps no state between two calls, so
 * `scontrol reconfigure` loses nothing.
 */
#include "native.h"

#include <errno.h>
#include <inttypes.h>

extern int init(void)
{
    debug("%s: built for Slurm %s", plugin_type, SLURM_VERSION_STRING);
    return SLURM_SUCCESS;
}

extern QGN_FINI fini(void)
{
    QGN_FINI_END;
}

/* Called in slurmd, when it starts and at each `scontrol reconfigure`. If it fails, slurmd does not
 * start; its log has a line for each fault. */
extern int gres_p_node_config_load(list_t *records, node_config_load_t *config)
{
    (void)config;
    return qgn_kind.valid(records) ? SLURM_SUCCESS : SLURM_ERROR;
}

/* ---- job, step, task ---- */

/* Always writes the count, also 0, so that it replaces a value that the user set; the SPANK plugin
 * relies on it. It also removes an inherited SLURM_SHARDS_ON_NODE. gres/gpu leaves that in a
 * whole-card job that was submitted from inside a share. gres/shard, which comes after qgpu in
 * GresTypes, writes it again for a job that holds shards. */
static void set_count(char ***env, uint64_t count)
{
    env_array_overwrite_fmt(env, qgn_kind.task_count, "%" PRIu64, count / qgn_kind.task_unit);
    if (qgn_kind.clears)
        unsetenvp(*env, qgn_kind.clears);
}

extern void gres_p_job_set_env(char ***env, bitstr_t *bits, uint64_t count,
                               gres_internal_flags_t flags)
{
    (void)bits;
    (void)flags;
    set_count(env, count);
}

extern void gres_p_step_set_env(char ***env, bitstr_t *bits, uint64_t count,
                                gres_internal_flags_t flags)
{
    (void)bits;
    (void)flags;
    set_count(env, count);
}

/* Slurm has no count of a single task. This is the step's, which all its tasks share. */
extern void gres_p_task_set_env(char ***env, bitstr_t *bits, uint64_t count, bitstr_t *usable,
                                gres_internal_flags_t flags)
{
    (void)bits;
    (void)usable;
    (void)flags;
    set_count(env, count);
}

/* ---- Prolog and Epilog ---- */

/* Called in slurmctld with its own allocation, or in slurmd with the credential that slurmctld
 * signed; once for each type that the job holds. */
extern qgn_prep_t *qgn_build_env(gres_job_state_t *job)
{
    qgn_prep_t *prep = xmalloc(sizeof(*prep));

    prep->node_cnt = job->node_cnt;
    prep->gres_bit_alloc = xcalloc(prep->node_cnt, sizeof(*prep->gres_bit_alloc));
    prep->gres_cnt_node_alloc = xcalloc(prep->node_cnt, sizeof(*prep->gres_cnt_node_alloc));
    for (uint32_t i = 0; i < prep->node_cnt && job->gres_cnt_node_alloc; i++)
        prep->gres_cnt_node_alloc[i] = qgn_pack(job->gres_cnt_node_alloc[i], job->type_name);
    return prep;
}

/* A second type of the same gres is appended to the first. The node sees both and refuses the
 * job. */
static void add_value(char ***env, const char *name, const char *value)
{
    const char *before = *env ? getenvp(*env, name) : NULL;

    if (before) {
        char *both = xstrdup_printf("%s,%s", before, value);
        env_array_overwrite(env, name, both);
        xfree(both);
    } else {
        env_array_overwrite(env, name, value);
    }
}

extern void qgn_set_env(char ***env, qgn_prep_t *prep, int node)
{
    uint64_t count;
    enum qgn_class type;
    char *text;

    if (!prep || node < 0 || (uint32_t)node >= prep->node_cnt || !prep->gres_cnt_node_alloc)
        return;
    if (!qgn_unpack(prep->gres_cnt_node_alloc[node], &count, &type)) {
        error("%s: what came for this node is not packed by this plugin; slurmctld has another one",
              plugin_type);
        return;
    }
    if (!count)
        return;
    text = xstrdup_printf("%" PRIu64, count);
    add_value(env, qgn_kind.prep_count, text);
    xfree(text);
    if (qgn_kind.prep_class)
        add_value(env, qgn_kind.prep_class, qgn_class_name(type));
}

/* ---- functions that do nothing for a gres without devices ---- */

extern void gres_p_send_stepd(buf_t *buffer)
{
    (void)buffer;
}

extern void gres_p_recv_stepd(buf_t *buffer)
{
    (void)buffer;
}

extern list_t *gres_p_get_devices(void)
{
    return NULL;
}

extern void gres_p_step_hardware_init(bitstr_t *usable, char *settings)
{
    (void)usable;
    (void)settings;
}

extern void gres_p_step_hardware_fini(void)
{
}

#ifdef QGN_INFO_FUNCTIONS
extern int gres_p_get_job_info(gres_job_state_t *job, uint32_t node, enum gres_job_data_type type,
                               void *data)
{
    (void)job;
    (void)node;
    (void)type;
    (void)data;
    return EINVAL;
}

extern int gres_p_get_step_info(gres_step_state_t *step, uint32_t node,
                                enum gres_step_data_type type, void *data)
{
    (void)step;
    (void)node;
    (void)type;
    (void)data;
    return EINVAL;
}
#endif
