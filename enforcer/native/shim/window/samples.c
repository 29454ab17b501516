/* SPDX-License-Identifier: Apache-2.0
 *
 * Samples: pairs of events around launches, from which estimates are learned (samples.h).
 */
#include "window/samples.h"
#include "driver/relax.h"

#include <stdlib.h>
#include <string.h>

/* Pairs of events per context, so samples under way at a time. Chosen, not measured. */
#define PAIRS 16u
/* ns after the gate opened from which a sample counts as undisturbed. Chosen, not measured: a gate
 * may open a little before the former tenant's work has ended. */
#define ALONE_NS 2000000u

struct qg_sample {
    CUevent start, end; /* NULL: not created */
    struct group *group;
    const void *function;
    struct qg_pages *pages; /* and the gate's count of changes, when the start was recorded */
    uint64_t changes;
    unsigned let; /* qg_bypassed_launches and qg_admitted_launches then */
    unsigned booked;
    /* the gate had been open long enough for the former tenant's work to have ended */
    bool alone;
    /* at the start: when; at the end: between recording the start and having launched */
    uint64_t gap_ns;
    /* most ns for which the former tenant's work may have been on the card beside it */
    uint64_t shared_ns;
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

void qg_samples_after_quantum(const struct qg_pages *pages, uint64_t before, uint64_t after)
{
    for (struct group *group = groups; group; group = group->next)
        for (unsigned i = 0; i < PAIRS; i++)
            if (group->samples[i].pages == pages && group->samples[i].changes == before)
                group->samples[i].changes = after;
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
    uint64_t now = qg_now_ns();
    pthread_mutex_lock(&qg_window_lock);
    struct qg_sample *sample = take(context);
    if (sample) {
        sample->pages = pages;
        uint64_t alone_ns = __atomic_load_n(&pages->gate->changed_ns, __ATOMIC_RELAXED) + ALONE_NS;
        bool early = __atomic_load_n(&pages->gate->flags, __ATOMIC_RELAXED) & QG_GATE_EARLY;
        sample->alone = now > alone_ns;
        sample->shared_ns = early && !sample->alone ? alone_ns - now : 0;
        sample->changes = __atomic_load_n(&pages->gate->changes, __ATOMIC_RELAXED);
        sample->let = qg_bypassed_launches;
        sample->booked = qg_admitted_launches;
        sample->function = function;
    }
    pthread_mutex_unlock(&qg_window_lock);
    if (!sample)
        return NULL;
    bool made = sample->start || make_events(sample, context);
    sample->gap_ns = qg_now_ns();
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
    sample->gap_ns = launched - sample->gap_ns;
    give(sample, recorded);
    pthread_mutex_unlock(&qg_window_lock);
}

/* False: the gate closed meanwhile, so other tenants may have been on the card too, and the sample
 * is useless. Closing at the end of a quantum does not count: otherwise only short kernels would
 * ever be learned. */
static bool undisturbed(const struct qg_sample *sample)
{
    return sample->changes == __atomic_load_n(&sample->pages->gate->changes, __ATOMIC_RELAXED);
}

/* True: the sample is useless. Its kernel is known to wait for launches, and the window held one
 * back. So its duration is that of the shim's wait. */
static bool waited(const struct qg_sample *sample)
{
    return sample->let != qg_bypassed_launches &&
           qg_function_of(&qg_functions, sample->function)->waits;
}

void qg_samples_collect(CUcontext context, bool own)
{
    struct qg_sample *asked[PAIRS];
    CUresult results[PAIRS];
    float ms[PAIRS];
    unsigned count = 0;
    CUstreamCaptureMode mode;
    pthread_mutex_lock(&qg_window_lock);
    /* before the driver is asked: a launch from now on may end what runs */
    unsigned booked = qg_admitted_launches - own;
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
        struct qg_sample *sample = asked[i];
        /* at least it did not wait for a launch of this process */
        if (results[i] == CUDA_SUCCESS && sample->function && sample->booked == booked)
            qg_function_runs(qg_function_of(&qg_functions, sample->function));
        if (results[i] == CUDA_SUCCESS && ms[i] >= 0 && sample->function && undisturbed(sample) &&
            !waited(sample))
            qg_function_learn(&qg_functions, sample->function, (uint64_t)(ms[i] * 1e6f),
                              sample->gap_ns, sample->shared_ns, sample->alone);
        give(sample, results[i] == CUDA_ERROR_NOT_READY);
    }
    pthread_mutex_unlock(&qg_window_lock);
}
