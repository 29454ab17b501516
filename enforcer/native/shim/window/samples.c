/* SPDX-License-Identifier: Apache-2.0
 *
 * Samples: pairs of events around launches, from which estimates are learned (samples.h).
 */
#include "window/samples.h"
#include "driver/relax.h"

#include <stdlib.h>
#include <string.h>

/* count: Samples are under way per context at a time, each a pair of events. Evidence: bound. */
#define PAIRS 16u

struct qg_sample {
    CUevent start, end; /* NULL: not created */
    struct group *group;
    const void *function;
    struct qg_pages *pages;
    uint64_t changes;    /* of the gate, when the start was recorded */
    uint64_t started_ns; /* when the start was recorded */
    uint64_t gap_ns;     /* from then until the launch call had returned */
    /* taken, asked: one thread calls the driver with it, without the lock */
    enum { FREE, TAKEN, PENDING, ASKED } state;
};

/* Never freed; used again when its context is gone and no thread calls the driver with its events
 * any more. */
static struct group {
    CUcontext context; /* NULL: gone */
    unsigned busy;     /* taken or asked */
    struct qg_sample samples[PAIRS];
    struct group *next;
} *groups; /* under qg_window_lock */

void qg_samples_after_fork(void)
{
    groups = NULL; /* the parent's */
}

/* Under the lock, like all down to give(). */
static struct group *group_of(CUcontext context, bool make)
{
    struct group *group, *unused = NULL;
    for (group = groups; group && group->context != context; group = group->next)
        if (!group->context && !group->busy)
            unused = group;
    if (group || !make)
        return group;
    if (!unused && (unused = calloc(1, sizeof(*unused))) != NULL) {
        unused->next = groups;
        groups = unused;
    }
    if (unused)
        unused->context = context;
    return unused;
}

static struct qg_sample *take(CUcontext context)
{
    struct group *group = context ? group_of(context, true) : NULL;
    for (unsigned i = 0; group && i < PAIRS; i++) {
        struct qg_sample *sample = &group->samples[i];
        if (sample->state != FREE)
            continue;
        sample->group = group;
        sample->state = TAKEN;
        group->busy++;
        return sample;
    }
    return NULL;
}

static void forget_events(struct group *group)
{
    if (!group->context && !group->busy)
        memset(group->samples, 0, sizeof(group->samples));
}

/* No driver call with its events is under way any more. */
static void give(struct qg_sample *sample, bool pending)
{
    sample->state = pending ? PENDING : FREE;
    sample->group->busy--;
    forget_events(sample->group);
}

void qg_sample_drop(struct qg_sample *sample)
{
    give(sample, false);
}

void qg_samples_context_gone(CUcontext context)
{
    pthread_mutex_lock(&qg_window_lock);
    struct group *group = group_of(context, false);
    if (group) {
        group->context = NULL;
        forget_events(group);
    }
    pthread_mutex_unlock(&qg_window_lock);
}

void qg_samples_forget(const void *function)
{
    for (struct group *group = groups; group; group = group->next)
        for (unsigned i = 0; i < PAIRS; i++)
            if (!function || group->samples[i].function == function)
                group->samples[i].function = NULL;
}

/* Events belong to the current context. That need not be the stream's, and there need not be one.
 */
static bool make_events(struct qg_sample *sample, CUcontext context)
{
    CUcontext popped;
    CUevent start, end;
    if (QG_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return false;
    bool made = QG_REAL(cuEventCreate)(&start, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
    if (made && QG_REAL(cuEventCreate)(&end, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
        QG_REAL(cuEventDestroy_v2)(start);
        made = false;
    }
    QG_REAL(cuCtxPopCurrent_v2)(&popped);
    if (made) {
        sample->start = start;
        sample->end = end;
    }
    return made;
}

struct qg_sample *qg_sample_start(const struct qg_stream *stream, struct qg_pages *pages,
                                  const void *function)
{
    CUcontext context = stream->context->handle;
    pthread_mutex_lock(&qg_window_lock);
    struct qg_sample *sample = take(context);
    if (sample) {
        sample->pages = pages;
        sample->changes = __atomic_load_n(&pages->gate->changes, __ATOMIC_RELAXED);
        sample->function = function;
    }
    pthread_mutex_unlock(&qg_window_lock);
    if (!sample)
        return NULL;
    bool made = sample->start || make_events(sample, context);
    sample->started_ns = qg_now_ns();
    if (made && QG_REAL(cuEventRecord)(sample->start, stream->handle) == CUDA_SUCCESS)
        return sample;
    pthread_mutex_lock(&qg_window_lock);
    give(sample, false);
    pthread_mutex_unlock(&qg_window_lock);
    return NULL;
}

void qg_sample_end(struct qg_sample *sample, const struct qg_stream *stream)
{
    uint64_t launched = qg_now_ns();
    bool recorded = QG_REAL(cuEventRecord)(sample->end, stream->handle) == CUDA_SUCCESS;
    pthread_mutex_lock(&qg_window_lock);
    sample->gap_ns = launched - sample->started_ns;
    give(sample, recorded);
    pthread_mutex_unlock(&qg_window_lock);
}

/* False: the gate closed meanwhile, so other tenants may have been on the card too, and the sample
 * is useless. */
static bool undisturbed(const struct qg_sample *sample)
{
    return sample->changes == __atomic_load_n(&sample->pages->gate->changes, __ATOMIC_RELAXED);
}

/* True: the kernel ended soon after a launch that the window had held back, so it may have waited
 * for that launch. */
static bool freed(const struct qg_sample *sample, uint64_t took_ns)
{
    return qg_bypassed_ns >= sample->started_ns &&
           sample->started_ns + took_ns < qg_bypassed_ns + QG_STUCK_NS;
}

static void learn(const struct qg_sample *sample, float ms)
{
    uint64_t took_ns = (uint64_t)(ms * 1e6f);
    if (sample->function && undisturbed(sample))
        qg_function_learn(&qg_functions, sample->function, took_ns, sample->gap_ns,
                          freed(sample, took_ns));
}

void qg_samples_collect(CUcontext context)
{
    struct qg_sample *asked[PAIRS];
    CUresult results[PAIRS];
    float ms[PAIRS];
    unsigned count = 0;
    CUstreamCaptureMode mode;
    pthread_mutex_lock(&qg_window_lock);
    struct group *group = group_of(context, false);
    for (unsigned i = 0; group && i < PAIRS; i++)
        if (group->samples[i].state == PENDING) {
            group->samples[i].state = ASKED;
            group->busy++;
            asked[count++] = &group->samples[i];
        }
    pthread_mutex_unlock(&qg_window_lock);
    if (!count)
        return;
    /* even if no thread captures: one may begin just before the driver gets the call */
    bool relaxed = qg_relax(&mode);
    for (unsigned i = 0; i < count; i++) {
        results[i] = QG_REAL(cuEventQuery)(asked[i]->end);
        if (results[i] == CUDA_SUCCESS &&
            QG_REAL(cuEventElapsedTime)(&ms[i], asked[i]->start, asked[i]->end) != CUDA_SUCCESS)
            results[i] = CUDA_ERROR_UNKNOWN;
    }
    qg_unrelax(relaxed, &mode);
    pthread_mutex_lock(&qg_window_lock);
    for (unsigned i = 0; i < count; i++) {
        if (results[i] == CUDA_SUCCESS && ms[i] >= 0)
            learn(asked[i], ms[i]);
        give(asked[i], results[i] == CUDA_ERROR_NOT_READY);
    }
    pthread_mutex_unlock(&qg_window_lock);
}
