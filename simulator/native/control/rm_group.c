/* SPDX-License-Identifier: Apache-2.0
 *
 * Channel groups and the work that they carry: what is commanded to a group happens to its context
 * on its engines.
 */
#include <cuda.h>

#include "gpu.h"
#include "rm.h"

/* The hardware's slice is 8 bits of mantissa shifted by up to 15, in microseconds here (guessed:
 * the unit). */
static uint64_t hardware_us(uint64_t us)
{
    unsigned shift = 0;
    while (us >> shift > 0xff && shift < 15)
        shift++;
    us = us >> shift > 0xff ? 0xff : us >> shift;
    return us << shift;
}

bool rm_group_runs(const struct rm_group *group)
{
    return group->scheduled && (!group->channels || group->disabled < group->channels);
}

void rm_group_apply(struct rm_group *group)
{
    if (!group->ctx)
        return;
    gpu_card_sync(group->card);
    for (unsigned e = 0; e < MODEL_ENGINES; e++)
        if (group->engines & 1u << e)
            model_hold(group->ctx->model, e, !rm_group_runs(group), group->lenient);
}

/* A slice of nothing is the shortest there is (guessed). */
void rm_group_slice(struct rm_group *group, uint64_t us)
{
    uint64_t real = hardware_us(us);
    group->slice_us = us;
    if (!group->ctx)
        return;
    gpu_card_sync(group->card);
    for (unsigned e = 0; e < MODEL_ENGINES; e++)
        if (group->engines & 1u << e)
            model_set_slice(group->ctx->model, e, real ? real * 1000 : 1000);
}

/* Its context cannot run any more. */
void rm_group_gone(struct rm_group *group)
{
    struct gpu_ctx *ctx = group->ctx;
    if (!ctx)
        return;
    gpu_card_sync(ctx->card);
    for (unsigned e = 0; e < MODEL_ENGINES; e++)
        if (ctx->groups[e] == group)
            ctx->groups[e] = NULL;
    gpu_ctx_poison(ctx, CUDA_ERROR_LAUNCH_FAILED);
}

bool rm_bind(struct gpu_ctx *ctx, struct rm_file *file, uint32_t client_handle,
             const uint32_t groups[MODEL_ENGINES])
{
    struct rm_client *client = file ? rm_client_find(file, client_handle) : NULL;
    for (unsigned e = 0; e < MODEL_ENGINES; e++) {
        struct rm_object *object = client ? rm_object_find(client, groups[e]) : NULL;
        struct rm_group *group =
            object && object->class_id == RM_CLASS_GROUP ? object->group : NULL;
        if (!group || group->card != ctx->card || (group->ctx && group->ctx != ctx)) {
            gpu_ctx_unbind(ctx);
            return false;
        }
        group->engines = group->ctx ? group->engines | 1u << e : 1u << e;
        group->ctx = ctx;
        ctx->groups[e] = group;
    }
    for (unsigned e = 0; e < MODEL_ENGINES; e++) {
        rm_group_apply(ctx->groups[e]);
        if (ctx->groups[e]->slice_us != ctx->card->model.params.slice_ns / 1000)
            rm_group_slice(ctx->groups[e], ctx->groups[e]->slice_us);
    }
    return true;
}
